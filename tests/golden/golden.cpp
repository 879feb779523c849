#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/golden/difference.hpp"
#include "tests/golden/frozen.hpp"

/// Guards the numbers of `stepcast predict`: runs every line of cases.txt and compares the outcome with
/// golden.json, or writes it. Runs the program as a user does, so that code and files may be moved.
namespace stepcast::golden {
namespace {

namespace fs = std::filesystem;

/// Dependencies of the last digits apart from the sources: the same sources give the same bits at -O2 and
/// -O3, but not with another SimGrid or with fused multiply-adds.
constexpr const char* kMadeWith = "SimGrid " STEPCAST_SIMGRID_VERSION ", " STEPCAST_PROCESSOR;
constexpr double kToleranceElsewhere = 1e-6;  // relative

constexpr const char* kUsage = R"(Usage: stepcast_golden [--check | --write] [options]

  --check           compare with golden.json (the default); exit code 1 if anything differs
  --write           write golden.json, and print the differences to the previous one
  --only TEXT       cases whose name contains TEXT
  --tolerance X     accept relative differences up to X, and do not compare hashes
  --stepcast FILE   the program; default: beside this one
  --folder FOLDER   with cases.txt, golden.json and inputs; default: tests/golden
  --jobs N          cases at a time; default 2
  --times           print the time of every case, the longest last
)";

struct Options {
  bool write = false;
  bool times = false;
  std::string only;
  double tolerance = 0.0;
  fs::path stepcast = fs::path(STEPCAST_BINARY_DIR) / "stepcast";
  fs::path folder = STEPCAST_GOLDEN_DIR;
  int jobs = 2;
};

struct Case {
  std::string name;
  std::string options;
  Json outcome{};
  double seconds = 0.0;
};

struct Output {
  int exit_code = 0;
  std::string text;
};

/// Output of a shell command.
Output shell(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell");
  Output output;
  std::array<char, 65536> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.text.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

Json outcome_of(const Case& one, const Options& options) {
  const std::string command = "cd '" + options.folder.string() + "' && exec '" + options.stepcast.string() +
                              "' predict " + one.options;
  const Output good = shell(command + " --json 2>/dev/null");
  if (good.exit_code != 0) {
    const Output bad = shell(command + " --json 2>&1 >/dev/null");
    return {{"exit_code", good.exit_code}, {"error", bad.text.substr(0, bad.text.find('\n'))}};
  }
  return frozen(Json::parse(good.text));
}

void run(Case& one, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  try {
    one.outcome = outcome_of(one, options);
  } catch (const std::exception& error) {
    one.outcome = {{"unreadable", error.what()}};
  }
  one.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_all(std::vector<Case>& cases, const Options& options) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> workers;
  workers.reserve(static_cast<std::size_t>(options.jobs));
  for (int i = 0; i < options.jobs; ++i)
    workers.emplace_back([&] {
      for (std::size_t which = next++; which < cases.size(); which = next++) run(cases[which], options);
    });
  for (std::thread& worker : workers) worker.join();
}

/// Reads one case per line: a name, then options of `stepcast predict` without characters that a shell
/// interprets.
std::vector<Case> read_cases(const fs::path& path, const std::string& only) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path.string() + ": cannot be read");
  std::vector<Case> cases;
  std::set<std::string> names;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const auto refuse = [&](const std::string& why) {
      throw std::runtime_error(path.string() + ":" + std::to_string(number) + ": " + why);
    };
    const std::size_t end = line.find(' ');
    if (end == std::string::npos) refuse("expected a name and options");
    const bool plain = std::all_of(line.begin(), line.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
             std::string_view(" ._:,=/+-").find(c) != std::string_view::npos;
    });
    if (!plain) refuse("expected words that need no quotes");
    Case one{line.substr(0, end), line.substr(line.find_first_not_of(' ', end))};
    if (!names.insert(one.name).second) refuse("'" + one.name + "' occurs twice");
    if (one.name.find(only) != std::string::npos) cases.push_back(std::move(one));
  }
  return cases;
}

Json read_golden(const fs::path& path) {
  std::ifstream in(path);
  if (!in) return {{"made_with", kMadeWith}, {"cases", Json::object()}};
  return Json::parse(in);
}

/// Writes one line per case, so that a diff of two versions is readable.
void write_golden(const fs::path& path, const Json& cases) {
  std::ofstream out(path);
  out << "{\"made_with\": " << Json(kMadeWith).dump() << ",\n\"cases\": {";
  const char* separator = "\n";
  for (const auto& [name, outcome] : cases.items()) {
    out << separator << Json(name).dump() << ": " << outcome.dump();
    separator = ",\n";
  }
  out << "\n}}\n";
  if (!out.flush()) throw std::runtime_error(path.string() + ": cannot be written");
}

/// The differences of one case, the first twelve.
void print(const std::string& name, const std::vector<Difference>& differences) {
  constexpr std::size_t kMost = 12;
  std::cout << name << '\n';
  for (std::size_t i = 0; i < std::min(kMost, differences.size()); ++i)
    std::cout << "  " << (differences[i].field.empty() ? "all" : differences[i].field) << ": "
              << differences[i].before << " -> " << differences[i].after << '\n';
  if (differences.size() > kMost) std::cout << "  and " << differences.size() - kMost << " more\n";
}

/// \return how many cases differ
std::size_t report(const std::vector<Case>& cases, const Json& golden, const Options& options,
                   double tolerance) {
  std::size_t differ = 0;
  const Json& frozen = golden.at("cases");
  std::set<std::string> names;
  for (const Case& one : cases) {
    names.insert(one.name);
    const std::vector<Difference> differences = differences_of(
        frozen.contains(one.name) ? frozen.at(one.name) : Json("not frozen"), one.outcome, tolerance);
    if (differences.empty()) continue;
    ++differ;
    print(one.name, differences);
  }
  for (const auto& [name, outcome] : frozen.items()) {
    if (names.contains(name) || name.find(options.only) == std::string::npos) continue;
    ++differ;
    std::cout << name << "\n  frozen, but cases.txt has no such case\n";
  }
  return differ;
}

void print_times(std::vector<Case> cases) {
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.seconds < b.seconds; });
  double sum = 0.0;
  for (const Case& one : cases) {
    sum += one.seconds;
    std::printf("%8.3f s  %s\n", one.seconds, one.name.c_str());
  }
  std::printf("%8.3f s  in all\n", sum);
}

int check(const Options& options) {
  std::vector<Case> cases = read_cases(options.folder / "cases.txt", options.only);
  if (cases.empty()) throw std::runtime_error("no case has '" + options.only + "' in its name");
  const fs::path file = options.folder / "golden.json";
  const Json golden = read_golden(file);
  run_all(cases, options);
  if (options.times) print_times(cases);
  double tolerance = options.tolerance;
  const std::string made_with = golden.at("made_with").get<std::string>();
  if (!options.write && made_with != kMadeWith) {
    tolerance = std::max(tolerance, kToleranceElsewhere);
    std::cout << "golden.json was made with " << made_with << ", this is " << kMadeWith
              << ": numbers are compared, hashes are not\n";
  }
  const std::size_t differ = report(cases, golden, options, tolerance);
  const std::size_t equal_cases = cases.size() - std::min(differ, cases.size());
  std::cout << cases.size() << " cases, " << equal_cases << " equal ";
  if (tolerance > 0.0)
    std::cout << "within " << tolerance;
  else
    std::cout << "to the last digit";
  std::cout << ", " << differ << " differ\n";
  if (!options.write) return differ == 0 ? 0 : 1;
  for (const Case& one : cases)
    if (!one.outcome.contains("step_time_s") && !one.outcome.contains("rows") &&
        !one.name.starts_with("error."))
      throw std::runtime_error("nothing is written: '" + one.name + "' fails, which only 'error.*' may");
  Json frozen = Json::object();
  std::map<std::string, const Case*> ran;
  for (const Case& one : cases) ran[one.name] = &one;
  for (const Case& one : read_cases(options.folder / "cases.txt", "")) {
    if (ran.contains(one.name))
      frozen[one.name] = ran.at(one.name)->outcome;
    else if (golden.at("cases").contains(one.name))
      frozen[one.name] = golden.at("cases").at(one.name);
  }
  write_golden(file, frozen);
  std::cout << "wrote " << file.string() << "; changes.md lists what changed and why\n";
  return 0;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (++i == words.size()) throw std::invalid_argument(word + " needs a value");
      return words[i];
    };
    if (word == "--check")
      options.write = false;
    else if (word == "--write")
      options.write = true;
    else if (word == "--times")
      options.times = true;
    else if (word == "--only")
      options.only = value();
    else if (word == "--tolerance")
      options.tolerance = std::stod(value());
    else if (word == "--stepcast")
      options.stepcast = fs::absolute(value());
    else if (word == "--folder")
      options.folder = fs::absolute(value());
    else if (word == "--jobs")
      options.jobs = std::max(1, std::stoi(value()));
    else
      throw std::invalid_argument("unknown option '" + word + "'");
  }
  return options;
}

}  // namespace
}  // namespace stepcast::golden

int main(int argc, char** argv) {
  using namespace stepcast::golden;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
    std::cout << kUsage;
    return 0;
  }
  try {
    return check(parse(words));
  } catch (const std::invalid_argument& error) {
    std::cerr << "stepcast_golden: " << error.what() << "\n\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "stepcast_golden: " << error.what() << '\n';
    return 3;
  }
}

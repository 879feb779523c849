#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
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

/// Holds the numbers of `stepcast predict` still: runs every line of cases.txt and compares what comes out
/// with golden.json, or writes it. It looks at the program from outside, as a user does, and reads of a
/// file's layout no more than it must, so that code and files may be moved under it.
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// What the last digits depend on beside the sources of this repository: the same sources give the same bits
/// at -O2 and -O3, but not with another SimGrid or with fused multiply-adds.
constexpr const char* kMadeWith = "SimGrid " STEPCAST_SIMGRID_VERSION ", " STEPCAST_PROCESSOR;
constexpr double kToleranceElsewhere = 1e-6;  // relative

constexpr const char* kUsage = R"(Usage: stepcast_golden [--check | --write] [options]

  --check           compare with golden.json (the default); exit code 1 where anything differs
  --write           write golden.json, and print what differs from the one before
  --only TEXT       cases whose name contains TEXT
  --tolerance X     accept relative differences up to X, and do not compare hashes
  --stepcast FILE   the program; default: beside this one
  --folder FOLDER   with cases.txt, golden.json and inputs; default: tests/golden
  --jobs N          cases at a time; default 2
  --times           print how long every case took, the longest last
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

// --- hashes and sums
// ------------------------------------------------------------------------------------------

std::string digits(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

/// FNV-1a of 64 bits over texts.
class Hash {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(0);
  }
  void add(double value) { add(std::string_view(digits(value))); }
  [[nodiscard]] std::string text() const {
    std::array<char, 20> result{};
    std::snprintf(result.data(), result.size(), "%016llx", static_cast<unsigned long long>(state_));
    return result.data();
  }

 private:
  void mix(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// Whatever order the lines stand in.
std::string hash_of(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  Hash hash;
  for (const std::string& line : lines) hash.add(line);
  return hash.text();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// --- what is frozen of a prediction
// ---------------------------------------------------------------------------

Json step_times(const Json& prediction) {
  const auto times = prediction.at("step_time_s").get<std::vector<std::vector<double>>>();
  std::vector<double> slowest = times.at(0);
  double least = slowest.at(0);
  double most = least;
  Hash hash;
  for (const std::vector<double>& rank : times) {
    hash.add("rank");
    for (std::size_t step = 0; step < rank.size(); ++step) {
      hash.add(rank[step]);
      slowest.at(step) = std::max(slowest[step], rank[step]);
      least = std::min(least, rank[step]);
      most = std::max(most, rank[step]);
    }
  }
  hash.add("warm-up");
  for (const Json& time : prediction.at("warmup_step_time_s")) hash.add(time.get<double>());
  return {{"ranks", times.size()}, {"steps", slowest.size()}, {"median", median(slowest)}, {"min", least},
          {"max", most},           {"hash", hash.text()}};
}

/// The parts, added up over the ranks.
Json breakdown(const Json& ranks) {
  std::map<std::string, double> sums;
  Hash hash;
  for (const Json& rank : ranks) {
    std::map<std::string, double> parts;  // in an order of their own
    for (const auto& [part, time] : rank.items()) parts[part] = time.get<double>();
    for (const auto& [part, time] : parts) {
      sums[part] += time;
      hash.add(part);
      hash.add(time);
    }
  }
  Json result(sums);
  result["hash"] = hash.text();
  return result;
}

Json memory(const Json& ranks) {
  Json peaks = Json::array();
  Hash hash;
  for (const Json& rank : ranks) {
    peaks.push_back(rank.at("peak_bytes"));
    std::map<std::string, double> categories;
    for (const auto& [category, bytes] : rank.at("at_peak_bytes").items()) categories[category] = bytes;
    for (const auto& [category, bytes] : categories) {
      hash.add(category);
      hash.add(bytes);
    }
    for (const char* row : {"time_s", "live_bytes"})
      for (const Json& value : rank.at(row)) hash.add(value.get<double>());
  }
  return {{"peak_bytes", peaks}, {"hash", hash.text()}};
}

Json spans(const Json& all) {
  std::vector<std::string> names;
  std::vector<std::string> dated;
  double ends = 0.0;
  for (const Json& span : all) {
    std::string line = std::to_string(span.at("rank").get<int>()) + " " +
                       span.at("stream").get<std::string>() + " " + span.at("name").get<std::string>();
    names.push_back(line);
    dated.push_back(line.append(" ")
                        .append(digits(span.at("start_s").get<double>()))
                        .append(" ")
                        .append(digits(span.at("end_s").get<double>())));
    ends += span.at("end_s").get<double>();
  }
  return {{"count", all.size()},
          {"sum_of_ends_s", ends},
          {"names_hash", hash_of(std::move(names))},
          {"hash", hash_of(std::move(dated))}};
}

Json frozen_step(const Json& prediction) {
  Json result = {{"step_time_s", step_times(prediction)},
                 {"bytes_sent_per_rank", prediction.at("bytes_sent_per_rank_bytes")},
                 {"trivial_step_time_s", prediction.at("forecast").at("baseline_step_time_s")},
                 {"breakdown_s", breakdown(prediction.at("breakdown"))},
                 {"memory", memory(prediction.at("memory"))},
                 {"spans", spans(prediction.at("spans"))}};
  for (const char* note : {"collective_fidelity", "nccl"})
    if (prediction.at("notes").contains(note)) result[note] = prediction.at("notes").at(note);
  return result;
}

/// By collective a row per message: bytes, time and, where there is a choice, the algorithm.
Json frozen_bench(const Json& prediction) {
  Json rows = Json::object();
  Hash hash;
  for (const Json& row : prediction.at("rows")) {
    const auto times = row.at("time_s").get<std::vector<double>>();
    for (const double time : times) hash.add(time);
    Json& of_collective = rows[row.at("collective").get<std::string>()];
    of_collective.push_back({row.at("message_bytes"), median(times)});
    if (row.contains("algorithm")) of_collective.back().push_back(row.at("algorithm"));
  }
  return {{"rows", rows}, {"hash", hash.text()}};
}

// --- running
// --------------------------------------------------------------------------------------------------

struct Output {
  int exit_code = 0;
  std::string text;
};

/// What a shell command prints.
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
  const Json prediction = Json::parse(good.text);
  return prediction.contains("rows") ? frozen_bench(prediction) : frozen_step(prediction);
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

// --- files
// ----------------------------------------------------------------------------------------------------

/// A case per line: a name, then the options of `stepcast predict`. They go through a shell as they are, so
/// they may hold nothing that a shell minds.
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
    if (!names.insert(one.name).second) refuse("'" + one.name + "' stands twice");
    if (one.name.find(only) != std::string::npos) cases.push_back(std::move(one));
  }
  return cases;
}

Json read_golden(const fs::path& path) {
  std::ifstream in(path);
  if (!in) return {{"made_with", kMadeWith}, {"cases", Json::object()}};
  return Json::parse(in);
}

/// A line per case, so that a difference of two versions can be read.
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

// --- comparing
// ------------------------------------------------------------------------------------------------

struct Difference {
  std::string field, before, after;
};

/// A whole outcome is too long to print.
std::string shortened(const Json& value) {
  constexpr std::size_t kMost = 160;
  const std::string text = value.dump();
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string in_words(const Json& before, const Json& after) {
  std::string text = shortened(after);
  if (before.is_number() && after.is_number() && before.get<double>() != 0.0) {
    std::array<char, 40> percent{};
    const double change = after.get<double>() / before.get<double>() - 1.0;
    std::snprintf(percent.data(), percent.size(), " (%+.3g %%)", 100.0 * change);
    text += percent.data();
  }
  return text;
}

bool equal(const std::string& field, const Json& before, const Json& after, double tolerance) {
  if (before == after) return true;
  if (tolerance <= 0.0) return false;
  if (field.ends_with("hash") && !field.ends_with("names_hash")) return true;
  if (!before.is_number() || !after.is_number()) return false;
  const double a = before.get<double>();
  const double b = after.get<double>();
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

/// Leaf by leaf.
void compare(const std::string& field, const Json& before, const Json& after, double tolerance,
             std::vector<Difference>& differences) {
  const bool objects = before.is_object() && after.is_object();
  const bool arrays = before.is_array() && after.is_array() && before.size() == after.size();
  const std::string prefix = field.empty() ? "" : field + ".";
  if (objects) {
    for (const auto& [key, value] : before.items())
      compare(prefix + key, value, after.contains(key) ? after.at(key) : Json("nothing"), tolerance,
              differences);
    for (const auto& [key, value] : after.items())
      if (!before.contains(key)) compare(prefix + key, Json("nothing"), value, tolerance, differences);
  } else if (arrays) {
    for (std::size_t i = 0; i < before.size(); ++i)
      compare(prefix + std::to_string(i), before[i], after[i], tolerance, differences);
  } else if (!equal(field, before, after, tolerance)) {
    differences.push_back({field, shortened(before), in_words(before, after)});
  }
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
    std::vector<Difference> differences;
    compare("", frozen.contains(one.name) ? frozen.at(one.name) : Json("not frozen"), one.outcome, tolerance,
            differences);
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
  std::cout << "wrote " << file.string() << "; say in changes.md what changed and why\n";
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

int main(int argc, char** argv) {
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

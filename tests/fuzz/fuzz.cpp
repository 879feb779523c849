#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "tests/fuzz/mutate.hpp"
#include "tests/fuzz/targets.hpp"

/// Reads every target's seeds as they are, then mutated inputs. A finding is a crash, a report of a
/// sanitizer, an input that takes longer than 2 s, an exception that is no stepcast::Error, which commands
/// could not turn into a documented exit code, or a seed that is refused. Findings are kept as files, and the
/// exit status is then 1.
namespace stepcast::fuzz {
namespace {

using Clock = std::chrono::steady_clock;
#ifdef __SANITIZE_ADDRESS__
constexpr int kLongestSeconds = 12;  // of processor time, of an input
#else
constexpr int kLongestSeconds = 2;
#endif
constexpr unsigned kLongestWait = 120;  // s on a busy machine

struct Options {
  double seconds = 0.0;  ///< 0: until `each` inputs of every target were read
  long long each = 30'000;
  std::uint64_t seed = 1;
  std::string only;                           ///< targets whose names contain it
  std::string replay;                         ///< a kept file, read once
  std::filesystem::path folder = "out/fuzz";  ///< of findings
};

/// Memory that a worker shares with the program that started it.
struct Shared {
  long long inputs = 0, refused = 0;
  std::size_t length = 0;
  char text[kLongest] = {};
  char complaint[1024] = {};
};

struct Count {
  long long inputs = 0, refused = 0, findings = 0, crashed_child = 0;
};

class Fuzzer {
 public:
  Fuzzer(Options options, std::vector<Target> all) : options_(std::move(options)) {
    for (Target& target : all)
      if (target.name.find(options_.only) != std::string::npos) targets_.push_back(std::move(target));
    shared_ = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    place_ = (std::filesystem::exists("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                  : std::filesystem::temp_directory_path()) /
             fmt::format("stepcast-fuzz-{}", getpid());
    std::filesystem::create_directories(place_);
  }
  ~Fuzzer() {
    std::filesystem::remove_all(place_);
    munmap(shared_, sizeof(Shared));
  }
  Fuzzer(const Fuzzer&) = delete;
  Fuzzer& operator=(const Fuzzer&) = delete;

  int run() {
    if (targets_.empty()) throw UsageError("no target has '{}' in its name", options_.only);
    if (!options_.replay.empty()) return replay();
    const auto begin = Clock::now();
    const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto left = static_cast<double>(targets_.size() - i);
      const Target& target = targets_[i];
      Count seeds;
      while (seeds.inputs < static_cast<long long>(target.seeds.size()) && seeds.findings < kMostFindings)
        work(target, seeds, 0.0, true);
      const double share = std::max(kLeastSeconds, (options_.seconds - spent()) / left);  // seeds come first
      const double until = options_.seconds > 0.0 ? spent() + share : 0.0;
      Count& count = counts_[target.name];
      while (count.inputs < options_.each && (until == 0.0 || spent() < until) &&
             count.findings < kMostFindings)
        work(target, count, until == 0.0 ? 0.0 : until - spent(), false);
      const auto& [inputs, refused, findings, crashed] = count;
      fmt::print("{:24} {:3} of {:3} seeds accepted{}, {:8} inputs, {:8} refused, {} findings{}\n",
                 target.name, seeds.inputs - seeds.refused - seeds.findings, seeds.inputs,
                 target.refuses ? " (it explains refusals)" : "", inputs, refused, seeds.findings + findings,
                 crashed == 0 ? "" : fmt::format(", {} crashes of the child process", crashed));
      std::fflush(stdout);
    }
    return summary();
  }

 private:
  static constexpr long long kMostFindings = 20;  // of a target, after which it is left
  static constexpr double kLeastSeconds = 0.5;    // of a target, however long the others took

  static bool is_hang(int status) { return WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF; }

  int replay() {
    std::ifstream file(options_.replay, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    try {
      read(targets_.front(), text);
      fmt::print("{}: read\n", targets_.front().name);
    } catch (const Error& error) {
      fmt::print("{}: refused: {}\n", targets_.front().name, printable(error.what()));
    }
    return 0;
  }

  void read(const Target& target, const std::string& text) const {
    const std::string path = place_ / ("input" + target.ending);
    std::ofstream(path, std::ios::binary) << text;
    target.read(path);
  }

  /// Lets a worker read inputs until it crashes or is done. \param seconds 0: until all inputs were read
  /// \param unchanged read the target's seeds instead of mutated ones
  void work(const Target& target, Count& count, double seconds, bool unchanged) {
    std::memset(static_cast<void*>(shared_), 0, sizeof(Shared));
    const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(count.inputs) * 1'000'003;
    std::cout.flush();
    const pid_t worker = fork();
    if (worker == 0) {
      if (unchanged)
        read_seeds(target, static_cast<std::size_t>(count.inputs));
      else
        read_inputs(target, options_.each - count.inputs, seed, seconds);
      _exit(0);
    }
    int status = 0;
    waitpid(worker, &status, 0);
    count.inputs += shared_->inputs;
    count.refused += shared_->refused;
    if (status == 0) return;
    if (target.in_child && WIFSIGNALED(status) && !is_hang(status)) {
      ++count.crashed_child;
      return;
    }
    ++count.findings;
    keep(target, status);
  }

  void read_inputs(const Target& target, long long most, std::uint64_t seed, double seconds) const {
    silence();
    std::mt19937_64 random(seed);
    const auto begin = Clock::now();
    for (long long i = 0; i < most; ++i) {
      static_cast<void>(accepts(target, mutated(target.seeds, random)));
      if (seconds > 0.0 && std::chrono::duration<double>(Clock::now() - begin).count() > seconds) return;
    }
  }

  /// Seeds from `first` on. Ends the process at one that is refused.
  void read_seeds(const Target& target, std::size_t first) const {
    silence();
    for (std::size_t i = first; i < target.seeds.size(); ++i)
      if (const std::string reason = accepts(target, target.seeds[i]); !reason.empty() && !target.refuses) {
        --shared_->refused;
        complain("a seed is refused: " + reason);
        _exit(kUndocumented);
      }
  }

  /// Reads an input within its time. \returns why it is refused; "": it is accepted
  std::string accepts(const Target& target, const std::string& text) const {
    std::memcpy(shared_->text, text.data(), text.size());
    shared_->length = text.size();
    ++shared_->inputs;
    std::string reason;
    limit(kLongestSeconds);
    try {
      read(target, text);
    } catch (const Error& error) {
      ++shared_->refused;
      reason = printable(error.what());
    } catch (const std::exception& error) {
      complain(fmt::format("not an error of stepcast: {}", error.what()));
      _exit(kUndocumented);
    }
    limit(0);
    return reason;
  }
  static constexpr int kUndocumented = 99;

  static void limit(int seconds) {
    const itimerval timer{{0, 0}, {seconds, 0}};
    setitimer(ITIMER_PROF, &timer, nullptr);
    alarm(seconds == 0 ? 0 : kLongestWait);
  }

  void complain(const std::string& text) const {
    std::strncpy(shared_->complaint, text.c_str(), sizeof(shared_->complaint) - 1);
  }

  /// Readers' own messages are of no interest; a sanitizer's report goes to a file.
  void silence() const {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    const int errors = open((place_ / "errors").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(errors, STDERR_FILENO);
  }

  void keep(const Target& target, int status) {
    std::filesystem::create_directories(options_.folder);
    const std::string text(shared_->text, shared_->length);
    const auto path = options_.folder /
                      fmt::format("{}-{:016x}{}", target.name, std::hash<std::string>()(text), target.ending);
    std::ofstream(path, std::ios::binary) << text;
    std::string what = shared_->complaint;
    if (WIFSIGNALED(status))
      what = is_hang(status) ? fmt::format("longer than {} s", kLongestSeconds)
                             : fmt::format("signal {}", WTERMSIG(status));
    std::ifstream errors(place_ / "errors");
    for (std::string line; std::getline(errors, line);)
      if (line.find("ERROR: ") != std::string::npos || line.find("runtime error: ") != std::string::npos ||
          line.find("    #") == 0) {
        what += "\n    " + line;
        if (what.size() > 1500) break;
      }
    found_.push_back(fmt::format("{}: {}", path.string(), what));
    fmt::print("finding: {}\n", found_.back());
  }

  int summary() const {
    long long inputs = 0;
    for (const auto& [name, count] : counts_) inputs += count.inputs;
    fmt::print("{} inputs, {} targets, {} findings, seed {}\n", inputs, targets_.size(), found_.size(),
               options_.seed);
    return found_.empty() ? 0 : 1;
  }

  Options options_;
  std::vector<Target> targets_;
  std::map<std::string, Count> counts_;
  std::vector<std::string> found_;
  Shared* shared_ = nullptr;
  std::filesystem::path place_;
};

Options options_of(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (i + 1 == words.size())
      throw UsageError(
          "usage: stepcast_fuzz [--seconds N] [--each N] [--seed N] [--only TEXT] [--folder DIR] [--replay "
          "FILE]; "
          "got '{}'",
          words[i]);
    const std::string &name = words[i], &value = words[i + 1];
    const auto number = [&] {
      const auto parsed = number_in<long long>(value);
      if (!parsed || *parsed < 0) throw UsageError("{} takes a whole number, got '{}'", name, value);
      return *parsed;
    };
    if (name == "--seconds")
      options.seconds = static_cast<double>(number());
    else if (name == "--each")
      options.each = number();
    else if (name == "--seed")
      options.seed = static_cast<std::uint64_t>(number());
    else if (name == "--only")
      options.only = value;
    else if (name == "--folder")
      options.folder = value;
    else if (name == "--replay")
      options.replay = value;
    else
      throw UsageError(
          unknown_name("option", name, {"--seconds", "--each", "--seed", "--only", "--folder", "--replay"}));
  }
  return options;
}

}  // namespace
}  // namespace stepcast::fuzz

int main(int argc, char** argv) {
  try {
    return stepcast::fuzz::Fuzzer(stepcast::fuzz::options_of({argv + 1, argv + argc}),
                                  stepcast::fuzz::targets())
        .run();
  } catch (const stepcast::Error& error) {
    std::cerr << "stepcast_fuzz: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}

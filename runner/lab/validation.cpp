#include "runner/lab/validation.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "runner/lab/namespaces.hpp"
#include "runner/lab/plan.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/records/calibration.hpp"

namespace stepcast {
namespace {

using Words = std::vector<std::string>;

constexpr double kLongestStep_s = 1.0;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Bytes per second of most hosts' links, as sold.
double link_rate_of(const LabPoint& point) {
  return parse_bytes_per_second(point.settings.at("rate"), "rate").count();
}

/// Runs one of our own programs. \throws RunError with its words
void run_step(const std::string& program, const Words& words) {
  const ProgramOutput output = run_program_file(Words{program_beside(program)} + words);
  if (output.exit_code == 0) return;
  throw RunError("'" + program + " " + joined(words, " ") + "' ended with exit code " +
                 std::to_string(output.exit_code) + ": " + output.standard_error);
}

/// Whether SIGINT, SIGTERM or SIGHUP waits for the end of a LabScope.
bool interrupted() {
  sigset_t pending{};
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

/// How fast this machine is now: the median time that the calling thread takes to copy 1 MiB to memory that
/// it has not touched for a while, of 101 copies. On a virtual machine it moves with what its host's other
/// guests do, and with it do the costs of sockets and of compute. Takes some 20 ms.
double seconds_to_copy_1_mib() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  constexpr std::size_t kPlaces = 64;  // more than caches hold
  constexpr std::size_t kCopies = 101;
  std::vector<char> memory(kPlaces * kBytes, 1);
  std::vector<double> times;
  for (std::size_t i = 0; i < kCopies; ++i) {
    const char* from = memory.data() + 2 * i % kPlaces * kBytes;
    char* to = memory.data() + (2 * i + 1) % kPlaces * kBytes;
    const Clock::time_point start = Clock::now();
    std::memcpy(to, from, kBytes);
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(times);
}

/// One validation under way.
class Run {
 public:
  explicit Run(const LabValidation& validation)
      : validation_(validation), matrix_(LabMatrix(validation.quick ? "lab-quick" : "lab").points()) {
    std::erase_if(matrix_,
                  [&](const LabPoint& one) { return one.name.find(validation.only) == std::string::npos; });
    if (matrix_.empty()) throw UsageError("--only: no case has '" + validation.only + "' in its name");
    for (const char* folder : {"traces", "predicted", "runs"})
      std::filesystem::create_directories(std::filesystem::path(validation.folder) / folder);
    for (const LabPoint& one : matrix_) batches_[one.settings.at("model")].insert(batch_of(one));
    for (const LabPoint& one : matrix_) batches_[one.settings.at("model")].insert(samples_of(one));
    total_ =
        static_cast<int>(batches_.size()) + 1 + static_cast<int>(matrix_.size()) * (1 + validation.launches);
  }

  LabReport report() {
    measure();
    predict();
    for (int launch = 1; launch <= validation_.launches; ++launch)
      for (const char* compute : {"real", "replayed"}) run_all(launch, compute);  // real: traces grow old
    return collect();
  }

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return validation_.folder + "/" + name; }
  [[nodiscard]] std::string trace(const std::string& model) const {
    return path("traces/" + model.substr(0, model.find(':')) + ".trace.json");
  }
  [[nodiscard]] std::string predicted(const LabPoint& one) const {
    return path("predicted/" + one.name + ".json");
  }
  [[nodiscard]] std::string measured(const LabPoint& one, int launch) const {
    return path("runs/" + one.name + "." + std::to_string(launch) + ".json");
  }
  void advance(const std::string& now) { validation_.on_progress(++done_, total_, now); }

  static int batch_of(const LabPoint& one) { return std::stoi(one.settings.at("batch")); }
  /// Of a micro-batch.
  static int samples_of(const LabPoint& one) {
    const auto found = one.settings.find("micro-batches");
    return batch_of(one) / (found == one.settings.end() ? 1 : std::stoi(found->second));
  }

  /// What one rank computes, and what messages between two hosts cost at one rate: all that is known
  /// beforehand.
  void measure() {
    const std::string steps = validation_.quick ? "8" : "15";
    for (const auto& [model, batches] : batches_) {
      run_step("stepcast-runner", Words{"measure", "--model", model, "--batch", joined(batches, ","),
                                        "--steps", steps, "-o", trace(model), "--force"} +
                                      (batches.size() > 1 ? Words{"--accumulating"} : Words{}));
      advance("traced " + model);
    }
    run_step("stepcast-runner",
             {"lab", "run", "--name", validation_.lab, "--cluster", kLabCalibrationCluster, "--", "calibrate",
              "--cluster", kLabCalibrationCluster, "--max", validation_.quick ? "4MiB" : "16MiB", "--rounds",
              validation_.quick ? "3" : "7", "-o", path("calibration.json"), "--force"});
    machine_.calibrated_copy_s = seconds_to_copy_1_mib();
    advance("calibrated");
  }

  [[nodiscard]] Words training(const LabPoint& one) const {
    return one.words({"cluster", "world-size"}) + Words{"--trace", trace(one.settings.at("model"))};
  }

  void predict() {
    for (const LabPoint& one : matrix_) {
      run_step("stepcast",
               Words{"predict"} + training(one) +
                   Words{"--calibration", path("calibration.json"), "--cluster", one.settings.at("cluster"),
                         "--world-size", one.settings.at("world-size"), "-o", predicted(one), "--force"});
      advance("predicted " + one.name);
    }
    std::erase_if(matrix_, [&](const LabPoint& one) {
      return load_result(predicted(one)).median_step_time_s() > kLongestStep_s;
    });
  }

  /// Every case once, cluster after cluster.
  void run_all(int launch, const std::string& compute) {
    std::vector<std::string> clusters;
    for (const LabPoint& one : matrix_)
      if (one.settings.at("compute") == compute &&
          std::find(clusters.begin(), clusters.end(), one.settings.at("cluster")) == clusters.end())
        clusters.push_back(one.settings.at("cluster"));
    for (const std::string& cluster : clusters) {
      machine_.copy_s.push_back(seconds_to_copy_1_mib());
      const LabScope lab(plan_lab(load_cluster(cluster), validation_.lab));
      for (const LabPoint& one : matrix_) {
        if (one.settings.at("compute") != compute || one.settings.at("cluster") != cluster) continue;
        run_step(
            "stepcast-runner",
            Words{"lab", "run", "--name", validation_.lab, "--", "run"} + training(one) +
                Words{"--steps", steps_of(one), "--warmup", "2", "-o", measured(one, launch), "--force"});
        if (interrupted()) return;  // the lab's end lets the signal through
        advance("ran " + one.name);
      }
    }
  }

  /// About one and a half seconds of steps: launches differ more than steps.
  [[nodiscard]] std::string steps_of(const LabPoint& one) const {
    constexpr double kSeconds = 1.5;
    const double step = load_result(predicted(one)).median_step_time_s();
    return std::to_string(std::clamp(static_cast<int>(kSeconds / step), 4, 30));
  }

  LabReport collect() {
    LabReport report;
    report.machine = machine_;
    const Calibration calibration = load_calibration(path("calibration.json"));
    report.calibration.world_size = calibration.world_size;
    report.calibration.link_rate_bytes_per_s = kLabCalibrationRate;
    if (!calibration.paths.empty())
      report.calibration.largest_bytes = calibration.paths.front().largest_bytes;
    for (const LabPoint& one : matrix_) report.cases.push_back(compared_case(one));
    for (const YamlNode& change : LabMatrix("lab").at("changes").items()) {
      const Case* plain = find(report, change.at("plain").text());
      const Case* changed = find(report, change.at("changed").text());
      if (plain != nullptr && changed != nullptr)
        report.perturbations.push_back(perturbation_between(change.at("name").text(), *plain, *changed));
    }
    return report;
  }

  [[nodiscard]] Case compared_case(const LabPoint& one) const {
    std::vector<ResultFile> files{load_result_file(predicted(one))};
    for (int launch = 1; launch <= validation_.launches; ++launch)
      files.push_back(load_result_file(measured(one, launch)));
    const std::vector<Case> cases = group_cases(files);
    if (cases.size() != 1)
      throw RunError(one.name + ": its runs are another training than its prediction: " +
                     describe(cases.front()) + " and " + describe(cases.back()));
    check_lineage(cases);
    Case result = cases.front();
    result.configuration.cluster = one.settings.at("cluster");
    result.distance = distance_of(one);
    result.link_rate_bytes_per_s = link_rate_of(one);
    const Configuration& c = result.configuration;
    const auto ideal = result.trivial.find("ideal_scaling");
    if (ideal != result.trivial.end())
      result.baseline_step_time_s = ideal->second * c.world_size / c.data_parallel;
    for (CaseFile& launch : result.launches) launch.result = nullptr;
    result.prediction->result = nullptr;
    return result;
  }

  const Case* find(const LabReport& report, const std::string& name) const {
    for (std::size_t i = 0; i < matrix_.size(); ++i)
      if (matrix_[i].name == name) return &report.cases[i];
    return nullptr;
  }

  const LabValidation& validation_;
  std::vector<LabPoint> matrix_;
  std::map<std::string, std::set<int>> batches_;  ///< to trace, by model
  LabMachine machine_;
  int done_ = 0;
  int total_ = 0;
};

}  // namespace

std::string distance_of(const LabPoint& point) {
  if (point.settings.at("kind") != "lab-star") return kNewTopology;  // links or hosts that differ
  if (point.settings.at("world-size") != "2") return kNewWorldSize;
  return link_rate_of(point) != kLabCalibrationRate ? kNewRate : kSeenRateSeenSize;
}

LabReport validate_lab(const LabValidation& validation) { return Run(validation).report(); }

}  // namespace stepcast

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"
#include "sim/validation/experiment.hpp"

namespace stepcast {
namespace {

constexpr int kCores = 2;

/// How two ranks share what one rank had alone.
struct Sharing {
  std::string name;
  double efficiency = 0.5;    ///< of one rank with two threads: its speed-up over one thread, per thread
  bool interference = true;   ///< as calibrated
  bool shared_cores = false;  ///< every rank runs two threads and the cores divide themselves
  double implausibility = 0.0;
};

/// The experiment: SimpleCNN, blocking all-reduces per tensor over Gloo, two ranks on a machine of two cores.
///
/// One rank alone may use both cores. By what its two threads are faster than one, `2 e`, two ranks with a
/// core each are slower; the fit row cannot tell e. The bracket:
///
///     no slow-down         e = 1/2: the second thread gave nothing, so that a core each changes nothing;
///                          and ranks do not disturb each other
///     cores fully shared   e = 1: the second thread gave all it could; both ranks run two threads on the
///                          two cores
///
/// Between them, with the calibrated interference of another two-core machine: e = 1/2, and e = 3/4,
/// half-way, which is central because nothing speaks for either end.
class TwoCoresCase {
 public:
  explicit TwoCoresCase(const PublishedCase& published)
      : published_(published),
        model_(published_model(published, "")),
        cluster_(load_cluster("laptop:cores=" + std::to_string(kCores))),
        calibration_(two_core_calibration()),
        alone_(fit_row(published, "single", "mean_iteration_s")),
        batch_(static_cast<int>(published.number("batch_per_rank").value_or(128))) {
    for (const PublishedRow& row : published.rows) require_strategy(row, {"single", "all_reduce", "ddp"});
    const double steps = alone_.number("iterations").value_or(0.0);
    if (steps > 0.0) compute_s_ = alone_.number("compute_time_s").value_or(0.0) / steps;
    if (compute_s_ <= 0.0 || compute_s_ > *alone_.number("mean_iteration_s"))
      alone_.fail(
          "keys 'compute_time_s' and 'iterations': expected both above 0, so that compute takes less than "
          "mean_iteration_s");
    undisturbed_ = calibration_;
    undisturbed_.sharing = {};
  }

  CasePrediction predict() const {
    const std::vector<Sharing> all{
        {"3/4, calibrated interference", 0.75, true, false, 0.0},
        {"1/2, calibrated interference", 0.5, true, false, 1.0},
        {"1/2, no interference (no slow-down)", 0.5, false, false, 2.0},
        {"1, cores fully shared", 1.0, true, true, 2.0},
    };
    std::vector<Candidate> candidates;
    candidates.reserve(all.size());
    for (const Sharing& sharing : all) candidates.push_back(candidate(sharing));
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] int steps(const PublishedRow& row) const {
    const auto epochs = static_cast<int>(published_.number("epochs").value_or(1));
    return epochs * steps_per_epoch(kCifarSamples, row.world_size, batch_);
  }

  [[nodiscard]] StepParts times(double slow_down) const {
    StepParts times = split_compute(compute_s_ * slow_down);
    times.input_s = *alone_.number("mean_iteration_s") - compute_s_;
    return times;
  }

  [[nodiscard]] Experiment experiment(const PublishedRow& row, const Sharing& sharing) const {
    const bool alone = row.world_size == 1;
    Experiment result{&model_,
                      &cluster_,
                      sharing.interference ? &calibration_ : &undisturbed_,
                      row.strategy,
                      {},
                      times(alone || sharing.shared_cores ? 1.0 : 2.0 * sharing.efficiency),
                      alone || sharing.shared_cores ? kCores : 1};
    result.training.world_size = row.world_size;
    result.training.batch = batch_;
    return result;
  }

  [[nodiscard]] Candidate candidate(const Sharing& sharing) const {
    Candidate result;
    result.choice = {{"thread_efficiency (of one rank with two threads)", sharing.name}};
    result.implausibility = sharing.implausibility;
    result.fitted = "compute of one rank alone " + to_text(Seconds(compute_s_)) + " a step, input and host " +
                    to_text(Seconds(times(1.0).input_s));
    for (const PublishedRow& row : published_.rows) {
      Experiment one = experiment(row, sharing);
      result.rows.push_back(values(row, replay_experiment(one)));
      one.times = times(1.0);
      const double step = alpha_beta_step_s(one);
      result.alpha_beta.push_back({{"total_time_s", {step * steps(row)}}, {"mean_iteration_s", {step}}});
    }
    return result;
  }

  [[nodiscard]] RowValues values(const PublishedRow& row, const Result& result) const {
    const double step = result.median_step_time_s();
    const double total = step * steps(row);
    const Breakdown& rank = result.breakdown.front();
    const double alone = *alone_.number("mean_iteration_s") * steps(alone_);
    RowValues values{{"total_time_s", {total}},
                     {"mean_iteration_s", {step}},
                     {"compute_time_s", {rank.compute_s * steps(row)}},
                     {"speedup", {alone / total}}};
    // What one rank's calls without a partner cost, no model has.
    if (row.world_size > 1) values["communication_time_s"] = {rank.exposed_communication_s * steps(row)};
    return values;
  }

  static void say_what_was_assumed(CasePrediction& prediction) {
    prediction.assumed.emplace_back(
        "endpoint costs of Gloo over loopback and interference as calibrated on another machine with two "
        "cores (calibration/data/two-cores.calibration.json): compute beside compute, memory bandwidth, "
        "communication");
    prediction.assumed.emplace_back(
        "input and host work of a step run on one thread and take as long beside another rank as alone, but "
        "for the interference");
    prediction.assumed.emplace_back(
        "the bracket runs from no slow-down (the second thread of one rank alone gave nothing) to cores "
        "fully shared (it doubled the speed)");
    prediction.assumed.emplace_back(
        "communication_time_s is predicted as what the calls take with a core of their own and both ranks "
        "there; the source counts waiting for a core and for the other rank inside its communication time");
    prediction.limits =
        "what a second thread gave one rank alone is not in the fit row, and whether the two virtual cores "
        "are two cores or two threads of one is not stated";
  }

  const PublishedCase& published_;
  Model model_;
  Cluster cluster_;
  Calibration calibration_;
  Calibration undisturbed_;
  const PublishedRow& alone_;
  int batch_;
  double compute_s_ = 0.0;
};

const Registration<CasePredictor> kTwoCores{
    case_predictors(),
    {.name = "simplecnn-cifar10-gloo-colab",
     .description = "SimpleCNN, two ranks with Gloo on the two cores of one machine",
     .thing = {[](const PublishedCase& published) { return TwoCoresCase(published).predict(); }},
     .order = 50}};

}  // namespace
}  // namespace stepcast

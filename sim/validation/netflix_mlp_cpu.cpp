#include <algorithm>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"
#include "sim/validation/experiment.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr double kRows = 1'531'126;  // of the data set, which the GPU runs of the same report name
constexpr int kBatch = 64;           // per rank, likewise
constexpr const char* kProcessor = "xeon-e5-2680-v4";
constexpr double kOfPeak = 0.1;    // that small matrices reach of a core's peak, at least
constexpr double kThreaded = 1.0;  // implausibility of arithmetic that all cores share
constexpr double kForwardAndBackward = 3.0;

/// The experiment: two ranks of a tiny MLP on one host, DDP over Gloo, on 6 to 12 cores.
///
/// A rank's host work of a step is what the fit row takes longer than Gloo, fitted by replaying the Schedule
/// on a host with that many cores. It runs on one thread (Python, autograd, Adam); then more cores change
/// nothing. Open is whether threads share the arithmetic: at a tenth of a core's peak it is all that they
/// could share.
class SingleThreadCase {
 public:
  explicit SingleThreadCase(const PublishedCase& published)
      : published_(published),
        model_(published_model(published, "")),
        calibration_(two_core_calibration()),
        fitted_(fit_row(published, "ddp", "total_time_s")) {
    calibration_.sharing = {};
    for (const PublishedRow& row : published.rows) {
      require_strategy(row, {"ddp", "all_reduce"});
      if (!row.facts.contains("cores")) row.fail("key 'cores' is missing, expected the cores of the host");
      if (cores(row) < row.world_size)
        row.fail("key 'cores': found " + std::to_string(cores(row)) + ", expected one per rank at least");
    }
  }

  CasePrediction predict() const {
    std::vector<Candidate> candidates{candidate(0.0)};
    if (Candidate threaded = candidate(arithmetic_s()); !threaded.rows.empty())
      candidates.push_back(std::move(threaded));
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] int steps(const PublishedRow& row) const {
    const auto epochs = static_cast<int>(published_.number("epochs").value_or(1));
    return epochs * steps_per_epoch(kRows, row.world_size, kBatch);
  }
  static int cores(const PublishedRow& row) { return row.facts["cores"].get<int>(); }
  static int threads(const PublishedRow& row) { return cores(row) / row.world_size; }

  /// Of a step's arithmetic on one core, at the least rate that is assumed.
  [[nodiscard]] double arithmetic_s() const {
    const DeviceModel& processor = device_model(kProcessor);
    const FlopPerSecond core = (kOfPeak / processor.multiprocessors) * processor.peak.at("float32");
    return (kForwardAndBackward * kBatch * model_.forward_flop() / core).count();
  }

  /// \param shared_s compute on one core that a rank's threads divide
  /// \param serial_s on one thread
  [[nodiscard]] Experiment experiment(const PublishedRow& row, const Cluster& cluster, double shared_s,
                                      double serial_s) const {
    Experiment result{&model_,      &cluster, &calibration_,
                      row.strategy, {},       split_compute(shared_s / threads(row)),
                      threads(row)};
    result.times.host_s = serial_s;
    result.training.world_size = row.world_size;
    result.training.batch = kBatch;
    return result;
  }

  static Cluster host_of(const PublishedRow& row) {
    return load_cluster("laptop:cores=" + std::to_string(cores(row)));
  }

  /// Without rows where even no host work takes longer than measured.
  [[nodiscard]] Candidate candidate(double shared_s) const {
    Candidate result;
    const Cluster fitted_host = host_of(fitted_);
    const double step = *fitted_.number("total_time_s") / steps(fitted_);
    const double serial_s = step - replayed_step_s(experiment(fitted_, fitted_host, shared_s, 0.0));
    if (serial_s < 0.0) return result;
    result.choice = {{"work_that_threads_share",
                      shared_s > 0.0 ? "the arithmetic at " + percent_text(kOfPeak) + " of peak" : "none"}};
    result.implausibility = shared_s > 0.0 ? kThreaded : 0.0;
    result.fitted = "host work on one thread of " + to_text(Seconds(serial_s)) + " in a step of " +
                    to_text(Seconds(step)) + ", shared " + to_text(Seconds(shared_s)) + " on one core";
    for (const PublishedRow& row : published_.rows) {
      const Cluster host = host_of(row);
      const Experiment one = experiment(row, host, shared_s, serial_s);
      result.rows.push_back(values(row, replayed_step_s(one)));
      result.alpha_beta.push_back(values(row, alpha_beta_step_s(one)));
    }
    return result;
  }

  [[nodiscard]] RowValues values(const PublishedRow& row, double step) const {
    return {{"total_time_s", {step * steps(row)}}, {"step_time_s", {step}}};
  }

  void say_what_was_assumed(CasePrediction& prediction) const {
    prediction.assumed.push_back(
        std::to_string(static_cast<int>(kRows)) + " rows and batches of " + std::to_string(kBatch) +
        " per rank, as in the GPU runs of the same report; cores are divided among the ranks");
    prediction.assumed.push_back("a step's arithmetic takes " + to_text(Seconds(arithmetic_s())) +
                                 " on one core of a " + kProcessor + " at " + percent_text(kOfPeak) +
                                 " of its peak");
    prediction.assumed.emplace_back(
        "Gloo's endpoints over loopback cost what they cost on the calibrated two-core machine");
    prediction.limits =
        "the rows to be predicted differ from the fit row by their cores alone, and a step bound by one "
        "thread is the same on all of them: copying the fit row is the same forecast";
  }

  const PublishedCase& published_;
  Model model_;
  Calibration calibration_;
  const PublishedRow& fitted_;
};

const Registration<CasePredictor> kSingleThread{
    case_predictors(),
    {.name = "netflix-mlp-cpu-gloo",
     .description = "two ranks of a tiny MLP with DDP over Gloo on one host, by its cores",
     .thing = {[](const PublishedCase& published) { return SingleThreadCase(published).predict(); }},
     .order = 70}};

}  // namespace
}  // namespace stepcast

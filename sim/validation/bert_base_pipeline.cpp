#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/validation/case_prediction.hpp"
#include "sim/validation/fitted_step.hpp"

namespace stepcast {
namespace {

constexpr const char* kCluster = "h100x4-nvlink";

// What the source leaves open, or what it says and the rows contradict.
constexpr std::array kSequences{128, 256, 512};
constexpr std::array kMicroBatches{4, 8, 16, 24, 29, 32, 64};
constexpr std::array kSamples{1, 2, 4, 8, 16, 32, 64};  // of a micro-batch
constexpr int kUndrainedBatches = 32;
constexpr int kStatedMicroBatches = 4;
constexpr int kMostLayers = 200;

constexpr double kStandardDeviations = 2.0;    // by how many the throughput of a fit row may be missed
constexpr double kThroughputTolerance = 0.01;  // where the source gives none
constexpr double kMemoryTolerance = 0.01;
constexpr double kActivationFactor = 1.5;  // between what autograd keeps and what the model's arithmetic says

/// One set of values for what the source does not say.
struct StageAssumptions {
  std::string schedule;  ///< `gpipe`, `1f1b`
  int micro_batches = 1;
  int batches_between_drains = 1;  ///< above 1: the next batch follows before the pipeline is empty
  int samples = 1;                 ///< of a micro-batch
  int sequence = 128;
  Gradients gradients = Gradients::kFreed;

  [[nodiscard]] int batch() const { return micro_batches * samples; }
  [[nodiscard]] std::string in_flight() const {
    return std::to_string(micro_batches) + (batches_between_drains > 1 ? " (steps not drained)" : "");
  }
};

/// The experiment: BERT-base as a pipeline over GPUs of one node.
///
/// block_s, stage_s, activation_scale and process_bytes are fitted on the rows of role `fit`, each by
/// replaying its own Schedule; then every row is replayed with them. Not drained means that a batch follows
/// the one before without waiting for its end: its time is that of a Schedule over 32 batches, its memory
/// that of one batch. Which of the open values are right is judged by the fit rows alone, and by two limits:
/// no GPU computes faster than float32 goes without tensor cores, and autograd keeps within a factor 1.5 of
/// what the model's arithmetic says. The candidate that comes nearest to that arithmetic is the central one.
class PipelineCase {
 public:
  explicit PipelineCase(const PublishedCase& published)
      : published_(published),
        cluster_(load_cluster(kCluster)),
        graphs_(std::make_unique<NcclGraphs>(cluster_)),
        device_(device_model("h100-sxm")) {
    std::set<int> sizes;
    for (std::size_t i = 0; i < published.rows.size(); ++i) {
      check(published.rows[i]);
      if (!published.rows[i].fit) continue;
      fit_rows_.push_back(i);
      sizes.insert(published.rows[i].world_size);
    }
    if (layers() > kMostLayers)
      published.fail("key 'hidden_layers': found " + std::to_string(layers()) + ", expected 1 to " +
                     std::to_string(kMostLayers));
    if (sizes.size() < 2)
      published.fail("key 'rows': found fit rows of " + std::to_string(sizes.size()) +
                     " world sizes, expected two at least: one cannot tell blocks from stages");
    throughput_needed();
  }

  CasePrediction predict() {
    std::vector<Candidate> candidates;
    for (const int sequence : kSequences) {
      model_ = published_model(
          published_, "sequence=" + std::to_string(sequence) + ",layers=" + std::to_string(layers()));
      const double rate = needed_ * 3.0 * model_.forward_flop().count();
      if (rate > device_.peak.at("float32").count()) {
        notes_.push_back("sequence " + std::to_string(sequence) + " is ruled out: the fit rows would take " +
                         to_text(FlopPerSecond(rate)) + " per GPU, float32 without TF32 has " +
                         to_text(device_.peak.at("float32")));
        continue;
      }
      for (StageAssumptions assumptions : all_with(sequence)) {
        if (!try_out(assumptions, candidates)) continue;
        assumptions.gradients = Gradients::kKept;
        try_out(assumptions, candidates);
      }
    }
    if (!knows_memory()) forget_memory(candidates);
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] int layers() const {
    return static_cast<int>(published_.number("hidden_layers").value_or(12));
  }

  [[nodiscard]] bool knows_memory() const {
    return std::any_of(fit_rows_.begin(), fit_rows_.end(), [this](std::size_t i) {
      return published_.rows[i].number("mean_peak_memory_mb").value_or(0.0) > 0.0;
    });
  }

  void check(const PublishedRow& row) const {
    if (row.strategy != "pipeline")
      row.fail("key 'strategy': found '" + row.strategy + "', expected pipeline");
    const auto most = static_cast<int>(cluster_.places().size());
    if (row.world_size < 2 || row.world_size > most)
      row.fail("key 'world_size': found " + std::to_string(row.world_size) + ", expected 2 to " +
               std::to_string(most) + ", the GPUs of cluster " + kCluster);
    if (row.fit && row.number("throughput_samples_per_s").value_or(0.0) <= 0.0)
      row.fail("key 'throughput_samples_per_s' has no value, expected one above 0 in a row of role fit");
  }

  /// Largest throughput per GPU of the fit rows.
  void throughput_needed() {
    for (const std::size_t i : fit_rows_)
      needed_ = std::max(
          needed_, *published_.rows[i].number("throughput_samples_per_s") / published_.rows[i].world_size);
  }

  static std::vector<StageAssumptions> all_with(int sequence) {
    std::vector<StageAssumptions> all;
    for (const int samples : kSamples) {
      for (const char* schedule : {"gpipe", "1f1b"})
        for (const int micro_batches : kMicroBatches)
          all.push_back({schedule, micro_batches, 1, samples, sequence});
      all.push_back({"gpipe", kStatedMicroBatches, kUndrainedBatches, samples, sequence});
    }
    return all;
  }

  /// `even (published label 2-2-2-2)` is `even`.
  static std::string split_of(const PublishedRow& row) {
    const std::string split = row.text("split", "even");
    return split.substr(0, split.find(' '));
  }

  [[nodiscard]] TrainingConfig training(const PublishedRow& row, const StageAssumptions& assumptions) const {
    TrainingConfig config;
    config.world_size = row.world_size;
    config.batch = assumptions.batch();
    config.micro_batches = assumptions.micro_batches;
    config.options = {{"schedule", assumptions.schedule}, {"split", split_of(row)}};
    return config;
  }

  /// \pre `steps_` holds nothing of other assumptions than those of `config` and `gradients`
  const Result& replayed(const PublishedRow& row, const TrainingConfig& config, Gradients gradients,
                         const FittedCosts& costs, int warmup_steps) {
    const std::pair key(&row, config.micro_batches);
    try {
      auto found = steps_.find(key);
      if (found == steps_.end())
        found = steps_.try_emplace(key, model_, *graphs_, "pipeline", config, gradients, device_).first;
      return found->second.replayed(costs, warmup_steps);
    } catch (const UsageError& error) {
      row.fail(error.what());
    }
  }

  /// Times are those of a batch.
  [[nodiscard]] RowValues values(const PublishedRow& row, const StageAssumptions& assumptions,
                                 const FittedCosts& costs, int warmup_steps = 1) {
    TrainingConfig config = training(row, assumptions);
    RowValues result =
        row_values(replayed(row, config, assumptions.gradients, costs, warmup_steps), costs.process_bytes);
    const int batches = assumptions.batches_between_drains;
    if (batches == 1) return result;
    config.batch *= batches;
    config.micro_batches *= batches;
    const RowValues long_run =
        row_values(replayed(row, config, assumptions.gradients, costs, warmup_steps), 0.0);
    for (const char* key : {"throughput_samples_per_s", "stage_time_cv", "bubble_fraction"})
      result[key] = long_run.at(key);
    result["step_time_s"] = {long_run.at("step_time_s").front() / batches};
    return result;
  }

  /// By trial: without a warm-up.
  [[nodiscard]] StepCost cost(const PublishedRow& row, const StageAssumptions& assumptions,
                              const FittedCosts& costs) {
    FittedCosts without = costs;
    without.process_bytes = 0.0;
    const RowValues result = values(row, assumptions, without, 0);
    return {result.at("step_time_s").front(), result.at("mean_peak_memory_mb").front() * kPublishedMegabyte};
  }

  [[nodiscard]] const PublishedRow& fit_row(std::size_t index) const {
    return published_.rows[fit_rows_[index]];
  }

  [[nodiscard]] MeasuredStep measured(const PublishedRow& row, const StageAssumptions& assumptions) const {
    return {assumptions.batch() / *row.number("throughput_samples_per_s"),
            row.number("mean_peak_memory_mb").value_or(0.0) * kPublishedMegabyte};
  }

  /// A block's share of the time if everything were blocks and nobody waited.
  [[nodiscard]] FittedCosts first_guess(const StageAssumptions& assumptions) const {
    FittedCosts guess;
    guess.block_s = assumptions.samples / needed_ / layers();
    guess.stage_s = 0.1 * guess.block_s;
    return guess;
  }

  /// Whether activations of this batch can account for the first fit row's memory, before any fit.
  [[nodiscard]] bool memory_plausible(const StageAssumptions& assumptions) {
    const double target = measured(fit_row(0), assumptions).mean_peak_bytes;
    if (target <= 0.0) return true;
    StageAssumptions drained = assumptions;
    drained.batches_between_drains = 1;
    FittedCosts costs = first_guess(assumptions);
    const double whole = cost(fit_row(0), drained, costs).mean_peak_bytes;
    costs.activation_scale = 0.5;
    const double half = cost(fit_row(0), drained, costs).mean_peak_bytes;
    const double scale = 1.0 + (target - whole) / (2.0 * (whole - half));
    constexpr double kMargin = 1.2;  // the fit shares the memory out otherwise, to process_bytes too
    return scale < kMargin * kActivationFactor && scale > 1.0 / (kMargin * kActivationFactor);
  }

  /// Adds a candidate when the fit rows can be reproduced.
  bool try_out(const StageAssumptions& assumptions, std::vector<Candidate>& candidates) {
    steps_.clear();
    if (!memory_plausible(assumptions)) return false;
    std::vector<MeasuredStep> steps;
    for (std::size_t i = 0; i < fit_rows_.size(); ++i) steps.push_back(measured(fit_row(i), assumptions));
    const FittedCosts costs = fit_costs(
        steps, first_guess(assumptions),
        [&](std::size_t i, const FittedCosts& trial) { return cost(fit_row(i), assumptions, trial); });
    if (!reproduces(assumptions, costs)) return false;
    const double scale = std::abs(std::log(costs.activation_scale));
    if (scale > std::log(kActivationFactor)) return false;
    Candidate candidate;
    candidate.choice = {{"micro_batches", assumptions.in_flight()},
                        {"sequence", std::to_string(assumptions.sequence)},
                        {"batch", std::to_string(assumptions.batch())},
                        {"schedule", assumptions.schedule},
                        {"gradients", to_text(assumptions.gradients)}};
    candidate.implausibility = scale + implausibility(assumptions.gradients);
    candidate.fitted = to_text(costs);
    for (const PublishedRow& row : published_.rows) {
      candidate.rows.push_back(values(row, assumptions, costs));
      candidate.alpha_beta.push_back(
          alpha_beta_values(model_, cluster_, "pipeline", training(row, assumptions), costs, device_));
    }
    candidates.push_back(std::move(candidate));
    return true;
  }

  /// Keeps the smallest misfit of what fails, by what fails, to say so.
  bool reproduces(const StageAssumptions& assumptions, const FittedCosts& costs) {
    double time_error = 0.0;
    double memory_error = 0.0;
    bool good = true;
    for (std::size_t i = 0; i < fit_rows_.size(); ++i) {
      const PublishedRow& row = fit_row(i);
      const StepCost now = cost(row, assumptions, costs);
      const MeasuredStep target = measured(row, assumptions);
      const double time = std::abs(target.step_time_s / now.step_time_s - 1.0);
      time_error = std::max(time_error, time);
      good = good && time <= tolerance(row);
      if (target.mean_peak_bytes <= 0.0) continue;
      const double memory =
          std::abs((now.mean_peak_bytes + costs.process_bytes) / target.mean_peak_bytes - 1.0);
      memory_error = std::max(memory_error, memory);
    }
    if (good) fitting_.insert(assumptions.in_flight());
    if (memory_error <= kMemoryTolerance) fitting_.insert(assumptions.schedule);
    keep_least(misfit_, assumptions.in_flight(), time_error);
    keep_least(misfit_, assumptions.schedule, memory_error);
    return good && memory_error <= kMemoryTolerance;
  }

  static double tolerance(const PublishedRow& row) {
    const double deviation = row.number("stddev").value_or(0.0);
    return deviation > 0.0 ? kStandardDeviations * deviation / *row.number("throughput_samples_per_s")
                           : kThroughputTolerance;
  }

  static void keep_least(std::map<std::string, double>& least, const std::string& what, double error) {
    const auto [found, is_new] = least.emplace(what, error);
    if (!is_new) found->second = std::min(found->second, error);
  }

  /// ` (12 over 4: 3-3-3-3)` of the most stages among which the blocks divide without rest, or "".
  [[nodiscard]] std::string even_example() const {
    int stages = 0;
    for (const PublishedRow& row : published_.rows)
      if (split_of(row) == "even" && layers() % row.world_size == 0)
        stages = std::max(stages, row.world_size);
    if (stages == 0) return "";
    std::string split;
    for (int i = 0; i < stages; ++i) split += (i == 0 ? "" : "-") + std::to_string(layers() / stages);
    return " (" + std::to_string(layers()) + " over " + std::to_string(stages) + ": " + split + ")";
  }

  void say_what_was_assumed(CasePrediction& prediction) const {
    std::vector<std::string>& lines = prediction.assumed;
    lines.insert(lines.end(), notes_.begin(), notes_.end());
    for (const auto& [what, error] : misfit_)
      if (!fitting_.contains(what))
        lines.push_back((what == "gpipe" || what == "1f1b" ? "schedule " : "micro_batches ") + what +
                        " is ruled out: fitted to the fit rows it misses their " +
                        (what == "gpipe" || what == "1f1b" ? "memory" : "throughput") + " by " +
                        percent_text(error) + " at best");
    lines.push_back("a fit row is reproduced when its throughput is within " +
                    std::to_string(static_cast<int>(kStandardDeviations)) +
                    " standard deviations of its source (" + percent_text(kThroughputTolerance) +
                    " where it gives none) and its memory within " + percent_text(kMemoryTolerance));
    lines.push_back("'even' deals " + std::to_string(layers()) +
                    " blocks out as equally as can be, whatever the source calls it" + even_example());
    lines.emplace_back(
        "blocks are equal, backward takes twice the forward, nothing is recomputed; embedding rides with "
        "the first stage and pooler with the last; a fixed time per stage and micro-batch is fitted too");
    lines.emplace_back(
        "parameters and Adam's state stay on their GPU all the time; saved activations and a "
        "constant per process are fitted to the mean peaks of the fit rows; MB is 2^20 bytes");
    lines.push_back(std::string("cluster ") + kCluster +
                    "; a message between two GPUs costs what NCCL's formulas say (v2.30.7)");
  }

  const PublishedCase& published_;
  Cluster cluster_;
  std::unique_ptr<NcclGraphs> graphs_;  ///< shared by all replays
  const DeviceModel& device_;
  Model model_;
  /// Of the assumptions that are tried out, by row and micro-batches (more of them where steps do not drain).
  std::map<std::pair<const PublishedRow*, int>, FittedStep> steps_;
  std::vector<std::size_t> fit_rows_;
  double needed_ = 0.0;
  std::vector<std::string> notes_;
  std::map<std::string, double> misfit_;  ///< the best try of each value
  std::set<std::string> fitting_;         ///< values with which some try reproduces what they are judged by
};

const Registration<CasePredictor> kPipeline{
    case_predictors(),
    {.name = "bert-base-pipeline-h100x4",
     .description = "BERT-base cut into stages over the GPUs of an H100 node",
     .thing = {[](const PublishedCase& published) { return PipelineCase(published).predict(); }},
     .order = 10}};

}  // namespace
}  // namespace stepcast

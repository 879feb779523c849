#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/validation/case_prediction.hpp"
#include "sim/validation/fitted_step.hpp"

namespace stepcast {
namespace {

constexpr const char* kCluster = "h100x4-nvlink";
constexpr std::array kSequences{128, 256, 512};
constexpr double kActivationFactor = 1.5;  // between what autograd keeps and what the model's arithmetic says
constexpr double kTolerance = 0.01;        // of the fit rows' time and memory

/// The experiment: BERT-base data-parallel over the GPUs of one node, with DDP and with FSDP.
///
/// Time of a block and scale of the saved activations are fitted on the rows of role `fit`, by replaying
/// their own Schedules; then every row is replayed with them. What FSDP moves and when is its Schedule, how
/// fast is the cluster's; neither is fitted. Open are the sequence length and what FSDP wraps: each block, or
/// nothing, so that the whole model is one unit that is gathered at once. The sequence must give memory
/// within a factor 1.5 of the model's arithmetic, at a rate that float32 can reach.
class DataParallelCase {
 public:
  explicit DataParallelCase(const PublishedCase& published)
      : published_(published),
        cluster_(load_cluster(kCluster)),
        graphs_(std::make_unique<NcclGraphs>(cluster_)),
        device_(device_model("h100-sxm")) {
    if (!published.number("global_batch"))
      published.fail("key 'global_batch' is missing, expected samples per step");
    for (std::size_t i = 0; i < published.rows.size(); ++i) {
      check(published.rows[i]);
      if (published.rows[i].fit) fit_rows_.push_back(i);
    }
    if (fit_rows_.empty()) published.fail("key 'rows': found no row of role fit, expected one at least");
  }

  CasePrediction predict() {
    std::vector<Candidate> candidates;
    std::vector<std::string> notes;
    for (const int sequence : kSequences) {
      model_ = published_model(published_, "sequence=" + std::to_string(sequence));
      std::string problem;
      for (const char* wrap : {"block", "root"})
        for (const Gradients gradients : {Gradients::kFreed, Gradients::kKept}) {
          wrap_ = wrap;
          gradients_ = gradients;
          steps_.clear();
          const FittedCosts costs = fit();
          const std::string found = implausible(costs);
          Candidate tried = candidate(sequence, costs);
          if (!found.empty() && problem.empty())
            problem = found + "; it would give " + summary(published_, {&tried});
          if (found.empty()) candidates.push_back(std::move(tried));
        }
      if (!problem.empty())
        notes.push_back("sequence " + std::to_string(sequence) + " is ruled out: " + problem);
    }
    if (std::none_of(fit_rows_.begin(), fit_rows_.end(),
                     [this](std::size_t i) { return measured(published_.rows[i]).mean_peak_bytes > 0.0; }))
      forget_memory(candidates);
    CasePrediction prediction = combine(published_, candidates);
    prediction.assumed.insert(prediction.assumed.end(), notes.begin(), notes.end());
    say_what_was_assumed(prediction.assumed);
    return prediction;
  }

 private:
  void check(const PublishedRow& row) const {
    if (row.strategy != "ddp" && row.strategy != "fsdp")
      row.fail("key 'strategy': " + unknown_name("strategy", row.strategy, {"ddp", "fsdp"}));
    const auto most = static_cast<int>(cluster_.places().size());
    const auto batch = static_cast<int>(*published_.number("global_batch"));
    if (row.world_size > most || batch % row.world_size != 0)
      row.fail("key 'world_size': found " + std::to_string(row.world_size) + ", expected 1 to " +
               std::to_string(most) + " and a divisor of the global batch of " + std::to_string(batch));
    if (row.fit && measured(row).step_time_s <= 0.0)
      row.fail(
          "neither step_time_s nor throughput_samples_per_s has a value; expected one in a row of role fit");
    sharding(row);
  }

  [[nodiscard]] MeasuredStep measured(const PublishedRow& row) const {
    MeasuredStep step;
    const double throughput = row.number("throughput_samples_per_s").value_or(0.0);
    step.step_time_s =
        row.number("step_time_s")
            .value_or(throughput > 0.0 ? *published_.number("global_batch") / throughput : 0.0);
    step.mean_peak_bytes =
        row.number("peak_memory_mb_per_rank").value_or(row.number("mean_peak_memory_mb").value_or(0.0)) *
        kPublishedMegabyte;
    return step;
  }

  /// `fsdp full shard` shards fully; `fsdp` alone does too.
  static std::string sharding(const PublishedRow& row) {
    std::string words = row.text("strategy", row.strategy);
    if (words == "fsdp" || row.strategy != "fsdp") return "full_shard";
    words = words.substr(words.find(' ') + 1);
    std::replace(words.begin(), words.end(), ' ', '_');
    const std::vector<std::string> known{"full_shard", "shard_grad_op", "no_shard"};
    if (std::find(known.begin(), known.end(), words) == known.end())
      row.fail("key 'strategy': " + unknown_name("sharding of fsdp", words, known));
    return words;
  }

  [[nodiscard]] TrainingConfig training(const PublishedRow& row) const {
    TrainingConfig config;
    config.world_size = row.world_size;
    config.batch = batch_per_rank(row);
    if (row.strategy == "fsdp") config.options = {{"sharding", sharding(row)}, {"wrap", wrap_}};
    return config;
  }

  /// \pre `steps_` holds nothing of another model, wrapping or kind of gradients
  const Result& replayed(const PublishedRow& row, const FittedCosts& costs) {
    auto found = steps_.find(&row);
    if (found == steps_.end())
      found =
          steps_.try_emplace(&row, model_, *graphs_, row.strategy, training(row), gradients_, device_).first;
    return found->second.replayed(costs);
  }

  [[nodiscard]] int batch_per_rank(const PublishedRow& row) const {
    return static_cast<int>(*published_.number("global_batch")) / row.world_size;
  }

  [[nodiscard]] FittedCosts fit() {
    std::vector<MeasuredStep> steps;
    for (const std::size_t i : fit_rows_) steps.push_back(measured(published_.rows[i]));
    FittedCosts start;
    start.block_s = steps.front().step_time_s / static_cast<double>(model_.segments.size());
    return fit_costs(steps, start, [this](std::size_t i, const FittedCosts& trial) {
      const RowValues values = row_values(replayed(published_.rows[fit_rows_[i]], trial), 0.0);
      return StepCost{values.at("step_time_s").front(),
                      values.at("mean_peak_memory_mb").front() * kPublishedMegabyte};
    });
  }

  /// Why these costs cannot be, or "".
  [[nodiscard]] std::string implausible(const FittedCosts& costs) {
    for (const std::size_t i : fit_rows_) {
      const PublishedRow& row = published_.rows[i];
      const MeasuredStep target = measured(row);
      const double rate = 3.0 * batch_per_rank(row) * model_.forward_flop().count() / target.step_time_s;
      if (rate > device_.peak.at("float32").count())
        return "it takes " + to_text(FlopPerSecond(rate)) + " per GPU, float32 has " +
               to_text(device_.peak.at("float32"));
      const RowValues values = row_values(replayed(row, costs), costs.process_bytes);
      const double time = values.at("step_time_s").front() / target.step_time_s - 1.0;
      const double bytes = values.at("mean_peak_memory_mb").front() * kPublishedMegabyte;
      if (std::abs(time) > kTolerance) return "a fit row's step time is missed by " + percent_text(time);
      if (target.mean_peak_bytes > 0.0 && std::abs(bytes / target.mean_peak_bytes - 1.0) > kTolerance)
        return "a fit row's memory is missed by " + percent_text(bytes / target.mean_peak_bytes - 1.0);
    }
    if (std::abs(std::log(costs.activation_scale)) > std::log(kActivationFactor))
      return "activations would take " + short_number(costs.activation_scale) +
             " times the bytes of the model's arithmetic";
    return "";
  }

  [[nodiscard]] Candidate candidate(int sequence, const FittedCosts& costs) {
    Candidate result;
    result.choice = {
        {"sequence", std::to_string(sequence)}, {"fsdp_wrap", wrap_}, {"gradients", to_text(gradients_)}};
    result.implausibility = std::abs(std::log(costs.activation_scale)) + implausibility(gradients_);
    result.fitted = to_text(costs);
    for (const PublishedRow& row : published_.rows) {
      result.rows.push_back(row_values(replayed(row, costs), costs.process_bytes));
      result.alpha_beta.push_back(
          alpha_beta_values(model_, cluster_, row.strategy, training(row), costs, device_));
    }
    return result;
  }

  static void say_what_was_assumed(std::vector<std::string>& lines) {
    lines.push_back(
        "blocks are equal and backward takes twice the forward; the time of a block and the bytes that "
        "autograd keeps are fitted to the fit rows, within " +
        percent_text(kTolerance));
    lines.push_back("DDP has its buckets (" + resolve_options("ddp", {}).text("bucket-cap") +
                    ") beside the gradients; FSDP prefetches in the backward and has at most two units "
                    "gathered; the host's own time for FSDP is not charged");
    lines.push_back(std::string("MB is 2^20 bytes; cluster ") + kCluster +
                    "; NCCL chooses algorithm, protocol and channels by its own formulas (v2.30.7)");
  }

  const PublishedCase& published_;
  Cluster cluster_;
  std::unique_ptr<NcclGraphs> graphs_;  ///< shared by all replays
  const DeviceModel& device_;
  Model model_;
  std::string wrap_ = "block";
  Gradients gradients_ = Gradients::kFreed;
  std::map<const PublishedRow*, FittedStep> steps_;  ///< of what is tried out
  std::vector<std::size_t> fit_rows_;
};

const Registration<CasePredictor> kDataParallel{
    case_predictors(),
    {.name = "bert-base-ddp-fsdp-h100x4",
     .description = "BERT-base data-parallel over the GPUs of an H100 node, with DDP and FSDP",
     .thing = {[](const PublishedCase& published) { return DataParallelCase(published).predict(); }},
     .order = 20}};

}  // namespace
}  // namespace stepcast

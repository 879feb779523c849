#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"
#include "sim/validation/experiment.hpp"

namespace stepcast {
namespace {

constexpr int kBatch = 64;  // per rank; loss sums and epoch sizes of the source agree
constexpr double kMicro = 1e-6;
constexpr double kLeavesARowOut = 1.0;  // implausibility of what does not use every fit row
constexpr double kChart = 2.0;          // the logs come before the charts

/// What of DDP's additional host time per step grows with the ranks.
enum class Overhead : std::uint8_t { kConstant, kPartly, kGrows };

struct NodeAssumptions {
  Overhead overhead = Overhead::kPartly;
  bool chart = false;  ///< the fit row of DDP takes what the source's chart says, not its logs
};

/// The experiment: a tiny MLP with Adam, a batch of 64 per rank, DDP over P100 at PCIe.
///
/// A step of one rank is some 0.15 ms of kernels in 2.5 ms of host work, which the replay keeps as host time;
/// NCCL's share is microseconds. What a rank's step takes longer under DDP is host time too, and one fit row
/// with several ranks cannot tell how it goes on: the same at every size; in proportion to the other ranks,
/// which share the host; or a constant as large as what FSDP's wrapper costs at one rank (a fit row), and the
/// rest in proportion. Central is the last, which uses every fit row.
class HostBoundCase {
 public:
  explicit HostBoundCase(const PublishedCase& published)
      : published_(published),
        model_(published_model(published, "")),
        cluster_(load_cluster("p100x4-pcie")),
        single_(fit_row(published, "single", "total_time_s")),
        ddp_(fit_row(published, "ddp", "total_time_s")) {
    if (!published.number("rows_in_dataset"))
      published.fail("key 'rows_in_dataset' is missing, expected the samples of an epoch");
    const auto most = static_cast<int>(cluster_.places().size());
    for (const PublishedRow& row : published.rows) {
      require_strategy(row, {"single", "ddp", "fsdp"});
      if (row.world_size > most)
        row.fail("key 'world_size': found " + std::to_string(row.world_size) + ", expected 1 to " +
                 std::to_string(most) + ", the GPUs of cluster p100x4-pcie");
    }
    if (ddp_.world_size < 2) ddp_.fail("key 'world_size': found 1, expected 2 or more in a fit row of ddp");
    for (const PublishedRow& row : published.rows)
      if (row.fit && row.strategy == "fsdp" && row.world_size == 1 &&
          row.number("total_time_s").value_or(0.0) > 0.0)
        wrapped_ = &row;
  }

  CasePrediction predict() const {
    std::vector<Candidate> candidates;
    for (const bool chart : {false, true}) {
      if (chart && !ddp_.number("total_time_s_in_chart")) continue;
      for (const Overhead overhead : {Overhead::kPartly, Overhead::kConstant, Overhead::kGrows})
        if (overhead != Overhead::kPartly || wrapped_ != nullptr)
          candidates.push_back(candidate({overhead, chart}));
    }
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] int steps(const PublishedRow& row) const {
    const auto epochs = static_cast<int>(published_.number("epochs").value_or(1));
    return epochs * steps_per_epoch(*published_.number("rows_in_dataset"), row.world_size, kBatch);
  }
  [[nodiscard]] double step_s(const PublishedRow& row) const {
    return *row.number("total_time_s") / steps(row);
  }

  /// Kernels as the source's profile adds them up, the rest of one rank's step on the host.
  [[nodiscard]] StepParts alone() const {
    const auto kernels = published_.facts.value("kernel_times_us_one_gpu", nlohmann::json::object());
    const double step = step_s(single_);
    const double all = std::min(step, kMicro * kernels.value("all kernels of one step", 0.0));
    const double update = std::min(all, kMicro * kernels.value("multi-tensor optimizer", 0.0));
    StepParts times = split_compute(all - update);
    times.optimizer_s = update;
    times.host_s = step - all;
    return times;
  }

  [[nodiscard]] Experiment experiment(const PublishedRow& row, double more_host_s) const {
    Experiment result{&model_, &cluster_, nullptr, row.strategy, {}, alone()};
    result.times.host_s += more_host_s;
    result.training.world_size = row.world_size;
    result.training.batch = kBatch;
    result.backend = "nccl";
    return result;
  }

  /// What the fit row takes longer than its replay with the host time of `single`.
  [[nodiscard]] double more_host_s(const PublishedRow& row, double step) const {
    return std::max(0.0, step - replayed_step_s(experiment(row, 0.0)));
  }

  [[nodiscard]] double overhead_s(const PublishedRow& row, const NodeAssumptions& assumptions) const {
    const double wrapper = wrapped_ == nullptr ? 0.0 : more_host_s(*wrapped_, step_s(*wrapped_));
    if (row.strategy == "single") return 0.0;
    if (row.strategy == "fsdp" && row.world_size == 1) return wrapper;
    const double step =
        (assumptions.chart ? *ddp_.number("total_time_s_in_chart") : *ddp_.number("total_time_s")) /
        steps(ddp_);
    const double whole = more_host_s(ddp_, step);
    const double others = (row.world_size - 1.0) / (ddp_.world_size - 1.0);
    switch (assumptions.overhead) {
      case Overhead::kConstant:
        return whole;
      case Overhead::kPartly: {
        const double constant = std::min(whole, wrapper);
        return constant + (whole - constant) * others;
      }
      case Overhead::kGrows:
        break;
    }
    return whole * others;
  }

  [[nodiscard]] Candidate candidate(const NodeAssumptions& assumptions) const {
    struct Kind {
      const char* name;
      double implausibility;
    };
    constexpr std::array<Kind, 3> kKinds{
        {{"the same at every size", kLeavesARowOut},
         {"a constant as of FSDP's wrapper at one rank, the rest grows with the other ranks", 0.0},
         {"grows with the other ranks", kLeavesARowOut}}};
    const Kind& kind = kKinds.at(static_cast<std::size_t>(assumptions.overhead));
    Candidate result;
    result.choice = {{"host_overhead_of_ddp", kind.name},
                     {"ddp_x2_time", assumptions.chart ? "the source's chart" : "the source's logs"}};
    result.implausibility = kind.implausibility + (assumptions.chart ? kChart : 0.0);
    if (assumptions.chart)
      result.takes = "the source's chart (" + short_number(*ddp_.number("total_time_s_in_chart")) +
                     " s) for " + row_name(ddp_);
    result.fitted = "host " + to_text(Seconds(alone().host_s)) + " of a step of one rank, " +
                    to_text(Seconds(overhead_s(ddp_, assumptions))) + " more under DDP at " +
                    std::to_string(ddp_.world_size) + " ranks";
    for (const PublishedRow& row : published_.rows) {
      result.rows.push_back(values(row, replayed_step_s(experiment(row, overhead_s(row, assumptions)))));
      result.alpha_beta.push_back(values(row, alpha_beta_step_s(experiment(row, 0.0))));
    }
    return result;
  }

  [[nodiscard]] RowValues values(const PublishedRow& row, double step) const {
    return {{"total_time_s", {step * steps(row)}}, {"step_time_s", {step}}};
  }

  /// The longest and the shortest measured step of ddp by world size, where it is not monotone; else "".
  [[nodiscard]] std::string turning() const {
    std::vector<std::pair<int, double>> measured;
    for (const PublishedRow& row : published_.rows)
      if (row.strategy == "ddp" && row.number("total_time_s").value_or(0.0) > 0.0)
        measured.emplace_back(row.world_size, step_s(row));
    std::sort(measured.begin(), measured.end());
    bool rises = false;
    bool falls = false;
    std::string text;
    for (std::size_t i = 0; i < measured.size(); ++i) {
      if (i > 0) (measured[i].second > measured[i - 1].second ? rises : falls) = true;
      text += (i == 0 ? "" : ", ") + to_text(Seconds(measured[i].second)) + " at " +
              std::to_string(measured[i].first);
    }
    return rises && falls ? text : "";
  }

  void say_what_was_assumed(CasePrediction& prediction) const {
    prediction.assumed.push_back("steps of a rank: its share of the rows over batches of " +
                                 std::to_string(kBatch) +
                                 ", rounded up; the fit rows of several jobs count with their mean");
    const double sent = replay_experiment(experiment(ddp_, 0.0)).breakdown.front().exposed_communication_s;
    prediction.assumed.push_back(
        "kernels " + to_text(Seconds(alone().sum() - alone().host_s)) + " of a step of " +
        to_text(Seconds(step_s(single_))) + "; the rest is the host and stays with it; the gradients (" +
        to_text(model_.parameter_bytes()) + ") take " + to_text(Seconds(sent)) + " at " +
        std::to_string(ddp_.world_size) + " ranks over PCIe, so that no link decides anything");
    prediction.limits =
        "what DDP adds is host time, of which one fit row with several ranks does not tell how it changes "
        "with their number";
    const std::string turns = turning();
    if (!turns.empty())
      prediction.limits +=
          "; the measured step times of ddp turn round (" + turns +
          " ranks), which no model of the hardware explains: the same GPUs, links and host work per rank, "
          "more ranks";
  }

  const PublishedCase& published_;
  Model model_;
  Cluster cluster_;
  const PublishedRow& single_;
  const PublishedRow& ddp_;
  const PublishedRow* wrapped_ = nullptr;  ///< FSDP's wrapper at one rank; null where no fit row has it
};

const Registration<CasePredictor> kHostBound{
    case_predictors(),
    {.name = "netflix-mlp-p100",
     .description = "a tiny MLP with DDP over P100 at PCIe, bound by the host",
     .thing = {[](const PublishedCase& published) { return HostBoundCase(published).predict(); }},
     .order = 60}};

}  // namespace
}  // namespace stepcast

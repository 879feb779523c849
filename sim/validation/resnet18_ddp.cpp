#include <algorithm>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"
#include "sim/validation/experiment.hpp"

namespace stepcast {
namespace {

constexpr BytesPerSecond kStated{1.0e9};  // what the source's author estimates of the interconnect
constexpr BytesPerSecond kFast{12.0e9};   // PCIe generation 3 with 16 lanes, as NCCL counts it
constexpr Seconds kLatency{5e-6};         // of a message between two GPUs through the host
constexpr double kOtherLink = 1.0;        // implausibility of another link than the stated one
constexpr double kGrowingHost = 0.5;      // and of host work that grows with the ranks

/// What the step at several ranks loses against one rank.
struct SharedHostAssumptions {
  std::string link;
  BytesPerSecond bandwidth;
  double host_s = 0.0;  ///< at the fit row's world size, beside what communication exposes
  bool host_grows = false;
};

/// The experiment: ResNet-18 with DDP over the GPUs of one machine, a batch per rank.
///
/// Forward, backward and optimizer are the source's breakdown of one rank. What the fit row of several ranks
/// takes longer is communication that the backward does not hide, or the host. Three links: the bandwidth
/// that the author estimates; the one at which the replay of `ddp` exposes all of the loss; and PCIe, which
/// exposes almost nothing. What a link does not explain is host time, the same at every size or in proportion
/// to the other ranks.
class ResnetCase {
 public:
  explicit ResnetCase(const PublishedCase& published)
      : published_(published),
        model_(published_model(published, "")),
        single_(fit_row(published, "single", "epoch_time_s")),
        ddp_(fit_row(published, "ddp", "epoch_time_s")),
        batch_(static_cast<int>(published.number("batch_per_rank").value_or(128))) {
    for (const PublishedRow& row : published.rows) require_strategy(row, {"single", "all_reduce", "ddp"});
    if (ddp_.world_size < 2)
      ddp_.fail("key 'world_size': found 1, expected 2 or more in a row to fit a link on");
    alone_ = single_times();
  }

  CasePrediction predict() {
    std::vector<Candidate> candidates;
    for (const SharedHostAssumptions& assumptions : links())
      for (const bool grows : {false, true}) {
        if (grows && assumptions.host_s <= 0.0) continue;
        SharedHostAssumptions trial = assumptions;
        trial.host_grows = grows;
        candidates.push_back(candidate(trial));
      }
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] int steps(const PublishedRow& row) const {
    const int dealt = steps_per_epoch(kCifarSamples, row.world_size, batch_);
    return row.fit ? static_cast<int>(row.number("iterations_per_epoch").value_or(dealt)) : dealt;
  }
  [[nodiscard]] double step_s(const PublishedRow& row) const {
    return *row.number("epoch_time_s") / steps(row);
  }

  /// The breakdown, and as host time what it leaves of the step.
  [[nodiscard]] StepParts single_times() const {
    const auto breakdown = published_.facts.value("breakdown_single_s", nlohmann::json::object());
    const double step = step_s(single_);
    StepParts times = split_compute(step);
    if (breakdown.contains("forward") && breakdown.contains("backward")) {
      times.forward_s = breakdown["forward"].get<double>();
      times.backward_s = breakdown["backward"].get<double>();
      times.optimizer_s = breakdown.value("optimizer", 0.0);
    }
    const double rest = step - times.sum();
    if (rest < 0.0) {  // rounded up: every phase gives its part
      const double factor = step / times.sum();
      return {0.0, factor * times.forward_s, factor * times.backward_s, factor * times.optimizer_s, 0.0};
    }
    times.host_s = rest;
    return times;
  }

  [[nodiscard]] double replayed(const PublishedRow& row, const SharedHostAssumptions& assumptions) const {
    const Cluster links = cluster(assumptions);
    return replayed_step_s(experiment(row, assumptions, links));
  }

  [[nodiscard]] Cluster cluster(const SharedHostAssumptions& assumptions) const {
    int ranks = 1;
    for (const PublishedRow& row : published_.rows) ranks = std::max(ranks, row.world_size);
    return switch_of(ranks, 1, assumptions.bandwidth, kLatency);
  }

  [[nodiscard]] Experiment experiment(const PublishedRow& row, const SharedHostAssumptions& assumptions,
                                      const Cluster& links) const {
    Experiment result{&model_, &links, nullptr, row.strategy, {}, alone_};
    result.training.world_size = row.world_size;
    result.training.batch = batch_;
    if (row.world_size > 1) {
      const double others = (row.world_size - 1.0) / (ddp_.world_size - 1.0);
      result.times.host_s += assumptions.host_s * (assumptions.host_grows ? others : 1.0);
    }
    return result;
  }

  [[nodiscard]] std::vector<SharedHostAssumptions> links() const {
    std::vector<SharedHostAssumptions> all;
    const double target = step_s(ddp_);
    for (const auto& [name, bandwidth] : {std::pair{"1.0 GB/s as its author estimates", kStated},
                                          std::pair{"12 GB/s as PCIe generation 3", kFast}}) {
      SharedHostAssumptions assumptions{name, bandwidth};
      assumptions.host_s = target - replayed(ddp_, assumptions);
      if (assumptions.host_s >= 0.0) all.push_back(assumptions);
    }
    const auto fitted = fit_bandwidth(target, kStated, [this](BytesPerSecond bandwidth) {
      return replayed(ddp_, {"", bandwidth});
    });
    if (fitted) all.push_back({"so slow that all of the loss is communication", *fitted});
    return all;
  }

  [[nodiscard]] Candidate candidate(const SharedHostAssumptions& assumptions) const {
    Candidate result;
    result.choice = {
        {"link", assumptions.link},
        {"host_loss", assumptions.host_grows ? "grows with the other ranks" : "the same at every size"}};
    result.implausibility =
        (assumptions.bandwidth == kStated ? 0.0 : kOtherLink) + (assumptions.host_grows ? kGrowingHost : 0.0);
    result.fitted = "links of " + to_text(assumptions.bandwidth) + ", host time of " +
                    to_text(Seconds(assumptions.host_s)) + " a step at " + std::to_string(ddp_.world_size) +
                    " ranks";
    const Cluster links = cluster(assumptions);
    for (const PublishedRow& row : published_.rows) {
      const Experiment one = experiment(row, assumptions, links);
      result.rows.push_back(values(row, replayed_step_s(one)));
      Experiment alone = one;
      alone.times = alone_;
      result.alpha_beta.push_back(values(row, alpha_beta_step_s(alone)));
    }
    return result;
  }

  [[nodiscard]] RowValues values(const PublishedRow& row, double step) const {
    const double epoch = step * steps(row);
    const double speedup = *single_.number("epoch_time_s") / epoch;
    return {{"epoch_time_s", {epoch}},
            {"step_time_s", {step}},
            {"speedup", {speedup}},
            {"efficiency", {speedup / row.world_size}}};
  }

  void say_what_was_assumed(CasePrediction& prediction) const {
    prediction.assumed.push_back("a rank's steps in an epoch: its share of " +
                                 std::to_string(static_cast<int>(kCifarSamples)) +
                                 " samples over batches of " + std::to_string(batch_) + ", rounded up");
    prediction.assumed.push_back(
        "GPUs at one switch, every link with the same bandwidth in both directions, " + to_text(kLatency) +
        " from GPU to GPU; one all-reduce at a time, rings; DDP's buckets of " +
        resolve_options("ddp", {}).text("bucket-cap"));
    prediction.assumed.emplace_back(
        "layers share forward and backward by their flop; a gradient is ready at the end of its residual "
        "block");
    prediction.limits =
        "one fit row of several ranks cannot tell how much of its loss is communication and how much is the "
        "host, and the source contradicts itself about the link";
  }

  const PublishedCase& published_;
  Model model_;
  const PublishedRow& single_;
  const PublishedRow& ddp_;
  int batch_;
  StepParts alone_;
};

const Registration<CasePredictor> kDataParallel{
    case_predictors(),
    {.name = "resnet18-cifar10-ddp",
     .description = "ResNet-18 with DDP over the GPUs of one machine",
     .thing = {[](const PublishedCase& published) { return ResnetCase(published).predict(); }},
     .order = 40}};

}  // namespace
}  // namespace stepcast

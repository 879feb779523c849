#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "sim/validation/case_prediction.hpp"
#include "sim/validation/experiment.hpp"

namespace stepcast {
namespace {

constexpr std::array kMessageLatencies{50e-6, 200e-6, 1e-3};  // s; one message of Gloo over kernel TCP
constexpr double kUsualLatency = 200e-6;
constexpr int kCores = 8;                // of a host; not stated
constexpr double kUnstatedReason = 0.1;  // implausibility of each thing that a reading takes for granted
constexpr double kConstantInput = 0.3;   // of input that costs the same for 64 samples as for 256

/// What the steps of a distributed run's ranks are, where they contradict each other.
struct Reading {
  std::string name;
  double step_s = 0.0;      ///< of the synchronous run
  double profiled_s = 0.0;  ///< step that the profile gives the share of compute of
  double reported_s = 0.0;  ///< that the other ranks report more than `step_s`
  int unstated = 0;         ///< things that it takes for granted
};

struct ClusterAssumptions {
  Reading reading;
  double message_latency_s = kUsualLatency;
  bool input_scales = true;  ///< with the batch
};

/// The experiment: VGG-11 over four hosts at one switch, gradients tensor by tensor over Gloo.
///
/// Compute of a rank's 64 samples is the profile's share of the gather_scatter step; what `single` spends
/// outside compute either scales with the batch or not. The bandwidth of the links is the one at which the
/// gather_scatter Schedule, replayed with its in-cast at rank 0, takes as long as measured.
///
/// Rank 0 of the fit row reports a shorter step than its peers, though synchronous ranks cannot differ. Three
/// readings:
///
///     the longer one is the step, and the profile is of it
///     the longer one is the step, and the profile is of rank 0's
///     rank 0's is the step, and its peers report a constant more
///
/// Central is the one that needs the same compute per sample for 64 samples as for 256, with the fewest
/// unstated reasons.
class GlooCase {
 public:
  explicit GlooCase(const PublishedCase& published)
      : published_(published),
        model_(published_model(published, "")),
        calibration_(two_core_calibration()),
        single_(fit_row(published, "single", "step_time_s")),
        gathered_(fit_row(published, "gather_scatter", "step_time_s")) {
    calibration_.sharing = {};
    whole_batch_ = static_cast<int>(published.number("global_batch").value_or(0.0));
    if (whole_batch_ < 1) published.fail("key 'global_batch' is missing, expected samples per step");
    for (const PublishedRow& row : published.rows) {
      require_strategy(row, {"single", "gather_scatter", "all_reduce", "ddp"});
      if (whole_batch_ % row.world_size != 0)
        row.fail("key 'world_size': found " + std::to_string(row.world_size) + ", expected a divisor of " +
                 std::to_string(whole_batch_));
    }
    single_compute_s_ = share("single_compute_fraction") * *single_.measured("step_time_s");
  }

  CasePrediction predict() {
    std::vector<Candidate> candidates;
    for (const Reading& reading : readings())
      for (const double latency : kMessageLatencies)
        for (const bool scales : {true, false}) try_out({reading, latency, scales}, candidates);
    CasePrediction prediction = combine(published_, candidates);
    say_what_was_assumed(prediction);
    return prediction;
  }

 private:
  [[nodiscard]] double share(const char* key) const {
    if (!published_.facts.contains("profile") || !published_.facts["profile"].contains(key) ||
        !published_.facts["profile"][key].is_number())
      published_.fail(std::string("key 'profile': found no number '") + key +
                      "', expected the share of compute in a step, from 0 to 1");
    return published_.facts["profile"][key].get<double>();
  }

  [[nodiscard]] std::vector<Reading> readings() const {
    const double usual = *gathered_.measured("step_time_s");
    std::vector<Reading> all{{"step of the ranks that agree, profiled there", usual, usual, 0.0, 0}};
    const std::vector<int> odd = gathered_.ranks_left_out("step_time_s");
    if (odd.empty()) return all;
    const double other = gathered_.facts["step_time_s"][static_cast<std::size_t>(odd.front())].get<double>();
    all.push_back({"step of the ranks that agree, profiled on the other", usual, other, 0.0, 2});
    if (other < usual)
      all.push_back({"step of the other rank, those that agree report a constant more", other, other,
                     usual - other, 1});
    return all;
  }

  [[nodiscard]] StepParts times(const PublishedRow& row, const ClusterAssumptions& assumptions) const {
    const double outside = *single_.measured("step_time_s") - single_compute_s_;
    const bool whole = row.world_size == 1;
    StepParts result =
        split_compute(whole ? single_compute_s_
                            : share("gather_scatter_compute_fraction") * assumptions.reading.profiled_s);
    result.input_s = whole || !assumptions.input_scales ? outside : outside / row.world_size;
    return result;
  }

  [[nodiscard]] Experiment experiment(const PublishedRow& row, const ClusterAssumptions& assumptions,
                                      const Cluster& cluster) const {
    Experiment result{&model_, &cluster, &calibration_, row.strategy, {}, times(row, assumptions), kCores};
    result.training.world_size = row.world_size;
    result.training.batch = whole_batch_ / row.world_size;
    return result;
  }

  [[nodiscard]] int hosts() const {
    int most = 1;
    for (const PublishedRow& row : published_.rows) most = std::max(most, row.world_size);
    return most;
  }

  /// Links beneath Gloo's endpoints, so that one small message takes the assumed time from end to end.
  [[nodiscard]] Cluster cluster(BytesPerSecond bandwidth, double message_latency_s) const {
    return switch_of(hosts(), kCores, bandwidth, wire_latency(calibration_, Seconds(message_latency_s)));
  }

  void try_out(const ClusterAssumptions& assumptions, std::vector<Candidate>& candidates) const {
    const double idle = assumptions.reading.step_s - times(gathered_, assumptions).sum();
    if (idle <= 0.0) return;
    const Bytes moved = 2.0 * (gathered_.world_size - 1) * model_.parameter_bytes();
    const auto bandwidth =
        fit_bandwidth(assumptions.reading.step_s, moved / Seconds(idle), [&](BytesPerSecond trial) {
          const Cluster links = cluster(trial, assumptions.message_latency_s);
          return replayed_step_s(experiment(gathered_, assumptions, links));
        });
    if (bandwidth) candidates.push_back(candidate(assumptions, *bandwidth));
  }

  [[nodiscard]] Candidate candidate(const ClusterAssumptions& assumptions, BytesPerSecond bandwidth) const {
    const double per_rank =
        times(gathered_, assumptions).forward_s + times(gathered_, assumptions).backward_s;
    const double ratio = per_rank * gathered_.world_size / single_compute_s_;
    Candidate result;
    result.choice = {
        {"step_reading", assumptions.reading.name},
        {"message_latency", to_text(Seconds(assumptions.message_latency_s))},
        {"input", assumptions.input_scales ? "scales with the batch" : "costs the same for any batch"}};
    result.implausibility =
        std::abs(std::log(ratio)) + kUnstatedReason * assumptions.reading.unstated +
        kUnstatedReason * std::abs(std::log(assumptions.message_latency_s / kUsualLatency)) +
        (assumptions.input_scales ? 0.0 : kConstantInput);
    result.fitted = "links of " + to_text(bandwidth) + "; compute of a rank " + to_text(Seconds(per_rank)) +
                    ", per sample " + short_number(ratio) + " of what one node takes";
    const Cluster links = cluster(bandwidth, assumptions.message_latency_s);
    for (const PublishedRow& row : published_.rows) {
      const Experiment one = experiment(row, assumptions, links);
      const double more = row.world_size > 1 ? assumptions.reading.reported_s : 0.0;
      result.rows.push_back({{"step_time_s", {replayed_step_s(one) + more}}});
      result.alpha_beta.push_back({{"step_time_s", {alpha_beta_step_s(one) + more}}});
    }
    return result;
  }

  /// ` (of the fit row not rank 0)`, or "" where all ranks agree.
  [[nodiscard]] std::string left_out() const {
    std::string ranks;
    for (const int rank : gathered_.ranks_left_out("step_time_s"))
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    return ranks.empty() ? "" : " (of the fit row not rank " + ranks + ")";
  }

  /// How the time of a message divides itself into endpoints and links.
  [[nodiscard]] std::string message_parts() const {
    const Seconds endpoints = endpoint_latency(calibration_);
    std::string text =
        "the latency of a message is that of a small one whose receive is posted with it, of which the "
        "endpoints take " +
        to_text(endpoints);
    for (const double latency : kMessageLatencies)
      if (Seconds(latency) < endpoints)
        text += "; of " + to_text(Seconds(latency)) +
                " nothing is left for the links, whose latency is 0 there, so that a message takes " +
                to_text(endpoints);
    return text;
  }

  void say_what_was_assumed(CasePrediction& prediction) const {
    prediction.assumed.push_back("the measured step of a row is the mean of the ranks that agree within " +
                                 percent_text(kRanksAgree) + left_out() +
                                 ", which is also what the errors are of");
    prediction.assumed.push_back(
        std::to_string(hosts()) + " hosts of " + std::to_string(kCores) +
        " cores at one switch, all cores compute; Gloo's endpoints, additions and copies cost what they cost "
        "on the calibrated two-core machine");
    prediction.assumed.push_back(message_parts());
    prediction.assumed.emplace_back(
        "backward takes twice the forward; layers share the compute by their flop; the optimizer is in the "
        "rest");
    prediction.limits = "neither the speed of the links nor the compute of a rank's batch is stated";
    const std::vector<int> odd = gathered_.ranks_left_out("step_time_s");
    if (odd.empty()) return;
    const double other = gathered_.facts["step_time_s"][static_cast<std::size_t>(odd.front())].get<double>();
    prediction.limits += ", and the ranks of the fit row report step times that differ by " +
                         percent_text(std::abs(other / *gathered_.measured("step_time_s") - 1.0));
  }

  const PublishedCase& published_;
  Model model_;
  Calibration calibration_;
  const PublishedRow& single_;
  const PublishedRow& gathered_;
  int whole_batch_ = 0;
  double single_compute_s_ = 0.0;
};

const Registration<CasePredictor> kGloo{
    case_predictors(),
    {.name = "vgg11-cifar10-gloo-4-nodes",
     .description = "VGG-11 over four CPU hosts with Gloo, tensor by tensor and bucketed",
     .thing = {[](const PublishedCase& published) { return GlooCase(published).predict(); }},
     .order = 30}};

}  // namespace
}  // namespace stepcast

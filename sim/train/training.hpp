#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"
#include "records/result.hpp"
#include "sim/strategies/options.hpp"
#include "sim/train/failures.hpp"
#include "sim/train/timeline.hpp"
#include "topologies/cluster.hpp"

/// A whole training: from the forecast of a step to days, device-hours, cost and energy.
namespace stepcast {

/// What surrounds the ranks, of the cluster's first host.
struct HostFacts {
  /// Devices of a training, with those of spare hosts. \param spares below 0: none
  [[nodiscard]] int with_spares(int ranks, int spares) const { return ranks + std::max(0, spares) * devices; }

  int devices = 1;
  int at_switch = 0;            ///< hosts at the largest leaf switch; 0: no switches
  int switches = 0;             ///< leaf switches of a host: one for each of eight rails
  BytesPerSecond to_memory{};   ///< from all devices of a host to its memory; 0: unknown
  BytesPerSecond to_network{};  ///< of a host's adapters; 0: unknown
  Bytes memory{};               ///< 0: unknown
  Storage storage{};
};

/// Facts of a forecast or a measured run.
struct TrainingFacts {
  std::string text;  ///< describes the forecast
  double step_s = 0.0;
  int ranks = 1;
  double samples_per_step = 0.0, tokens_per_sample = 0.0;  ///< 0: unknown
  Bytes state{};        ///< parameters, master copy and optimizer states of the whole model; 0: unknown
  int replicas = 1;     ///< parts of the job that train on different samples; a lost host stops one of them
  int full_copies = 1;  ///< parts with the whole state each; a lost host stops one of them
  Watts power{};        ///< of a device; 0: unknown
  std::string cluster{};
  HostFacts host{};
  std::vector<std::string> warnings{};  ///< notes of the forecast that the step does not fit

  [[nodiscard]] int hosts() const { return (ranks + host.devices - 1) / host.devices; }
};

/// Parameters, master copy and optimizer states of all ranks together, each once. A rank's part of a model
/// counts as the whole. 14 B per parameter with bf16 and Adam: 920 GiB for Llama 3 70B, as
/// swiss-ai/Megatron-LM states.
Bytes state_bytes(const std::string& model, const std::string& precision);
HostFacts host_facts(const Cluster& cluster);
TrainingFacts training_facts(const Result& result);

struct CheckpointRequest {
  std::string method = "async";    ///< `none`, `blocking`, `async`, `best`
  std::string target = "storage";  ///< `storage`, `host`, `neighbour`
  Bytes size{};                    ///< 0: the model's state
  BytesPerSecond storage_rate{};   ///< of all hosts together; 0: the cluster's
  /// Stop of an asynchronous checkpoint in addition to the copy to host memory: planning and
  /// synchronisation. torchtitan, Llama 3 70B on 1,856 H200: 0.78 s (PyTorch blog 2025-04-30).
  Seconds stop{0.78};
  /// Fraction of the rate of training lost during a write. The same source: 372 instead of 700 tokens/s.
  double slowdown = 1.0 - 372.0 / 700.0;
  std::string interval = "best";  ///< steps, time, or `best`
};

struct TrainingRequest {
  double tokens = 0.0, steps = 0.0, epochs = 0.0, epoch_samples = 0.0;  ///< 0: not given
  std::string failures;
  CheckpointRequest checkpoint{};
  std::vector<std::pair<std::string, std::string>> recovery{};  ///< parts that replace those of the failures
  int spares = -1;                                              ///< hosts; -1: there is always one
  Seconds repair{0};  ///< of components whose file has none; 0 s: unknown
  Elasticity elasticity = Elasticity::kNone;
  double per_device_hour = 0.0;  ///< in any currency; 0: unknown
  int trainings = 0;             ///< 0: 1,000, fewer if they have over 10^6 events
  unsigned seed = 1;
};

/// One option of a simulated training; commands/simulation.yaml has its default and help.
struct TrainOption {
  std::string name;  ///< without dashes
  /// Stores a given value. \throws InputError
  std::function<void(TrainingRequest&, const std::string&)> set = nullptr;
  /// Of the command `train` alone: studies and `plan` have another option or key for it.
  bool only_train = false;
  bool simulates = false;  ///< without effect on `plan`, which compares in closed form
};
/// Options of `train`, of studies and of `plan`.
const std::vector<TrainOption>& train_options();
/// \throws UsageError that names the option, for a value that is not valid
TrainingRequest training_request(const OptionTexts& options);

/// The training in numbers, with what was assumed.
struct TrainingPlan {
  TrainingCase training{};
  FailureSet failures{};
  std::vector<double> events_per_day{};  ///< by component
  CheckpointRequest checkpoint{};        ///< resolved
  bool best_interval = false;            ///< the interval was not given
  std::vector<std::string> assumed{};
};
/// Returns the useful rate. \throws InputError for a training without progress
double checked_progress(double rate);
/// \throws UsageError, InputError for a question that has no answer, with the reason
TrainingPlan plan_training(const TrainingFacts& facts, const TrainingRequest& request);

struct TrainingOutcome {
  TrainingFacts facts;
  TrainingRequest request;
  TrainingPlan plan;
  std::vector<TrainingRun> runs;
  Renewal renewal;

  [[nodiscard]] double wall_s(double q) const { return quantile(transformed(runs, &TrainingRun::wall_s), q); }
  [[nodiscard]] double mean(const std::function<double(const TrainingRun&)>& value) const {
    return sum_of(runs, value) / static_cast<double>(runs.size());
  }
  [[nodiscard]] double mean_wall_s() const { return mean(&TrainingRun::wall_s); }
  [[nodiscard]] double part_s(TrainingPart part) const {
    return mean([&](const TrainingRun& run) { return run.parts[static_cast<std::size_t>(part)]; });
  }
  /// Useful over all time.
  [[nodiscard]] double effective() const { return plan.training.useful_s() / mean_wall_s(); }
  /// With spares.
  [[nodiscard]] double device_hours(double wall) const {
    return facts.host.with_spares(facts.ranks, request.spares) * wall / kHour;
  }
  /// At rated power; 0: unknown.
  [[nodiscard]] double energy_kwh(double wall) const {
    return facts.ranks * facts.power.count() * wall / 3.6e6;
  }
  [[nodiscard]] double failures_per_day() const {
    return sum_of(plan.training.interruptions,
                  [](const Interruption& one) { return one.planned ? 0.0 : one.rate * kDay; });
  }
};

/// Plans and simulates.
TrainingOutcome train(const TrainingFacts& facts, const TrainingRequest& request);

/// Text for people, and the content of a file of kTrainingSchema.
std::string training_text(const TrainingOutcome& outcome);
inline constexpr const char* kTrainingSchema = "stepcast.training/1";
nlohmann::json training_json(const TrainingOutcome& outcome);

}  // namespace stepcast

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/mesh.hpp"
#include "sim/strategies/offload.hpp"
#include "sim/strategies/options.hpp"

/// A strategy turns a model and a training configuration into a Schedule. Each has one file. `predict`,
/// `run`, `help` and the tests in tests/strategies find a new file without further changes.
namespace stepcast {

/// Value of --recompute: units of whole blocks, or a part of each.
struct Recomputation {
  /// Blocks per recomputation unit (segments, in a model without repeated blocks): only the input of a unit
  /// is saved, and its forwards are rerun before its backwards. 0: no unit.
  int blocks = 0;
  RecomputedPart part = RecomputedPart::kNothing;  ///< the loaded model contains it
  int first = 0;  ///< recomputed blocks of each run of adjacent ones on a rank; 0: all
  int each = 1;   ///< every this many-th block is recomputed
  /// True if some blocks are recomputed and others are not.
  [[nodiscard]] bool partial() const { return first > 0 || each > 1; }
  auto operator<=>(const Recomputation&) const = default;
};
/// `none`, `full` (1 block), `every:N`, `first:N`, `each:N`, `selective`, `per-op` or modules.
/// \throws UsageError for anything else
Recomputation parse_recompute(const std::string& text);
std::string to_text(const Recomputation& recomputation);

/// Configuration that every strategy has; `options` contains those of one strategy.
struct TrainingConfig {
  int world_size = 1;
  int batch = 1;          ///< samples per rank; of a pipeline: per pipeline
  int micro_batches = 1;  ///< equal parts of the batch, whose gradients are accumulated
  /// As given. Strategies receive the resolved one, and build for its ranks without `tensor`, in standard
  /// order. The loaded model has the same `tensor`, `context` and `expert`.
  Mesh mesh{};
  Recomputation recompute{};
  Offload offload{};
  OptionTexts options{};  ///< as given; missing ones have their defaults
  /// Measured forward plus backward time of every segment, for strategies that cut the model by it.
  std::vector<double> segment_times{};
};

struct Strategy {
  /// Builds the Schedule. Settles options that depend on model and ranks, and drops those without effect.
  /// \pre config.world_size >= 1, config.batch >= 1, micro_batches divides batch
  std::function<Schedule(const Model&, const TrainingConfig&, StrategyOptions&)> build;
  /// Options besides those that commands/strategies.yaml lists for the strategy.
  std::vector<StrategyOption> options{};
  /// False for data movement without a training step: the model is empty and the batch ignored.
  bool trains = true;
  /// Valid in --mesh.
  std::vector<std::string> dimensions{"data", "context", "tensor", "expert", "expert_tensor"};
  /// The first one that a mesh lacks has the ranks that are left.
  std::vector<std::string> open{"data"};
};

Registry<Strategy>& strategies();

/// Option with all strategies that have it.
struct KnownOption {
  StrategyOption option;
  std::vector<std::string> strategies;
};
/// Option of every strategy that trains.
inline constexpr const char* kMeshOption = "mesh";

/// Reads the value of --mesh for a strategy. \throws UsageError for dimensions that it does not support, and
/// as Mesh::parse()
Mesh mesh_of(const std::string& strategy, const std::string& text);
/// Moves the option `mesh` to `config.mesh`. \throws UsageError as mesh_of()
void take_mesh(const std::string& strategy, TrainingConfig& config);
/// True if a strategy has this mesh without --mesh.
bool is_default(const std::string& strategy, const Mesh& resolved);

/// Options of a strategy, in declaration order. \throws UsageError for an unknown strategy
const std::vector<StrategyOption>& options_of(const std::string& strategy);
/// Every option of all strategies once, in declaration order.
std::vector<KnownOption> known_options();

/// Values of all options of a strategy. \throws UsageError for an unknown strategy, an option that it lacks
/// (the message names the strategies that have it), or an invalid value
StrategyOptions resolve_options(const std::string& strategy, const OptionTexts& given);

/// Builds a Schedule by name and validates it; it contains the resolved options. \throws UsageError for an
/// unknown name, a world size or batch below 1, micro-batches that do not divide the batch, and as
/// resolve_options()
Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config);

/// Options of `names` that change nothing in this Schedule, in words: those that its strategy dropped, and
/// choices about what it does not do. "" if there are none. \param algorithms of --algorithm
std::string options_without_effect(const std::vector<std::string>& names, const TrainingConfig& training,
                                   const Execution& execution,
                                   const std::map<CollectiveKind, std::string>& algorithms,
                                   const Schedule& schedule);

/// Training configuration from options by name without dashes; options that are not of the training are
/// skipped. World size and batch are the caller's. \throws UsageError if `strategy` is missing, and as
/// resolve_options(), before any file is read
TrainingConfig training_config(const OptionTexts& options);

}  // namespace stepcast

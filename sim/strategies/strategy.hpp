#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/options.hpp"

/// A strategy turns a model and a training configuration into a Schedule. One file each; a new file is at
/// once predictable, runnable, listed by `help` and held to the laws in tests/strategies.
namespace stepcast {

/// Configuration that every strategy has; `options` contains those of one strategy.
struct TrainingConfig {
  int world_size = 1;
  int batch = 1;          ///< samples per rank; of a pipeline: per pipeline
  int micro_batches = 1;  ///< equal parts of the batch, whose gradients are accumulated
  int tensor = 1;         ///< ranks that share the model's layers; whoever loads the model gives it as many
  int context = 1;        ///< ranks that have parts of its sequences; likewise
  int expert = 1;         ///< ranks that have parts of its experts; likewise
  int data = 0;           ///< batches at once, where that was said: must be what is left of the ranks
  int shard = 0;  ///< ranks that have one copy of the model in shards, of a strategy that has shards; 0: all
  /// Blocks (or segments, of a model that repeats none) of which only the first one's input is kept, and
  /// whose forwards run again before their backwards; 0: all keep what their backward needs.
  int recompute = 0;
  RecomputedPart recomputed_part = RecomputedPart::kNothing;  ///< whoever loads the model recomputes it
  OptionTexts options{};  ///< as given; for the others their defaults hold
  /// Measured forward plus backward time of every segment, for strategies that cut the model by it.
  std::vector<double> segment_times{};
};

struct Strategy {
  /// Settles and drops options where model and ranks say more than whoever gave them.
  /// \pre config.world_size >= 1, config.batch >= 1, micro_batches divides batch
  std::function<Schedule(const Model&, const TrainingConfig&, StrategyOptions&)> build;
  std::vector<StrategyOption> options{};
  /// False where it only moves data: it looks at no model, which is empty then, and at no batch.
  bool trains = true;
};

Registry<Strategy>& strategies();

/// An option, and all strategies that take it.
struct KnownOption {
  StrategyOption option;
  std::vector<std::string> strategies;
};
/// The option of every strategy that trains, even where only `take_mesh` reads it: tensor_parallel.hpp.
inline constexpr const char* kMeshOption = "mesh";

/// Every option of every strategy, once, in their order. \throws std::logic_error when two strategies declare
/// different options of one name
std::vector<KnownOption> known_options();

/// \throws UsageError for an unknown strategy, an option that it does not take (the message names those that
/// do) or a value that is none of the option's
StrategyOptions resolve_options(const std::string& strategy, const OptionTexts& given);

/// Builds by name and validates; the Schedule says its resolved options. \throws UsageError for an unknown
/// name, a world size or batch below 1, micro-batches that do not divide the batch, and see resolve_options()
Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config);

/// What --recompute says: units of whole blocks, or a part of each.
struct Recomputation {
  int blocks = 0;
  RecomputedPart part = RecomputedPart::kNothing;
  bool operator==(const Recomputation&) const = default;
};
/// `none`, `full` (1 block), `every:N`, `selective` or `per-op`. \throws UsageError for anything else
Recomputation parse_recompute(const std::string& text);
std::string to_text(const Recomputation& recomputation);

/// \throws UsageError with the nearest name when `value` is not one of `known`
void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known);

}  // namespace stepcast

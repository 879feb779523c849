#include "sim/strategies/training_config.hpp"

#include "core/error.hpp"
#include "core/number.hpp"

namespace stepcast {

TrainingConfig training_config(const OptionTexts& options) {
  const auto strategy = options.find("strategy");
  if (strategy == options.end()) throw UsageError("--strategy is missing; see --help");
  if (!strategies().has(strategy->second))
    throw UsageError(unknown_choice("strategy", strategy->second, strategies().names()));
  TrainingConfig config;
  if (const auto parts = options.find("micro-batches"); parts != options.end()) {
    const auto count = number_in<int>(parts->second);
    if (!count || *count < 1) throw UsageError("--micro-batches must be at least 1, got " + parts->second);
    config.micro_batches = *count;
  }
  if (const auto text = options.find("recompute"); text != options.end()) {
    const Recomputation recomputation = parse_recompute(text->second);
    config.recompute = recomputation.blocks;
    config.recomputed_first = recomputation.first;
    config.recomputed_each = recomputation.each;
    config.recomputed_part = recomputation.part;
  }
  if (const auto text = options.find("offload"); text != options.end())
    config.offload = parse_offload(text->second);
  for (const KnownOption& known : known_options())
    if (const auto given = options.find(known.option.name); given != options.end())
      config.options.insert(*given);
  take_mesh(strategy->second, config);
  static_cast<void>(resolve_options(strategy->second, config.options));
  return config;
}

}  // namespace stepcast

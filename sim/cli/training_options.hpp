#pragma once

#include "sim/cli/command.hpp"
#include "sim/strategies/strategy.hpp"

/// The options that say how ranks share the work; the same for `run`, which does it, and `predict`.
namespace stepcast {

/// `--strategy`, `--micro-batches` and every strategy's own options.
void declare_training_options(po::options_description& options);

/// World size and batch are the caller's. \throws UsageError when `--strategy` is missing or unknown, a value
/// is out of range, or an option was given that the strategy does not heed (the message names those that do)
TrainingConfig training_config(const po::variables_map& values);

}  // namespace stepcast

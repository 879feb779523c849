#pragma once

#include "sim/cli/command.hpp"
#include "sim/strategies/strategy.hpp"

/// The options that say how ranks share the work; the same for `run`, which does it, and `predict`.
namespace stepcast {

/// `--strategy`, `--micro-batches` and every strategy's own options.
void declare_training_options(po::options_description& options);

/// World size and batch are the caller's. \throws UsageError when `--strategy` is missing, and what
/// resolve_options() throws, before any file is read
TrainingConfig training_config(const po::variables_map& values);

}  // namespace stepcast

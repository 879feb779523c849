#pragma once

#include "sim/cli/command.hpp"
#include "sim/strategies/strategy.hpp"

/// Options of the training, the same for `run` and `predict`.
namespace stepcast {

/// `--strategy`, `--micro-batches` and every strategy's own options.
void declare_training_options(po::options_description& options);

/// Training configuration of the given options, see sim/strategies/strategy.hpp.
TrainingConfig training_config(const po::variables_map& values);

}  // namespace stepcast

#pragma once

#include "sim/cli/command.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {

/// Declares the options of a training. \param all with those that `plan` has with another
/// meaning, and those without effect on it
void declare_train_options(po::options_description& options, bool all);
/// The given ones, for training_request().
OptionTexts train_texts(const po::variables_map& values);

}  // namespace stepcast

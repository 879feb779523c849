#pragma once

#include "sim/strategies/strategy.hpp"

namespace stepcast {

/// Training configuration from options by name without dashes; options that are not of the training are
/// skipped. World size and batch are the caller's. \throws UsageError if `strategy` is missing, and as
/// resolve_options(), before any file is read
TrainingConfig training_config(const OptionTexts& options);

}  // namespace stepcast

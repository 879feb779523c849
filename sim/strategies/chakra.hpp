#pragma once

#include "models/model.hpp"
#include "schedule/schedule.hpp"

namespace stepcast {

/// The operations and messages of Chakra's execution traces, one of each rank, as a Schedule. \pre the model
/// is that of chakra_model() \throws UsageError for another number of ranks, InputError that names the node
Schedule chakra_schedule(const Model& model, int world_size);

}  // namespace stepcast

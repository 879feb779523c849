#pragma once

#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// Numbers the micro-batches whose forwards follow each other, as in pipelines. A backward begins where nodes
/// go on to a later operation, the last of its forward. All have equally many gradients.
void split_forwards(ProfiledStep& step);

/// Leaves out gradients of a forward's input, which is no parameter: of one that was received, as by a stage
/// of a pipeline, or whose first extent is the batch. Parameters of the same size stay.
void drop_input_gradients(const KinetoFile& file, int batch, ProfiledStep& step);

}  // namespace stepcast

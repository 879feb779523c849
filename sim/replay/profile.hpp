#pragma once

#include <string>

#include "models/model.hpp"
#include "records/trace.hpp"

namespace stepcast {

/// True if a file is a layer profile, as planners of parallel training read it: a JSON object of objects,
///
///     {"<samples of a micro-batch>": {"<tensor parallelism>": {"<layer>": [forward, backward, update]}}}
///
/// in seconds, layers counted from 0: the embedding, the blocks, the head with the loss.
bool is_profile(const std::string& path);

/// The profile's times at the model's tensor parallelism as a Trace, one entry per micro-batch, with
/// collectives of tensor parallelism in its times (`Trace::has_exchanges`). Layers are the model's segments,
/// in order; bytes come from the model's arithmetic. A phase takes at most as long as with more samples,
/// which it could process instead: the excess is launch overhead. A profile does not name its device;
/// --device does. \throws InputError that names the file and key, and the tensor parallelisms or numbers of
/// layers that it contains
Trace trace_of_profile(const std::string& path, const Model& model);

}  // namespace stepcast

#pragma once

#include <string>

#include "models/model.hpp"
#include "records/trace.hpp"

namespace stepcast {

/// Whether a file is a profile by layer, as planners of parallel training take them: a JSON object of objects,
///
///     {"<samples of a micro-batch>": {"<tensor parallelism>": {"<layer>": [forward, backward, update]}}}
///
/// in seconds, layers counted from 0: the embedding, the blocks, the head with the loss.
bool is_profile(const std::string& path);

/// The profile's times at the model's tensor parallelism as a Trace, an entry per micro-batch, whose exchanges are in its
/// times (`Trace::has_exchanges`). Layers are the model's segments, in order; bytes are what the model's arithmetic says.
/// A phase takes at most as long as with more samples, for it could do those: what is longer in a profile is its host, which
/// was late. It says nothing of the device, which --device is. \throws InputError that names the file and key, and the tensor parallelisms or numbers of layers that it has
Trace trace_of_profile(const std::string& path, const Model& model);

}  // namespace stepcast

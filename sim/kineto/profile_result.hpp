#pragma once

#include <string>
#include <vector>

#include "records/result.hpp"

namespace stepcast {

/// True if a file is a profile of torch.profiler.
bool is_profile_of_torch(const std::string& path);

/// The profiled step of median time of every rank, as a measured result of the case that `forecast` is of.
/// Spans have the forecast's names; those of a part follow each other in the order of the part.
/// \throws InputError as read_profiled_run()
Result profiled_result(const std::vector<std::string>& paths, const Result& forecast);

}  // namespace stepcast

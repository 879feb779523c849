#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace stepcast {

/// Processes that may run at once where nobody says otherwise: one per core.
int default_jobs();

/// What `answer(i)` returns for every i below `count`: asked in `jobs` children of this process, each of which takes the next i
/// when it has answered the last, or in this process where there is but one of either. Children know all that the parent does,
/// and what they learn is lost with them. \throws RunError when a child dies before it has answered (as of an exception)
std::vector<std::string> parallel_map(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer);

}  // namespace stepcast

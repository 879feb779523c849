#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace stepcast {

/// Default number of concurrent processes: one per core.
int default_jobs();

/// Returns answer(i) for every i < count, computed in up to `jobs` forked child processes. A child takes the
/// next i when it finishes one. With one job or one item, runs in this process. Changes that children make to
/// memory are lost. \throws Error that answer(i) throws in a child \throws RunError if a child dies
std::vector<std::string> parallel_map(std::size_t count, int jobs,
                                      const std::function<std::string(std::size_t)>& answer);

}  // namespace stepcast

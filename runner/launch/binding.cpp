#include "runner/launch/binding.hpp"

#include <sched.h>

#include <cerrno>
#include <cstring>

#include "core/error.hpp"
#include "core/program.hpp"

namespace stepcast {

std::vector<int> cores_of_rank(const std::vector<int>& cores, int local_rank, int local_world_size) {
  if (local_rank >= local_world_size) return {};  // the launcher does not report how many ranks are here
  const int share = static_cast<int>(cores.size()) / local_world_size;
  if (share == 0) return {};
  const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(local_rank) * share;
  return {begin, begin + share};
}

std::string bind_rank(const std::string& policy, const RankContext& ranks) {
  if (policy == "none") return policy;
  if (policy != "core") throw UsageError(unknown_name("binding", policy, {"core", "none"}));
  const std::vector<int> mine = cores_of_rank(usable_cores(), ranks.local_rank, ranks.local_world_size);
  if (mine.empty()) return "none";
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : mine) CPU_SET(static_cast<std::size_t>(core), &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0)
    throw RunError(std::string("cannot bind to cores (try --bind none): ") + std::strerror(errno));
  return "core";
}

std::string set_scheduling(const std::string& policy) {
  if (policy != "batch" && policy != "normal")
    throw UsageError(unknown_name("scheduling", policy, {"batch", "normal"}));
  const sched_param no_priority{};
  if (policy == "batch" && ::sched_setscheduler(0, SCHED_BATCH, &no_priority) != 0) return "normal";
  return policy;
}

}  // namespace stepcast

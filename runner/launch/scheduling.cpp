#include "runner/launch/scheduling.hpp"

#include <sched.h>

#include "core/error.hpp"

namespace stepcast {

std::string set_scheduling(const std::string& policy) {
  if (policy != "batch" && policy != "normal")
    throw UsageError(unknown_name("scheduling", policy, {"batch", "normal"}));
  const sched_param no_priority{};
  if (policy == "batch" && ::sched_setscheduler(0, SCHED_BATCH, &no_priority) != 0) return "normal";
  return policy;
}

}  // namespace stepcast

#pragma once

#include <memory>
#include <vector>

#include "sim/replay/clock.hpp"

namespace simgrid::s4u {
class Host;
}  // namespace simgrid::s4u

namespace stepcast {

/// Communications of SimGrid outside any actor, created when they start and watched by a completion callback:
/// the fastest way of SimGrid 3.32 while at most a few hundred are alive.
class SimGridFlows {
 public:
  SimGridFlows();
  ~SimGridFlows();
  SimGridFlows(const SimGridFlows&) = delete;
  SimGridFlows& operator=(const SimGridFlows&) = delete;

  /// Sends `units` (rounded, at least 1) between two hosts and calls `arrived` at the end.
  void start(simgrid::s4u::Host* from, simgrid::s4u::Host* to, double units, Callback arrived);
  [[nodiscard]] bool idle() const { return free_.size() == pool_.size(); }

 private:
  struct Flow;
  void finish(Flow& flow);

  std::vector<std::unique_ptr<Flow>> pool_;  ///< all flows that were ever alive at once
  std::vector<Flow*> free_;
  std::unique_ptr<Flow> ended_;  ///< the flow that ended last: SimGrid still uses it during its completion
};

}  // namespace stepcast

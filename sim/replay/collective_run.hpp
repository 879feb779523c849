#pragma once

#include <memory>
#include <vector>

#include "sim/replay/collective_plan.hpp"
#include "sim/replay/load_network.hpp"
#include "sim/replay/transport.hpp"

namespace stepcast {

class Collectives;
class Copies;
class Costs;

/// The simulated world that ranks share.
struct ReplayWorld {
  const ReplayInput& input;
  Clock& clock;
  Network& network;
  LoadNetwork* loads;  ///< the network of NCCL; null: another backend
  Processors& processors;
  Transport& transport;
  Collectives& collectives;
  PointToPoint& point_to_point;
  Copies& copies;
  const Costs& costs;
  int recorded_steps = 0;  ///< measured steps of which operations' times are kept
};

/// Ranks of a group. Of each class (Symmetry), the first one is replayed.
struct Members {
  const std::vector<int>& ranks;
  std::vector<int> first;  ///< by index: the first of its class
  int replayed = 0;
};

/// One call of a collective by all ranks of a group, in progress.
class CollectiveRun {
 public:
  CollectiveRun(const ReplayWorld& world, const CollectivePlan& plan, const Members& members)
      : world_(world), plan_(plan), members_(members) {}
  virtual ~CollectiveRun() = default;

  /// Adds rank `index` of the group, which is replayed. Calls `done` at the end of its part, possibly before
  /// it returns.
  virtual void join(int index, Callback done) = 0;

 protected:
  [[nodiscard]] int rank(int index) const { return members_.ranks[index]; }
  [[nodiscard]] bool replayed(int index) const { return members_.first[index] == index; }

  const ReplayWorld& world_;
  const CollectivePlan& plan_;
  const Members& members_;
  const Algorithm& algorithm_ = *plan_.algorithm;
  const CollectiveCall call_ = plan_.call;
};

/// Step by step: every message of the algorithm is a transfer. A rank posts a step after the steps that
/// precede it; a message moves after both sides have posted it. Steps of a rank end in order, each after its
/// reduction, which runs on the rank's communication thread concurrently with the transfer of the next step.
std::unique_ptr<CollectiveRun> make_message_run(const ReplayWorld& world, const CollectivePlan& plan,
                                                const Members& members);

/// Link loads and a least time: the bytes of all steps share the links at once, and the collective takes at
/// least as long as alone. It begins when all ranks have joined and ends on all at once.
/// \param load of NCCL, of 1 B of the message; null: one flow per edge of a ring \pre NCCL or algorithm.ring
std::unique_ptr<CollectiveRun> make_link_load_run(const ReplayWorld& world, const CollectivePlan& plan,
                                                  const Members& members, const Load* load);

}  // namespace stepcast

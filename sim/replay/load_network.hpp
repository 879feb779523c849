#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/replay/clock.hpp"
#include "sim/replay/network.hpp"
#include "sim/replay/symmetry.hpp"

namespace stepcast {

/// Network of loads (Symmetry), which NCCL's collectives need: all flows of a collective advance together.
///
/// After its latency, a load moves its bytes at the rate
///
///     x_f = level / penalty_f
///
/// with max-min fair levels: all levels rise together until a link is full, sum over f of w(f, l) x_f =
/// bandwidth of l. That fixes the loads on this link; the others continue. Two solvers: make_fluid_network()
/// and make_simgrid_loads().
class LoadNetwork : public Network {
 public:
  LoadNetwork(Clock& clock, Symmetry& symmetry) : clock_(clock), symmetry_(symmetry) {}

  void start(const FlowEnds& ends, double bytes, Callback arrived) override {
    move(symmetry_.flow(ends), bytes, std::move(arrived));
  }
  /// Moves `bytes` of a load and calls `arrived` at the end. \pre bytes > 0; `load` lives as long as the
  /// network
  virtual void move(const Load& load, double bytes, Callback arrived) = 0;
  /// Bytes per second of a load that shares its links with no other load.
  [[nodiscard]] double rate_alone(const Load& load) const {
    double level = std::numeric_limits<double>::infinity();
    for (const Load::Share& share : load.shares)
      level = std::min(level, symmetry_.links()[share.link] / (share.weight / load.penalty));
    return level / load.penalty;
  }

  [[nodiscard]] Symmetry& symmetry() const { return symmetry_; }

 protected:
  Clock& clock_;
  Symmetry& symmetry_;
};

/// Built-in solver for loads. A change affects only the loads and links that are connected with it. Agrees
/// with SimGrid's CM02 to its precision: tests/replay/oracle_test.cpp.
std::unique_ptr<Network> make_fluid_network(Clock& clock, Symmetry& symmetry);
/// Loads in SimGrid. \pre Platform::start_engine() was called, and no replay since
std::unique_ptr<Network> make_simgrid_loads(Clock& clock, Symmetry& symmetry, const ReplayInput& input,
                                            CollectivePlans& plans);

}  // namespace stepcast

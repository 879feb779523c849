#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "sim/replay/load_network.hpp"
#include "sim/replay/simgrid_flows.hpp"

namespace simgrid::s4u {
class Link;
}  // namespace simgrid::s4u

namespace stepcast {

/// Loads in SimGrid: the oracle of FluidNetwork, for exact replays of NCCL.
///
/// In CM02 a flow whose route contains a link n times takes n times its rate from that link. So a load f is
/// one flow between two hosts of its own, over a route that contains link l
///
///     n(f, l) = w(f, l) k_f   times,   k_f = N / max over l of w(f, l)
///
/// with the least N <= 1024 that makes all n(f, l) whole numbers, else N = 1024 and rounded ones (at most
/// 1/2048 off on links that are not the load's fullest). It carries S / k_f for S bytes of the load. CM02
/// shares links in inverse proportion to latency, and penalty_f k_f is latency_f N: the route ends with a
/// link of its own of latency_f N / 1024, and the flow starts that much before latency_f has passed.
/// Differences to FluidNetwork: docs/research/simgrid-oracle.md.
///
/// Limits: loads without latency get 1 ns N / 1024. SimGrid's max-min precision is 1e-5. Loads enter at least
/// 1 ps apart, which avoids most outdated rates of Platform::Updates::kLazy.
class SimGridLoads : public LoadNetwork {
 public:
  /// \param most_loads upper bound of the number of different loads: SimGrid creates hosts only before the
  /// replay
  /// \pre Platform::start_engine() was called, and no replay since
  SimGridLoads(Clock& clock, Symmetry& symmetry, std::size_t most_loads);

  void move(const Load& load, double bytes, Callback arrived) override;
  void run() override;

 private:
  /// Hosts, route and units of one load.
  struct Ends {
    simgrid::s4u::Host* from = nullptr;
    simgrid::s4u::Host* to = nullptr;
    simgrid::s4u::Link* penalty = nullptr;
    double latency_s = 0.0;       ///< of the link `penalty`
    double units_per_byte = 0.0;  ///< of the load
  };
  const Ends& ends_of(const Load& load);
  /// `date`, or the first one after it at which no latency of another load ends.
  double entry_date(double date);

  std::vector<Ends> ends_;                             ///< one per load; the first `used_` have a route
  std::unordered_map<const Load*, std::size_t> used_;  ///< index in `ends_`
  std::vector<simgrid::s4u::Link*> links_;             ///< by direction, as Symmetry numbers them
  SimGridFlows flows_;
  double in_flight_s_ = 0.0;  ///< sum of the times that the loads in flight take alone
  std::set<double> entries_;  ///< dates from now on at which the latency of a load ends
};

/// Upper bound of the number of loads in a replay of every rank.
std::size_t count_loads(const ReplayInput& input, CollectivePlans& plans);

}  // namespace stepcast

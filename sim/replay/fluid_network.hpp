#pragma once

#include <cstdint>
#include <vector>

#include "sim/replay/load_network.hpp"

namespace stepcast {

/// Built-in solver for loads. A change affects only the loads and links that are connected with it.
/// Agrees with SimGrid's CM02 (SimGridLoads) to its precision: tests/replay/oracle_test.cpp.
class FluidNetwork : public LoadNetwork {
 public:
  FluidNetwork(Clock& clock, Symmetry& symmetry)
      : LoadNetwork(clock, symmetry), links_(symmetry.links().size()) {}

  void move(const Load& load, double bytes, Callback arrived) override;
  void run() override { clock_.run(); }

 private:
  struct Flow {
    const Load* load = nullptr;
    double bytes = 0.0;  ///< left at `since`
    double since = 0.0;
    double rate = 0.0;
    std::uint64_t version = 0;  ///< of its rate; a timer of an older one is stale
    bool reached = false;       ///< by the search under way
    bool fixed = false;
    Callback arrived;
  };
  struct LinkState {
    std::vector<int> flows;  ///< that cross it
    double left = 0.0;       ///< of its bandwidth, while levels are raised
    double usage = 0.0;      ///< sum of w / penalty of the flows that are not fixed
    int open = 0;            ///< how many these are
    bool changed = false;
    bool reached = false;
  };
  void enter(int index);
  void leave(int index);
  void change(int index);
  void settle();
  void reach_from(int link);
  void raise_levels();
  void set_rate(int index, double rate);

  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::vector<LinkState> links_;
  std::vector<int> changed_;  ///< links that flows have entered or left at this instant
  bool settling_ = false;
  std::vector<int> reached_links_, reached_flows_;  ///< of the searches at this instant
  std::size_t first_link_ = 0, first_flow_ = 0;     ///< of the last one
};

}  // namespace stepcast

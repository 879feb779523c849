#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/replay/clock.hpp"
#include "sim/replay/network.hpp"
#include "sim/replay/symmetry.hpp"

namespace stepcast {

/// Loads that stand for their classes, over classes of links (Symmetry): what SimGrid's model CM02 makes of flows, to
/// rounding. After its latency, a load moves its bytes at the rate
///
///     x_f = level / penalty_f
///
/// where the levels are max-min fair: all are raised together until some links are full, sum over f of w(f, l) x_f =
/// bandwidth of l, which fixes the loads that take part of them; then the others go on. A change concerns only what it is
/// joined with by loads and links.
class FluidNetwork : public Network {
 public:
  FluidNetwork(Clock& clock, Symmetry& symmetry, Routes& routes)
      : clock_(clock), symmetry_(symmetry), routes_(routes), links_(symmetry.links().size()) {}

  void start(const FlowEnds& ends, double bytes, Callback arrived) override {
    move(symmetry_.flow(ends), bytes, std::move(arrived));
  }
  /// The same of any load. \pre bytes > 0; it lives as long as the network
  void move(const Load& load, double bytes, Callback arrived);
  /// Bytes per second of a load that shares its links with nothing.
  [[nodiscard]] double rate_alone(const Load& load) const;
  [[nodiscard]] Symmetry& symmetry() { return symmetry_; }
  [[nodiscard]] double latency_s(int from, int to) override {
    return latency(routes_.cluster(), routes_.between(from, to)).count();
  }
  [[nodiscard]] double bandwidth_bytes_per_s(int from, int to) override {
    return bandwidth(routes_.cluster(), routes_.between(from, to)).count();
  }
  [[nodiscard]] int switches_between(int from, int to) override {
    return switches_crossed(routes_.cluster(), routes_.between(from, to));
  }
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

  Clock& clock_;
  Symmetry& symmetry_;
  Routes& routes_;
  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::vector<LinkState> links_;
  std::vector<int> changed_;  ///< links that flows have entered or left at this instant
  bool settling_ = false;
  std::vector<int> reached_links_, reached_flows_;  ///< of the searches at this instant
  std::size_t first_link_ = 0, first_flow_ = 0;     ///< of the last one
};

}  // namespace stepcast

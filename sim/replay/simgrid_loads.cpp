#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/replay/load_network.hpp"
#include "sim/replay/platform.hpp"
#include "sim/replay/simgrid_flows.hpp"

namespace stepcast {

namespace s4u = simgrid::s4u;

namespace {

constexpr int kMostUnits = 1024;               // N
constexpr double kUnitsPerLinkByte = 1 << 20;  // SimGrid counts flows in whole units
constexpr double kWhole = 1e-7;                // relative rounding of weights
constexpr double kNoLatency = 1e-9;            // s, of loads without latency
constexpr double kSpacing = 1e-12;             // s
constexpr double kUnlimited = 1e24;            // units/s
constexpr double kHostSpeed = 1e9;             // unused: hosts compute nothing in SimGrid

/// The least N that makes all weights whole multiples of the largest one's N-th part.
int units_of(const Load& load, double most) {
  const auto whole = [&](int units) {
    return std::ranges::all_of(load.shares, [&](const Load::Share& share) {
      const double count = share.weight * units / most;
      return count >= 0.5 && std::abs(count - std::round(count)) <= kWhole * count;
    });
  };
  int units = 1;
  while (units < kMostUnits && !whole(units)) ++units;
  return units;
}

/// Upper bound of the number of loads in a replay of every rank.
std::size_t count_loads(const ReplayInput& input, CollectivePlans& plans) {
  const Schedule& schedule = *input.schedule;
  std::set<std::pair<int, int>> collectives;  // flow type and group
  std::set<std::pair<int, int>> messages;     // sender and receiver
  std::size_t copies = 0;
  for_each_action<Send>(schedule, [&](int rank, const Op& /*op*/, const Send& send) {
    messages.emplace(rank, rank + send.offset);
  });
  for_each_action<Copy>(schedule, [&](int /*rank*/, const Op& /*op*/, const Copy& /*copy*/) { ++copies; });
  for_each_action<Collective>(schedule, [&](int rank, const Op& /*op*/, const Collective& call) {
    const int group = schedule.group_index(call.group, rank);
    if (schedule.groups[group].ranks.front() == rank)
      collectives.emplace(plans.of(call, group).flow_type, group);
  });
  return collectives.size() + messages.size() + copies;
}

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
  SimGridLoads(Clock& clock, Symmetry& symmetry, std::size_t most_loads) : LoadNetwork(clock, symmetry) {
    s4u::NetZone* root = s4u::create_full_zone("loads");
    for (const double bandwidth : symmetry.links()) {
      links_.push_back(root->create_link("l" + std::to_string(links_.size()), bandwidth * kUnitsPerLinkByte));
      links_.back()->set_latency(0.0)->seal();
    }
    for (std::size_t i = 0; i < most_loads; ++i) {
      const std::string number = std::to_string(i);
      s4u::NetZone* zone = s4u::create_full_zone("load" + number)->set_parent(root);
      Ends& ends = ends_.emplace_back();
      ends.from = zone->create_host("from" + number, kHostSpeed);
      ends.to = zone->create_host("to" + number, kHostSpeed);
      ends.penalty = zone->create_link("penalty" + number, kUnlimited);
      ends.penalty->set_sharing_policy(s4u::Link::SharingPolicy::FATPIPE);
      ends.penalty->seal();
    }
    root->seal();
    Platform::part_dates_until(0.0);
  }

  void move(const Load& load, double bytes, Callback arrived) override {
    const double alone_s = load.latency_s + kNoLatency + bytes / rate_alone(load);
    in_flight_s_ += alone_s;
    // A bottleneck is never idle: all loads together end before one after another would.
    Platform::part_dates_until(s4u::Engine::get_clock() + in_flight_s_);
    const Ends& ends = ends_of(load);
    clock_.at(entry_date(clock_.now() + load.latency_s) - ends.latency_s,
              [this, &ends, bytes, alone_s, arrived = std::move(arrived)] {
                flows_.start(ends.from, ends.to, bytes * ends.units_per_byte, [this, alone_s, arrived] {
                  in_flight_s_ = flows_.idle() ? 0.0 : in_flight_s_ - alone_s;
                  arrived();
                });
              });
  }

  void run() override { s4u::Engine::get_instance()->run(); }

 private:
  /// Hosts, route and units of one load.
  struct Ends {
    s4u::Host* from = nullptr;
    s4u::Host* to = nullptr;
    s4u::Link* penalty = nullptr;
    double latency_s = 0.0;       ///< of the link `penalty`
    double units_per_byte = 0.0;  ///< of the load
  };

  const Ends& ends_of(const Load& load) {
    const auto [found, is_new] = used_.try_emplace(&load, used_.size());
    Ends& ends = ends_.at(found->second);
    if (!is_new) return ends;
    double most = 0.0;
    for (const Load::Share& share : load.shares) most = std::max(most, share.weight);
    const int units = units_of(load, most);
    std::vector<s4u::LinkInRoute> route;
    for (const Load::Share& share : load.shares) {
      const long times = std::max(1L, std::lround(share.weight * units / most));
      route.insert(route.end(), static_cast<std::size_t>(times), s4u::LinkInRoute(links_[share.link]));
    }
    ends.latency_s = (load.latency_s > 0.0 ? load.latency_s : kNoLatency) * units / kMostUnits;
    ends.penalty->set_latency(ends.latency_s);
    route.emplace_back(ends.penalty);
    ends.units_per_byte = kUnitsPerLinkByte * most / units;
    ends.from->get_englobing_zone()->add_route(ends.from->get_netpoint(), ends.to->get_netpoint(), nullptr,
                                               nullptr, route, false);
    return ends;
  }

  /// `date`, or the first one after it at which no latency of another load ends.
  double entry_date(double date) {
    const double spacing = std::max(kSpacing, std::ldexp(s4u::Engine::get_clock() + in_flight_s_, -44));
    entries_.erase(entries_.begin(), entries_.lower_bound(clock_.now()));
    for (auto near = entries_.lower_bound(date - spacing); near != entries_.end() && *near < date + spacing;
         ++near)
      date = *near + spacing;
    return *entries_.insert(date).first;
  }

  std::vector<Ends> ends_;                             ///< one per load; the first `used_` have a route
  std::unordered_map<const Load*, std::size_t> used_;  ///< index in `ends_`
  std::vector<s4u::Link*> links_;                      ///< by direction, as Symmetry numbers them
  SimGridFlows flows_;
  double in_flight_s_ = 0.0;  ///< sum of the times that the loads in flight take alone
  std::set<double> entries_;  ///< dates from now on at which the latency of a load ends
};

}  // namespace

std::unique_ptr<Network> make_simgrid_loads(Clock& clock, Symmetry& symmetry, const ReplayInput& input,
                                            CollectivePlans& plans) {
  return std::make_unique<SimGridLoads>(clock, symmetry, count_loads(input, plans));
}

}  // namespace stepcast

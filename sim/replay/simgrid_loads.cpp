#include "sim/replay/simgrid_loads.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>

#include "sim/replay/platform.hpp"

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

}  // namespace

SimGridLoads::SimGridLoads(Clock& clock, Symmetry& symmetry, std::size_t most_loads)
    : LoadNetwork(clock, symmetry) {
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

const SimGridLoads::Ends& SimGridLoads::ends_of(const Load& load) {
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

double SimGridLoads::entry_date(double date) {
  const double spacing = std::max(kSpacing, std::ldexp(s4u::Engine::get_clock() + in_flight_s_, -44));
  entries_.erase(entries_.begin(), entries_.lower_bound(clock_.now()));
  for (auto near = entries_.lower_bound(date - spacing); near != entries_.end() && *near < date + spacing;
       ++near)
    date = *near + spacing;
  return *entries_.insert(date).first;
}

void SimGridLoads::move(const Load& load, double bytes, Callback arrived) {
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

void SimGridLoads::run() { Platform::run(); }

std::size_t count_loads(const ReplayInput& input, CollectivePlans& plans) {
  const Schedule& schedule = *input.schedule;
  std::set<std::pair<int, int>> collectives;  // flow type and group
  std::set<std::pair<int, int>> messages;     // sender and receiver
  std::size_t copies = 0;
  for (int rank = 0; rank < schedule.world_size; ++rank)
    for (const Op& op : schedule.program(rank).ops) {
      if (const auto* send = std::get_if<Send>(&op.action)) messages.emplace(rank, rank + send->offset);
      if (std::holds_alternative<Copy>(op.action)) ++copies;
      const auto* call = std::get_if<Collective>(&op.action);
      if (call == nullptr) continue;
      const int group = schedule.group_index(call->group, rank);
      if (schedule.groups[group].ranks.front() == rank)
        collectives.emplace(plans.of(*call, group).flow_type, group);
    }
  return collectives.size() + messages.size() + copies;
}

}  // namespace stepcast

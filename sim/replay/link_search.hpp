#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/collective_plan.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/recording.hpp"
#include "topologies/link_tiers.hpp"
#include "topologies/paths.hpp"

namespace stepcast {

/// Searches the bottleneck links of operations, once for each group, kind and size.
struct LinkSearch {
  static constexpr double kNearlyAsFull = 0.99;

  const ReplayInput& input;
  CollectivePlans& plans;
  Routes& routes;
  const CopyEnds& ends;
  std::vector<FullestLinks>& links;  ///< found so far

  /// Index of the bottleneck links of a rank's operation in `links`; -1 if it crosses none.
  int of(const Op& op, int rank) {
    if (const auto* collective = std::get_if<Collective>(&op.action)) return of(*collective, rank);
    if (const auto* send = std::get_if<Send>(&op.action))
      add(rank, rank + send->offset, send->message.count());
    if (const auto* recv = std::get_if<Recv>(&op.action))
      add(rank + recv->offset, rank, recv->message.count());
    if (const auto* copy = std::get_if<Copy>(&op.action)) {
      const auto [from, to] = ends.of(rank, *copy);
      add_between(from, to, copy->message.count());
    }
    return fullest();
  }

  int of(const Collective& collective, int rank) {
    const int group = input.schedule->group_index(collective.group, rank);
    const CollectivePlan& plan = plans.of(collective, group);
    return cached(known, {&plan, group}, [&] {
      const std::vector<int>& ranks = input.schedule->groups[group].ranks;
      const auto visit = [&](int from, int to, Bytes bytes) { add(ranks[from], ranks[to], bytes.count()); };
      if (plan.flows == nullptr)
        for_each_message(*plan.algorithm, plan.call, visit);
      else
        for (const NcclFlow& flow : *plan.flows) visit(flow.from, flow.to, flow.payload);
      return fullest();
    });
  }

  void add(int from, int to, double bytes) {
    add_between(input.node_of_rank[from], input.node_of_rank[to], bytes);
  }

  /// Adds bytes between two nodes.
  void add_between(int here, int there, double bytes) {
    if (here == there || bytes <= 0.0) return;
    for (const Hop& hop : routes.between(here, there)) taken[{hop.link, hop.forward}] += bytes;
  }

  /// Index of the links that take longest for the bytes added since the last call; -1: none were.
  int fullest() {
    std::map<int, double> time;  // by link, of its fuller direction
    int most = -1;
    for (const auto& [where, bytes] : taken) {
      double& here = time[where.first];
      here = std::max(here, bytes / routes.cluster().links[where.first].bandwidth.count());
      if (most < 0 || here > time[most]) most = where.first;
    }
    taken.clear();
    if (most < 0) return -1;
    std::set<std::string> full;
    bool alone = true;
    for (const auto& [link, seconds] : time) {
      if (seconds <= kNearlyAsFull * time[most]) continue;
      full.insert(tier(link));
      alone = alone && (link == most || tier(link) != tier(most));
    }
    alone = alone && full.size() == 1 && !full.contains("pageable");
    FullestLinks here{joined(full, "+"), alone ? routes.cluster().links[most].name : ""};
    const auto number = std::ranges::find(links, here) - links.begin();
    if (number == std::ssize(links)) links.push_back(std::move(here));
    return static_cast<int>(number);
  }

  /// Links of staging follow those of the cluster.
  [[nodiscard]] std::string tier(std::size_t link) const {
    return link < tiers.size() ? tiers[link] : "pageable";
  }

  const std::vector<std::string> tiers = link_tiers(*input.cluster);
  std::map<std::pair<int, bool>, double> taken{};                ///< bytes, by link and direction
  std::map<std::pair<const CollectivePlan*, int>, int> known{};  ///< by plan and group
};

}  // namespace stepcast

#include "sim/replay/recording.hpp"

#include <algorithm>
#include <set>

#include "core/table.hpp"
#include "topologies/link_tiers.hpp"

namespace stepcast {
namespace {

constexpr double kNearlyAsFull = 0.99;

}  // namespace

FullestLinkSearch::FullestLinkSearch(const ReplayInput& input, CollectivePlans& plans, Routes& routes,
                                     const Copies& copies)
    : input_(input), plans_(plans), routes_(routes), copies_(copies), tiers_(link_tiers(*input.cluster)) {
  tiers_.resize(routes.cluster().links.size(), "pageable");  // of staging
}

int FullestLinkSearch::of(const Op& op, int rank) {
  if (const auto* send = std::get_if<Send>(&op.action)) {
    add(rank, rank + send->offset, send->message.count());
    return fullest();
  }
  if (const auto* recv = std::get_if<Recv>(&op.action)) {
    add(rank + recv->offset, rank, recv->message.count());
    return fullest();
  }
  if (const auto* copy = std::get_if<Copy>(&op.action)) {
    const auto [from, to] = copies_.ends(rank, *copy);
    add_between(from, to, copy->message.count());
    return fullest();
  }
  const auto* collective = std::get_if<Collective>(&op.action);
  if (collective == nullptr) return -1;
  const int group = input_.schedule->group_index(collective->group, rank);
  const CollectivePlan& plan = plans_.of(*collective, group);
  const auto [found, is_new] = known_.try_emplace({&plan, group}, -1);
  if (!is_new) return found->second;
  const std::vector<int>& ranks = input_.schedule->groups[group].ranks;
  if (plan.flows != nullptr) {
    for (const NcclFlow& flow : *plan.flows) add(ranks[flow.from], ranks[flow.to], flow.payload.count());
  } else {
    for_each_message(*plan.algorithm, plan.call,
                     [&](int from, int to, Bytes bytes) { add(ranks[from], ranks[to], bytes.count()); });
  }
  return found->second = fullest();
}

void FullestLinkSearch::add(int from, int to, double bytes) {
  add_between(input_.node_of_rank[from], input_.node_of_rank[to], bytes);
}

void FullestLinkSearch::add_between(int here, int there, double bytes) {
  if (here == there || bytes <= 0.0) return;
  for (const Hop& hop : routes_.between(here, there)) taken_[{hop.link, hop.forward}] += bytes;
}

int FullestLinkSearch::fullest() {
  std::map<int, double> time;  // by link, of its fuller direction
  int most = -1;
  for (const auto& [where, bytes] : taken_) {
    double& here = time[where.first];
    here = std::max(here, bytes / routes_.cluster().links[where.first].bandwidth.count());
    if (most < 0 || here > time[most]) most = where.first;
  }
  taken_.clear();
  if (most < 0) return -1;
  std::set<std::string> tiers;
  bool alone = true;
  for (const auto& [link, seconds] : time) {
    if (seconds <= kNearlyAsFull * time[most]) continue;
    tiers.insert(tiers_[link]);
    alone = alone && (link == most || tiers_[link] != tiers_[most]);
  }
  alone = alone && tiers.size() == 1 && !tiers.contains("pageable");
  FullestLinks links{joined(tiers, "+"), alone ? routes_.cluster().links[most].name : ""};
  const auto number = std::ranges::find(found_, links) - found_.begin();
  if (number == std::ssize(found_)) found_.push_back(std::move(links));
  return static_cast<int>(number);
}

}  // namespace stepcast

#include "sim/replay/collective_plan.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/collectives/nccl_reached.hpp"
#include "sim/replay/dispatch.hpp"

namespace stepcast {

using Way = CollectivePlan::Way;

CollectivePlans::CollectivePlans(const ReplayInput& input, std::string backend)
    : input_(input), backend_(std::move(backend)), nccl_(input.nccl_graphs) {
  if (nccl_ != nullptr && input.fidelity == Fidelity::kMessage)
    throw UsageError(
        "--fidelity message: NCCL's collectives are replayed as link loads, not as messages; use auto or "
        "aggregate");
  constexpr int kMostOracleRanks = 512;
  if (const int ranks = input.schedule->world_size;
      nccl_ != nullptr && input.exact && input.simgrid && ranks > kMostOracleRanks)
    throw UsageError(
        "--exact: SimGrid replays NCCL for at most {} ranks, found {}; without --exact the built-in solver "
        "replays one rank per class",
        kMostOracleRanks, ranks);
}

const CollectivePlan& CollectivePlans::of(const Collective& collective, int group) {
  return cached(plans_,
                {group, collective.group, collective.kind, collective.root, collective.message.count()}, [&] {
                  CollectivePlan plan = make(collective, group);
                  plan.number = static_cast<int>(plans_.size());
                  return plan;
                });
}

CollectivePlan CollectivePlans::make(const Collective& collective, int group) {
  const std::vector<int>& ranks = input_.schedule->groups[group].ranks;
  CollectivePlan plan;
  plan.algorithm = &algorithm_for(collective.kind, backend_, input_.algorithms);
  plan.call = {collective.message, static_cast<int>(ranks.size()), collective.root};
  if (nccl_ != nullptr && plan.call.ranks > 1) {
    choose_nccl(plan, collective, ranks);
    plan.wire_factor = wire_factor(plan.cost.protocol);
    plan.way = Way::kLinkLoads;
  } else if (plan.algorithm->ring && is_aggregated(plan)) {
    plan.way = Way::kLinkLoads;
  }
  plan.flow_type = cached(
      flow_types_,
      {collective.group, plan.way, collective.kind, plan.cost.algorithm, plan.cost.protocol, collective.root},
      [&] { return static_cast<int>(flow_types_.size()) + 1; });  // 0: between two ranks
  return plan;
}

/// True if one flow per link carries all bytes of a ring.
bool CollectivePlans::is_aggregated(const CollectivePlan& plan) const {
  const int ranks = plan.call.ranks;
  if (input_.fidelity != Fidelity::kAutomatic) return input_.fidelity == Fidelity::kAggregate;
  if (ranks <= kLargestMessageGroup || ranks > kLargestGroupOutOfStep) return ranks > kLargestMessageGroup;
  for (int k = 0; k < plan.algorithm->steps(plan.call, 0); ++k)
    if (plan.algorithm->step(plan.call, 0, k).sent <= Bytes(0)) return false;
  return true;
}

void CollectivePlans::choose_nccl(CollectivePlan& plan, const Collective& collective,
                                  const std::vector<int>& ranks) {
  const std::vector<int> places = transformed(ranks, [this](int rank) { return input_.node_of_rank[rank]; });
  if (!traits(collective.kind).nccl_kernel) {
    group_messages(plan, collective, places);
    return;
  }
  NcclLimits limits;
  if (input_.algorithms.count(collective.kind) != 0) limits.algorithm = plan.algorithm->nccl;
  plan.graph = &nccl_->of(places);
  plan.cost = nccl_cost(*plan.graph, collective.kind, collective.message, limits);
  // Durations of execution traces contain what collectives took from computing.
  if (input_.schedule->strategy != "chakra")
    plan.blocks = nccl_blocks(*plan.graph, plan.cost, collective.message);
  plan.flows = &flows_of(plan);
}

/// Grouped messages move at once. Their least time is the longest of them; all-to-all has a formula for all.
void CollectivePlans::group_messages(CollectivePlan& plan, const Collective& collective,
                                     const std::vector<int>& places) {
  plan.flows = &flows_of(plan);
  if (plan.algorithm->kind == CollectiveKind::kAllToAll) {
    plan.cost = nccl_cost(nccl_->of(places), plan.algorithm->kind, plan.call.message);
    const auto* array = std::get_if<ExchangeArray>(&collective.payload);
    if (const PhaseCosts* costs = input_.compute.phases;
        array != nullptr && costs != nullptr && !costs->dispatches.empty())
      plan.cost = dispatched(plan.cost, costs->dispatches[array->exchange], plan.call.ranks);
    return;
  }
  Seconds longest(0);
  for (const NcclFlow& one : *plan.flows) {
    const Bytes bytes(one.payload.count() * plan.call.message.count());
    const NcclCost cost = nccl_point_to_point(nccl_->pair(places[one.from], places[one.to]), bytes);
    if (cost.time(bytes) <= longest) continue;
    longest = cost.time(bytes);
    plan.cost = cost;
    plan.cost.algbw = (plan.call.message.count() / bytes.count()) * cost.algbw;
  }
}

const std::vector<NcclFlow>& CollectivePlans::flows_of(const CollectivePlan& plan) {
  const CollectiveKind kind = plan.algorithm->kind;
  const CollectiveCall call{Bytes(1.0), plan.call.ranks, plan.call.root};
  return cached(flows_, {plan.graph, plan.cost.algorithm, kind, call.root, call.ranks}, [&] {
    if (plan.graph != nullptr) return nccl_flows(*plan.graph, plan.cost, kind, call);
    std::vector<NcclFlow> flows;
    for_each_message(*plan.algorithm, call, [&](int from, int to, Bytes bytes) {
      flows.push_back({from, to, bytes});
    });
    return flows;
  });
}

std::string CollectivePlans::nccl_choices() const {
  struct Sizes {
    Bytes smallest, largest;
  };
  std::map<std::pair<CollectiveKind, std::string>, Sizes> chosen;
  for (const auto& [key, plan] : plans_) {
    if (nccl_ == nullptr || plan.call.ranks == 1) continue;
    const Bytes message = plan.call.message;
    const std::string choice = plan.graph == nullptr ? "messages" : to_text(*plan.graph, plan.cost);
    Sizes& sizes = chosen.try_emplace({plan.algorithm->kind, choice}, Sizes{message, message}).first->second;
    sizes = {std::min(sizes.smallest, message), std::max(sizes.largest, message)};
  }
  std::vector<std::pair<std::pair<CollectiveKind, std::string>, Sizes>> all(chosen.begin(), chosen.end());
  std::ranges::stable_sort(
      all, {}, [](const auto& each) { return std::pair(each.first.first, each.second.smallest); });
  const auto text_of = [](const auto& each) {
    const auto& [what, sizes] = each;
    return fmt::format("{} {}{}: {}", to_text(what.first), to_text(sizes.smallest),
                       sizes.largest > sizes.smallest ? " to " + to_text(sizes.largest) : "", what.second);
  };
  return joined(transformed(all, text_of), "; ");
}

std::string CollectivePlans::algorithms_used() const {
  std::map<CollectiveKind, std::string> used;
  for (const auto& [key, plan] : plans_)
    if (nccl_ == nullptr && plan.call.ranks > 1)
      used.try_emplace(plan.algorithm->kind, algorithm_name(*plan.algorithm));
  const auto text_of = [](const auto& one) { return fmt::format("{}: {}", to_text(one.first), one.second); };
  return joined(transformed(used, text_of), "; ");
}

std::string CollectivePlans::fidelity_used() const {
  std::set<std::string> used;
  for (const auto& [key, plan] : plans_)
    if (plan.call.ranks > 1 && (nccl_ != nullptr || plan.algorithm->ring))
      used.insert(plan.way == Way::kLinkLoads ? "aggregate" : "message");
  if (used.empty()) return "none";
  return used.size() == 2 ? "message and aggregate" : *used.begin();
}

}  // namespace stepcast

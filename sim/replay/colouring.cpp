#include <algorithm>
#include <concepts>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/ranges.hpp"
#include "sim/replay/copies.hpp"
#include "sim/replay/symmetry.hpp"

namespace stepcast {

/// Finds the classes of a folded replay by refining colours, see Symmetry.
class Colouring {
 public:
  using Colour = std::uint64_t;
  /// Classes become coarse above this number of operations in one step of all replayed ranks, in worlds of
  /// more than kLeastCoarse ranks.
  static constexpr double kMostOperations = 3e5;
  static constexpr int kLeastCoarse = 64;
  static constexpr double kRounding = 1e-12;

  Colouring(const ReplayInput& input, CollectivePlans& plans, Routes& routes)
      : input_(input), schedule_(*input.schedule), plans_(plans), routes_(routes) {
    read_programs();
    colour_ranks();
    colour_groups();
    add_messages();
    add_copies();
    add_collectives();
    colour_links();
    refine();
  }

  void write(Symmetry& symmetry) const {
    symmetry.coarse_ = coarse_;
    symmetry.rank_ = firsts(ranks_);
    symmetry.group_ = firsts(groups_);
    symmetry.replayed_ = sorted_unique(symmetry.rank_);
    write_loads(symmetry);
  }

 private:
  /// A flow between two ranks, or a collective.
  struct Item {
    int from = -1, to = -1;  ///< ranks, the same one for a copy; -1: a collective
    FlowEnds ends{};         ///< of a flow
    int type = 0;
    int group = -1;  ///< -1: of none
    Load load;       ///< over directions of links
    [[nodiscard]] bool joint() const { return from < 0; }
  };
  /// Calls and messages of a program's ranks; groups by their names in the program.
  struct Part {
    std::vector<Collective> calls;         ///< the different ones
    std::vector<int> groups;               ///< as they are named, each once
    std::map<int, Colour> sent_by_offset;  ///< messages to the rank so far above, all together
    std::map<std::pair<MemoryLocation, MemoryLocation>, Colour> copied;  ///< all together, by ends
  };

  template <std::integral Number>
  static Colour mixed(Colour a, Number number) {
    const auto b = static_cast<Colour>(number);
    Colour z = a * 0x9e3779b97f4a7c15ULL + b + 0x94d049bb133111ebULL;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  static Colour mixed(Colour a, double b) { return mixed(a, static_cast<Colour>(std::hash<double>()(b))); }

  void read_programs() {
    for (const Program& program : schedule_.programs) {
      Part& part = parts_.emplace_back();
      std::set<std::tuple<CollectiveKind, int, int, double>> seen;
      for (std::size_t i = 0; i < program.ops.size(); ++i) {
        if (const auto* call = std::get_if<Collective>(&program.ops[i].action)) {
          if (seen.emplace(call->kind, call->group, call->root, call->message.count()).second)
            part.calls.push_back(*call);
          if (!contains(part.groups, call->group)) part.groups.push_back(call->group);
        }
        if (const auto* send = std::get_if<Send>(&program.ops[i].action))
          part.sent_by_offset[send->offset] += mixed(mixed(i, send->message.count()), send->tag);
        if (const auto* copy = std::get_if<Copy>(&program.ops[i].action))
          part.copied[{copy->from, copy->to}] += mixed(i, copy->message.count());
      }
    }
  }

  void colour_ranks() {
    for (int rank = 0; rank < schedule_.world_size; ++rank) {
      const Node& node = input_.cluster->node(input_.node_of_rank[rank]);
      Colour colour = mixed(schedule_.program_of_rank[rank], std::hash<std::string>()(node.device));
      colour = mixed(colour, static_cast<Colour>(node.kind));
      if (!input_.compute.rank_speed.empty()) colour = mixed(colour, input_.compute.rank_speed[rank]);
      ranks_.push_back(mixed(colour, input_.cluster->host_of(input_.node_of_rank[rank]).speed));
    }
  }

  void colour_groups() {
    for (std::size_t i = 0; i < schedule_.groups.size(); ++i)
      groups_.push_back(mixed(Colour{0}, schedule_.groups[i].ranks.size()));
    for (int rank = 0; rank < schedule_.world_size; ++rank)
      for (const int named : part(rank).groups) {
        const int group = schedule_.group_index(named, rank);
        if (schedule_.groups[group].ranks.front() == rank) groups_[group] += mixed(Colour{1}, named);
      }
  }

  [[nodiscard]] const Part& part(int rank) const { return parts_[schedule_.program_of_rank[rank]]; }

  void add(Item item, Colour colour) {
    items_.push_back(std::move(item));
    colours_.push_back(mixed(colour, items_.back().type));
  }

  void add_flow(int from, int to, int type, int group, Colour colour) {
    const int here = input_.node_of_rank[from];
    const int there = input_.node_of_rank[to];
    if (here == there) return;
    const Path& path = routes_.between(here, there);
    const Cluster& cluster = *input_.cluster;
    const bool near = switches_crossed(cluster, path) <= 1;  // path classes of a calibration
    add({from, to, {here, there, type}, type, group, path_load(cluster, path)}, mixed(colour, near ? 1 : 0));
  }

  void add_messages() {
    for (int rank = 0; rank < schedule_.world_size; ++rank)
      for (const auto& [offset, colour] : part(rank).sent_by_offset)
        add_flow(rank, rank + offset, 0, -1, mixed(colour, offset));
  }

  void add_copies() {
    if (!has_action<Copy>(schedule_)) return;
    const CopyEnds ends(input_, *input_.cluster);
    for (int rank = 0; rank < schedule_.world_size; ++rank)
      for (const auto& [places, colour] : part(rank).copied) {
        const auto [from, to] = ends.of(rank, {places.first, places.second, Bytes(0), true});
        const Load load = path_load(*input_.cluster, routes_.between(from, to));
        add({rank, rank, {from, to}, 0, -1, load},
            mixed(mixed(Colour{16}, colour),
                  2 * (places.second.is_host() ? 1 : 0) + (places.first.is_host() ? 1 : 0)));
      }
  }

  /// Adds the calls of the first rank of every group: all its ranks make the same ones.
  void add_collectives() {
    std::set<std::pair<int, int>> known;  // flow type and group
    for (int rank = 0; rank < schedule_.world_size; ++rank) {
      std::map<std::pair<int, int>, std::vector<const CollectivePlan*>> by_flows;
      for (const Collective& call : part(rank).calls) {
        const int group = schedule_.group_index(call.group, rank);
        if (schedule_.groups[group].ranks.front() != rank) continue;
        const CollectivePlan& plan = plans_.of(call, group);
        groups_[group] += mixed(mixed(Colour{2}, plan.flow_type), call.message.count());
        if (plan.graph != nullptr)
          groups_[group] += mixed(mixed(Colour{3}, plan.cost.time(call.message).count()), plan.blocks);
        by_flows[{plan.flow_type, group}].push_back(&plan);
      }
      for (const auto& [key, plans] : by_flows)
        if (known.insert(key).second) add_flows_of(plans, key.second);
    }
  }

  void add_flows_of(const std::vector<const CollectivePlan*>& plans, int group) {
    const std::vector<int>& ranks = schedule_.groups[group].ranks;
    const CollectivePlan& plan = *plans.front();
    if (plan.flows != nullptr) {
      add({-1, -1, {}, plan.flow_type, group, collective_load(input_, plan, plans_, ranks)}, Colour{4});
      return;
    }
    std::map<std::pair<int, int>, Colour> edges;  // by ends: all that the calls send
    for (const CollectivePlan* each : plans)
      for (int index = 0; index < each->call.ranks; ++index) add_steps(*each, index, ranks, edges);
    for (const auto& [ends, colour] : edges)
      add_flow(ranks[ends.first], ranks[ends.second], plan.flow_type, group, colour);
  }

  /// Adds what one rank sends, and colours the rank by its steps.
  void add_steps(const CollectivePlan& plan, int index, const std::vector<int>& ranks,
                 std::map<std::pair<int, int>, Colour>& edges) {
    const Algorithm& algorithm = *plan.algorithm;
    if (plan.way == CollectivePlan::Way::kLinkLoads) {
      edges[{index, (index + 1) % plan.call.ranks}] +=
          mixed(Colour{5}, algorithm.sent(plan.call, index).count());
      return;
    }
    Colour own = algorithm.copied ? mixed(Colour{6}, algorithm.copied(plan.call, index).count()) : Colour{6};
    const int steps = algorithm.steps(plan.call, index);
    for (int k = 0; k < steps; ++k) {
      const Exchange step = algorithm.step(plan.call, index, k);
      const Colour here = mixed(k, step.after + 1);
      own = mixed(own, mixed(here, step.reduce ? 1 : 0));
      if (step.to >= 0 && step.sent > Bytes(0))
        edges[{index, step.to}] += mixed(mixed(here, Colour{7}), step.sent.count());
      if (step.from >= 0 && step.received > Bytes(0))
        edges[{step.from, index}] += mixed(mixed(here, Colour{8}), step.received.count());
    }
    ranks_[ranks[index]] += own;
  }

  void colour_links() {
    links_.resize(2 * input_.cluster->links.size());
    for (const Item& item : items_)
      for (const Load::Share& share : item.load.shares) crossed_.push_back(share.link);
    crossed_ = sorted_unique(std::move(crossed_));
    for (const int each : crossed_) {
      const Link& link = input_.cluster->links[each / 2];
      links_[each] = mixed(mixed(Colour{9}, link.bandwidth.count()), link.latency.count());
      if (link.kind == LinkKind::kEthernet) links_[each] = mixed(links_[each], 1.0);  // NCCL sends by TCP
    }
  }

  /// Refines until a round splits no class. If that leaves too many classes, starts again without the links.
  void refine() {
    const std::vector<Colour> ranks = ranks_, groups = groups_, items = colours_;
    for (std::size_t before = 0, now = classes(); now > before;) {
      before = now;
      refine_items();
      if (!coarse_) refine_links();
      refine_groups();
      refine_ranks();
      now = classes();
      if (coarse_ || schedule_.world_size <= kLeastCoarse ||
          count_operations(schedule_, sorted_unique(firsts(ranks_))) <= kMostOperations)
        continue;
      coarse_ = true;
      ranks_ = ranks;
      groups_ = groups;
      colours_ = items;
      before = 0;
      now = classes();
    }
    if (coarse_) mark_links();
  }

  /// Colours links by the classes of loads that cross them, if links do not colour flows.
  void mark_links() {
    std::vector<std::pair<int, Colour>> crossing;
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (const Load::Share& share : items_[i].load.shares) crossing.emplace_back(share.link, colours_[i]);
    for (const auto& [link, colour] : sorted_unique(std::move(crossing)))
      links_[link] += mixed(Colour{15}, colour);
  }

  /// A flow crosses its links in order, a collective all at once.
  void refine_items() {
    for (const auto [i, item] : enumerated(items_)) {
      Colour colour = colours_[i];
      if (item.group >= 0) colour = mixed(colour, groups_[item.group]);
      if (!item.joint()) colour = mixed(mixed(colour, ranks_[item.from]), ranks_[item.to]);
      Colour crossed = 0;
      for (const Load::Share& share : coarse_ ? std::vector<Load::Share>() : item.load.shares) {
        const Colour here = mixed(links_[share.link], rounded(share.weight));
        crossed = item.joint() ? crossed + here : mixed(crossed, here);
      }
      colours_[i] = mixed(colour, crossed);
    }
  }

  void refine_links() {
    std::vector<Colour> crossing(links_.size(), 0);
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (const Load::Share& share : items_[i].load.shares)
        crossing[share.link] += mixed(mixed(Colour{10}, colours_[i]), rounded(share.weight));
    for (const int each : crossed_) links_[each] = mixed(links_[each], crossing[each]);
  }

  /// Sums of equal parts in another order are equal but for rounding.
  static double rounded(double weight) { return static_cast<double>(static_cast<float>(weight)); }

  void refine_groups() {
    std::vector<Colour> within(groups_.size(), 0);
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (items_[i].joint()) within[items_[i].group] += mixed(Colour{11}, colours_[i]);
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (const int rank : schedule_.groups[group].ranks) within[group] += mixed(Colour{12}, ranks_[rank]);
      groups_[group] = mixed(groups_[group], within[group]);
    }
  }

  void refine_ranks() {
    std::vector<Colour> around(ranks_.size(), 0);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].joint()) continue;
      around[items_[i].from] += mixed(Colour{13}, colours_[i]);
      around[items_[i].to] += mixed(Colour{14}, colours_[i]);
    }
    for (int rank = 0; rank < schedule_.world_size; ++rank) {
      for (const int named : part(rank).groups)
        around[rank] += mixed(named, groups_[schedule_.group_index(named, rank)]);
      ranks_[rank] = mixed(ranks_[rank], around[rank]);
    }
  }

  [[nodiscard]] std::size_t classes() const {
    std::vector<Colour> used;
    used.reserve(crossed_.size());
    for (const int each : crossed_) used.push_back(links_[each]);
    return sorted_unique(ranks_).size() + sorted_unique(groups_).size() + sorted_unique(colours_).size() +
           sorted_unique(std::move(used)).size();
  }

  /// By element: the first one of its colour.
  static std::vector<int> firsts(const std::vector<Colour>& colours) {
    std::unordered_map<Colour, int> first;
    std::vector<int> result;
    result.reserve(colours.size());
    for (std::size_t i = 0; i < colours.size(); ++i)
      result.push_back(first.try_emplace(colours[i], static_cast<int>(i)).first->second);
    return result;
  }

  /// Classes of the links that some load crosses.
  struct LinkClasses {
    std::unordered_map<Colour, int> of;  ///< by colour
    std::vector<double> size, bandwidth;
  };
  [[nodiscard]] LinkClasses link_classes() const {
    LinkClasses classes;
    for (const int each : crossed_) {
      const auto [found, is_new] =
          classes.of.try_emplace(links_[each], static_cast<int>(classes.size.size()));
      if (is_new) {
        classes.size.push_back(0.0);
        classes.bandwidth.push_back(input_.cluster->links[each / 2].bandwidth.count());
      }
      ++classes.size[found->second];
    }
    return classes;
  }

  using Crossings = std::vector<std::map<int, double>>;  ///< w by class of links and class of loads
  /// \param first by load: the first one of its class
  [[nodiscard]] Crossings crossings(const LinkClasses& classes, const std::vector<int>& first) const {
    Crossings crossing(classes.size.size());
    if (coarse_) {
      std::vector<std::pair<std::pair<int, int>, double>> taken;  // by link and class of loads
      for (std::size_t i = 0; i < items_.size(); ++i)
        for (const Load::Share& share : items_[i].load.shares)
          taken.push_back({{share.link, first[i]}, share.weight});
      std::ranges::stable_sort(taken, {}, [](const auto& each) { return each.first; });
      for (std::size_t i = 0; i < taken.size();) {
        const auto where = taken[i].first;
        double all = 0.0;
        for (; i < taken.size() && taken[i].first == where; ++i) all += taken[i].second;
        double& most = crossing[classes.of.at(links_[where.first])][where.second];
        most = std::max(most, all);
      }
      return crossing;
    }
    std::vector<double> count(items_.size(), 0.0);  // of the class, at its first
    for (const int each : first) ++count[each];
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (first[i] == static_cast<int>(i))
        for (const Load::Share& share : items_[i].load.shares) {
          const int link = classes.of.at(links_[share.link]);
          crossing[link][first[i]] += share.weight * count[i] / classes.size[link];
        }
    return crossing;
  }

  /// Loads by the first of their class. Links of which every load takes at most the same part as of another
  /// link are left out.
  std::unordered_map<int, Load> loads_on_links(const LinkClasses& classes, const Crossings& crossing,
                                               Symmetry& symmetry) const {
    std::vector<std::size_t> order(crossing.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) { return crossing[a].size() > crossing[b].size(); });
    std::unordered_map<int, Load> loads;
    std::unordered_map<int, std::vector<std::size_t>> kept_of;  // links by load
    for (const std::size_t link : order) {
      const auto covers = [&](std::size_t other) {
        return std::ranges::all_of(crossing[link], [&](const auto& taken) {
          const auto there = crossing[other].find(taken.first);
          return there != crossing[other].end() &&
                 taken.second / classes.bandwidth[link] <=
                     there->second / classes.bandwidth[other] * (1.0 + kRounding);
        });
      };
      const std::vector<std::size_t>& others = kept_of[crossing[link].begin()->first];
      if (std::ranges::any_of(others, covers)) continue;
      for (const auto& [item, weight] : crossing[link]) {
        kept_of[item].push_back(link);
        loads[item].shares.push_back({static_cast<int>(symmetry.links_.size()), weight});
      }
      symmetry.links_.push_back(classes.bandwidth[link]);
    }
    return loads;
  }

  void write_loads(Symmetry& symmetry) const {
    const std::vector<int> first = firsts(colours_);
    const LinkClasses classes = link_classes();
    std::unordered_map<int, Load> loads = loads_on_links(classes, crossings(classes, first), symmetry);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Load& load = loads[first[i]];
      const Load& own = items_[i].load;
      load.latency_s = std::max(load.latency_s, own.latency_s);
      load.penalty = first[i] == static_cast<int>(i) ? own.penalty : std::max(load.penalty, own.penalty);
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Load& load = loads[first[i]];
      const Item& item = items_[i];
      if (item.joint())
        symmetry.collectives_.emplace(std::pair(item.type, item.group), load);
      else
        symmetry.flows_.emplace(item.ends, load);
    }
  }

  const ReplayInput& input_;
  const Schedule& schedule_;
  CollectivePlans& plans_;
  Routes& routes_;
  std::vector<Part> parts_;  ///< by program
  bool coarse_ = false;
  std::vector<Item> items_;
  std::vector<int> crossed_;  ///< directions of links that some item takes part of
  std::vector<Colour> ranks_, groups_, colours_, links_;
};

Symmetry Symmetry::folded(const ReplayInput& input, CollectivePlans& plans, Routes& routes) {
  Symmetry result(input, plans, routes);
  result.links_.clear();
  Colouring(input, plans, routes).write(result);
  return result;
}

}  // namespace stepcast

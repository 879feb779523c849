#include "sim/replay/collectives.hpp"

#include <algorithm>

namespace stepcast {

Collectives::Collectives(const CollectiveWorld& world, const Schedule& schedule, Fidelity fidelity,
                         Library library)
    : world_(world),
      schedule_(schedule),
      fidelity_(fidelity),
      library_(std::move(library)),
      index_of_rank_(schedule.groups.size()),
      calls_(schedule.groups.size()) {
  for (std::size_t g = 0; g < schedule.groups.size(); ++g) {
    const std::vector<int>& ranks = schedule.groups[g].ranks;
    calls_[g].resize(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) index_of_rank_[g][ranks[i]] = static_cast<int>(i);
  }
}

std::unique_ptr<CollectiveRun> Collectives::make_run(const Collective& collective,
                                                     const std::vector<int>& ranks) {
  const Algorithm& algorithm = algorithm_for(collective.kind, library_.backend, library_.choice);
  const CollectiveCall call{collective.message, static_cast<int>(ranks.size()), collective.root};
  if (world_.nccl != nullptr && call.ranks > 1) return make_nccl(collective, algorithm, call, ranks);
  if (call.ranks > 1) algorithms_used_.try_emplace(collective.kind, algorithm_name(algorithm));
  const bool aggregate =
      algorithm.ring && (fidelity_ == Fidelity::kAggregate ||
                         (fidelity_ == Fidelity::kAutomatic && call.ranks > kLargestMessageGroup));
  if (algorithm.ring && call.ranks > 1) used_.insert(aggregate ? "aggregate" : "message");
  return aggregate ? make_aggregate_run(world_, algorithm, call, ranks)
                   : make_message_run(world_, algorithm, call, ranks);
}

/// Rings go message by message only where that was asked for: NCCL cuts messages into chunks that follow each
/// other, so that one flow per edge is nearer to what it does.
std::unique_ptr<CollectiveRun> Collectives::make_nccl(const Collective& collective,
                                                      const Algorithm& algorithm, const CollectiveCall& call,
                                                      const std::vector<int>& ranks) {
  const NcclCall& nccl = nccl_of(collective, ranks);
  const bool message_level = fidelity_ == Fidelity::kMessage && algorithm.ring &&
                             call.message.count() > 0.0 && nccl.cost.algorithm == NcclAlgorithm::kRing;
  used_.insert(message_level ? "message" : "aggregate");
  return make_nccl_run(world_, algorithm, nccl, call, ranks, message_level);
}

NcclCall& Collectives::nccl_of(const Collective& collective, const std::vector<int>& ranks) {
  const Bytes message = collective.message;
  const auto [found, is_new] =
      nccl_calls_.try_emplace({ranks.data(), collective.kind, collective.root, message.count()});
  NcclCall& nccl = found->second;
  if (!is_new) return nccl;
  std::vector<int> places;
  places.reserve(ranks.size());
  for (const int rank : ranks) places.push_back(world_.transport.node(rank));
  std::optional<NcclAlgorithm> wanted;
  if (library_.choice.count(collective.kind) != 0)
    wanted = algorithm_for(collective.kind, library_.backend, library_.choice).nccl;
  nccl = nccl_call(*world_.nccl, collective, places, wanted);
  const std::string choice = nccl.graph == nullptr ? "messages" : to_text(*nccl.graph, nccl.cost);
  const auto [chosen, is_first] =
      nccl_chosen_.try_emplace({collective.kind, choice}, Chosen{message, message});
  chosen->second.smallest = std::min(chosen->second.smallest, message);
  chosen->second.largest = std::max(chosen->second.largest, message);
  return nccl;
}

void Collectives::join(int rank, const Collective& collective, Callback done) {
  const auto group = static_cast<std::size_t>(schedule_.group_index(collective.group, rank));
  const int index = index_of_rank_[group].at(rank);
  const std::pair<int, long long> key{static_cast<int>(group), calls_[group][index]++};
  Open& open = open_[key];
  if (open.run == nullptr) {
    open.run = make_run(collective, schedule_.groups[group].ranks);
    open.left = static_cast<int>(schedule_.groups[group].ranks.size());
  }
  open.run->join(index, [this, key, done = std::move(done)] { leave(key, done); });
}

void Collectives::leave(const std::pair<int, long long>& key, const Callback& done) {
  if (--open_.at(key).left == 0)  // its own code is still running
    world_.clock.at(world_.clock.now(), [this, key] { open_.erase(key); });
  done();
}

std::string Collectives::nccl_choices() const {
  std::vector<std::pair<std::pair<CollectiveKind, std::string>, Chosen>> all(nccl_chosen_.begin(),
                                                                             nccl_chosen_.end());
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.first, a.second.smallest) < std::pair(b.first.first, b.second.smallest);
  });
  std::string text;
  for (const auto& [what, sizes] : all) {
    text += (text.empty() ? "" : "; ") + std::string(to_text(what.first)) + " " + to_text(sizes.smallest);
    if (sizes.largest > sizes.smallest) text += " to " + to_text(sizes.largest);
    text += ": " + what.second;
  }
  return text;
}

std::string Collectives::algorithms_used() const {
  std::string text;
  for (const auto& [kind, name] : algorithms_used_)
    text.append(text.empty() ? "" : "; ").append(to_text(kind)).append(": ").append(name);
  return text;
}

std::string Collectives::fidelity_used() const {
  if (used_.empty()) return "none";
  return used_.size() == 2 ? "message and aggregate" : *used_.begin();
}

}  // namespace stepcast

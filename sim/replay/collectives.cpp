#include "sim/replay/collectives.hpp"

namespace stepcast {

Collectives::Collectives(const CollectiveWorld& world, const Schedule& schedule, Fidelity fidelity)
    : world_(world),
      schedule_(schedule),
      fidelity_(fidelity),
      backend_(world.calibration == nullptr ? "" : world.calibration->backend),
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
  const Algorithm& algorithm = algorithm_for(collective.kind, backend_);
  const CollectiveCall call{collective.message, static_cast<int>(ranks.size()), collective.root};
  const bool aggregate =
      algorithm.ring && (fidelity_ == Fidelity::kAggregate ||
                         (fidelity_ == Fidelity::kAutomatic && call.ranks > kLargestMessageGroup));
  if (algorithm.ring && call.ranks > 1) used_.insert(aggregate ? "aggregate" : "message");
  return aggregate ? make_aggregate_run(world_, algorithm, call, ranks)
                   : make_message_run(world_, algorithm, call, ranks);
}

void Collectives::join(int rank, const Collective& collective, Callback done) {
  const auto group = static_cast<std::size_t>(collective.group);
  const int index = index_of_rank_[group].at(rank);
  const std::pair<int, long long> key{collective.group, calls_[group][static_cast<std::size_t>(index)]++};
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

std::string Collectives::fidelity_used() const {
  if (used_.empty()) return "none";
  return used_.size() == 2 ? "message and aggregate" : *used_.begin();
}

}  // namespace stepcast

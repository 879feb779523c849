#include "runner/execute/core_sharing.hpp"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "core/program.hpp"

namespace stepcast {
namespace {

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

std::vector<int> all_ranks(const RankSession& session) {
  std::vector<int> ranks(static_cast<std::size_t>(session.ranks.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

MachineState look(RankSession& session, const CoreSharing& sharing, MachineWatch& watch,
                  const std::vector<int>& taking_part, int turn) {
  MachineState state = watch.sample(false);
  std::vector<int> here = taking_part;
  std::erase_if(here, [&](int rank) { return !contains(sharing.on_machine, rank); });
  session.backend->barrier();
  if (!here.empty() && here[static_cast<std::size_t>(turn) % here.size()] == session.ranks.rank)
    state.probe_per_s = probe_speed();
  session.backend->barrier();
  return state;
}

CoreSharing find_core_sharing(RankSession& session) {
  const std::vector<int> cores = usable_cores();
  std::vector<double> mine{static_cast<double>(::getpid())};
  mine.insert(mine.end(), cores.begin(), cores.end());
  const auto all = session.control->all_gather_numbers("cores", mine);
  const std::vector<HostIdentity>& hosts = session.place.hosts;
  const int own = session.ranks.rank;
  CoreSharing sharing;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<double>& theirs = all[r];
    const bool same_machine = hosts.empty() || hosts[r].same_machine(hosts[static_cast<std::size_t>(own)]);
    const bool shares = std::any_of(theirs.begin() + 1, theirs.end(),
                                    [&](double core) { return contains(cores, static_cast<int>(core)); });
    if (rank != own && !same_machine) continue;
    sharing.on_machine.push_back(rank);
    if (rank != own && !shares) continue;
    sharing.ranks.push_back(rank);
    const auto process = static_cast<int>(theirs.front());
    if (process != ::getpid() && !contains(sharing.processes, process)) sharing.processes.push_back(process);
  }
  sharing.crowded = sharing.ranks.size() > cores.size();
  return sharing;
}

}  // namespace stepcast

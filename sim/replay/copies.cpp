#include "sim/replay/copies.hpp"

#include <utility>

#include "sim/core/error.hpp"

namespace stepcast {
namespace {

/// Calls `visit(rank, op, copy)` for every copy of every rank.
template <class Visit>
void for_each_copy(const Schedule& schedule, Visit&& visit) {
  for (int rank = 0; rank < schedule.world_size; ++rank)
    for (const Op& op : schedule.program(rank).ops)
      if (const auto* copy = std::get_if<Copy>(&op.action)) visit(rank, op, *copy);
}

}  // namespace

Copies::Copies(Network& network, const ReplayInput& input)
    : network_(network), input_(input), bytes_moved_(static_cast<std::size_t>(input.schedule->world_size)) {
  for_each_copy(*input.schedule, [this](int rank, const Op& op, const Copy& copy) { check(rank, op, copy); });
}

void Copies::check(int rank, const Op& op, const Copy& copy) const {
  const Cluster& cluster = *input_.cluster;
  const std::string what = "cluster '" + cluster.name + "': operation '" + op.name + "' ";
  const int from = node(input_, rank, copy.from);
  const int to = node(input_, rank, copy.to);
  if (!cluster.has_devices())
    throw UsageError(
        what + "copies between a host and its devices, but no host has any; take for example --cluster " +
        "h100x4-nvlink");
  if (cluster.node(from).host != cluster.node(to).host)
    throw UsageError(what + "leads from host '" + cluster.host_of(from).name + "' to host '" +
                     cluster.host_of(to).name +
                     "'; one process drives the devices of one host, of which this one has " +
                     std::to_string(cluster.host_of(from).devices.size()));
  if (from == to)
    throw UsageError(what + "leads from '" + cluster.node_name(from) +
                     "' to itself: every rank needs a device of its " + "own, and there are " +
                     std::to_string(cluster.places().size()));
}

int Copies::node(const ReplayInput& input, int rank, const MemoryPlace& place) {
  if (place.kind == MemoryPlace::Kind::kDevice)
    return input.node_of_rank[static_cast<std::size_t>(rank + place.offset)];
  return input.cluster->host_of(input.node_of_rank[static_cast<std::size_t>(rank)]).node;
}

std::vector<int> Copies::nodes(const ReplayInput& input) {
  std::vector<int> result;
  for_each_copy(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    result.push_back(node(input, rank, copy.from));
    result.push_back(node(input, rank, copy.to));
  });
  return result;
}

double Copies::launch_s(int rank) const {
  const int at = input_.node_of_rank[static_cast<std::size_t>(rank)];
  return input_.copies.launch.count() / input_.cluster->host_of(at).speed;
}

void Copies::start(int rank, const Copy& copy, Callback done) {
  double rate = 0.0;  // as fast as the links
  if (copy.touches_host()) rate = (copy.pinned ? input_.copies.pinned : input_.copies.pageable).count();
  bytes_moved_[static_cast<std::size_t>(rank)] += copy.message.count();
  network_.start(node(input_, rank, copy.from), node(input_, rank, copy.to), copy.message.count(),
                 std::move(done), rate);
}

}  // namespace stepcast

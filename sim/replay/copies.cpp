#include "sim/replay/copies.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace stepcast {
namespace {

/// Calls `visit(rank, op, copy)` for every copy of every rank.
template <class Visit>
void for_each_copy(const Schedule& schedule, Visit&& visit) {
  for (int rank = 0; rank < schedule.world_size; ++rank)
    for (const Op& op : schedule.program(rank).ops)
      if (const auto* copy = std::get_if<Copy>(&op.action)) visit(rank, op, *copy);
}

std::string staging_name(const Host& host) { return host.name + "/staging"; }

/// The hosts' staging nodes stand at the end.
int staging_node(const Cluster& cluster, const Host& host) {
  const std::string name = staging_name(host);
  const auto found = std::find_if(cluster.nodes.rbegin(), cluster.nodes.rend(),
                                  [&name](const Node& node) { return node.name == name; });
  return static_cast<int>(cluster.nodes.rend() - found) - 1;  // -1: none
}

/// To issue a copy takes the main thread a while, which it does not have amid the hooks of a backward
/// operation.
void check_hooks(const Schedule& schedule) {
  for (const Program& program : schedule.programs) {
    const Op* copy = nullptr;  // since the last operation of the main thread
    bool behind_hook = false;
    for (const Op& op : program.ops) {
      if (std::holds_alternative<Copy>(op.action)) copy = &op;
      const bool is_hook = op.within >= 0;
      if (copy != nullptr && (is_hook || behind_hook))
        throw std::logic_error("schedule: copy '" + copy->name +
                               "' stands before or behind a hook of a backward operation, where none may");
      if (op.stream != Stream::kCompute) continue;
      behind_hook = is_hook;
      copy = nullptr;
    }
  }
}

const Host& host_of_rank(const ReplayInput& input, int rank) {
  return input.cluster->host_of(input.node_of_rank[static_cast<std::size_t>(rank)]);
}

}  // namespace

Copies::Copies(Network& network, const ReplayInput& input, const Cluster& with_staging)
    : network_(network),
      cluster_(with_staging),
      input_(input),
      bytes_moved_(static_cast<std::size_t>(input.schedule->world_size)) {
  check_hooks(*input.schedule);
  std::map<int, int> rank_at;  // by node
  for_each_copy(*input.schedule, [&](int rank, const Op& op, const Copy& copy) {
    check(rank, op, copy);
    for (const MemoryPlace& place : {copy.from, copy.to}) {
      if (place.kind != MemoryPlace::Kind::kDevice) continue;
      const int owner = rank + place.offset;
      const int at = input.node_of_rank[static_cast<std::size_t>(owner)];
      if (rank_at.try_emplace(at, owner).first->second != owner)
        throw UsageError("cluster '" + cluster_.name + "': ranks " + std::to_string(rank_at.at(at)) +
                         " and " + std::to_string(owner) + " sit on " + cluster_.node_name(at) +
                         ", but copies want a device of its own for every rank; there are " +
                         std::to_string(cluster_.places().size()));
    }
  });
}

Cluster Copies::with_staging(const ReplayInput& input) {
  Cluster cluster = *input.cluster;
  for_each_copy(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    const Host& host = host_of_rank(input, rank);
    if (!copy.staged() || staging_node(cluster, host) >= 0) return;
    const std::string name = staging_name(host);
    const int node = cluster.add_node({name, NodeKind::kSocket, cluster.node(host.node).host, ""});
    cluster.links.push_back({name + "-memory", node, host.node, input.copies.pageable, Seconds(0)});
  });
  return cluster;
}

void Copies::check(int rank, const Op& op, const Copy& copy) const {
  const Cluster& cluster = cluster_;
  const std::string what = "cluster '" + cluster.name + "': operation '" + op.name + "' ";
  const int from = node(input_, cluster_, rank, copy, copy.from);
  const int to = node(input_, cluster_, rank, copy, copy.to);
  if (!cluster.has_devices())
    throw UsageError(what +
                     "copies between a host and its devices, but no host has any; take for example --cluster "
                     "h100x4-nvlink");
  if (cluster.node(from).host != cluster.node(to).host)
    throw UsageError(what + "leads from host '" + cluster.host_of(from).name + "' to host '" +
                     cluster.host_of(to).name +
                     "'; one process drives the devices of one host, of which this one has " +
                     std::to_string(cluster.host_of(from).devices.size()));
}

int Copies::node(const ReplayInput& input, const Cluster& with_staging, int rank, const Copy& copy,
                 const MemoryPlace& place) {
  if (place.kind == MemoryPlace::Kind::kDevice) {
    const int owner = rank + place.offset;
    return input.node_of_rank[static_cast<std::size_t>(owner)];
  }
  const Host& host = host_of_rank(input, rank);
  return copy.staged() ? staging_node(with_staging, host) : host.node;
}

std::vector<int> Copies::nodes(const ReplayInput& input, const Cluster& with_staging) {
  std::vector<int> result;
  for_each_copy(*input.schedule, [&](int rank, const Op& /*op*/, const Copy& copy) {
    result.push_back(node(input, with_staging, rank, copy, copy.from));
    result.push_back(node(input, with_staging, rank, copy, copy.to));
  });
  return result;
}

double Copies::launch_s(int rank) const {
  return input_.copies.launch.count() / host_of_rank(input_, rank).speed;
}

void Copies::start(int rank, const Copy& copy, Callback done) {
  bytes_moved_[static_cast<std::size_t>(rank)] += copy.message.count();
  network_.start(node(input_, cluster_, rank, copy, copy.from), node(input_, cluster_, rank, copy, copy.to),
                 copy.message.count(), std::move(done));
}

}  // namespace stepcast

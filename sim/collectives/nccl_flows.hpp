#pragma once

#include <vector>

#include "sim/collectives/algorithm.hpp"
#include "sim/collectives/nccl_tuning.hpp"

/// Bytes that a collective of NCCL moves between GPUs.
namespace stepcast {

/// All that one rank sends to another during the call.
struct NcclFlow {
  int from = 0;  ///< indices in the group
  int to = 0;
  Bytes payload;
};

/// The flows of a collective with all channels together. S is the message, n the ranks, N the hosts.
///
/// - Ring: what Patarasuk & Yuan's algorithms send over every edge, 2 (n - 1)/n S of all-reduce,
///   (n - 1)/n S of all-gather and reduce-scatter; a broadcast sends S over every edge but the one that leads
///   back to its root.
/// - Tree: in every host a chain in the order of the ring, whose first GPU is the host's door to two binary
///   trees over the hosts, each of half the channels (`ncclGetDtree`); S up and S down every edge, in
///   proportion to the channels.
/// - NVLS: each GPU gives S to the switch to be added and S/n as the sum that the switch multiplies, and
///   takes as much. Written as a flow of (n + 1)/n S to the next GPU, which loads the same links in the same
///   directions; NVSwitches are one node of the cluster, and nothing else of them is modelled.
/// - NVLS tree: the same in every host, and each GPU is the door of its share of S to the two trees.
///
/// Holds: the payload of a ring sums up to its closed form; one rank sends nothing.
std::vector<NcclFlow> nccl_flows(const NcclGraph& graph, const NcclCost& choice, CollectiveKind kind,
                                 const CollectiveCall& call);

}  // namespace stepcast

#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sim/replay/replay.hpp"

/// Small clusters and Schedules, written down by hand, for the tests of the replay.
namespace stepcast::small_world {

inline Op operation(std::string name, Stream stream, Action action, std::vector<int> after = {}) {
  Op op;
  op.name = std::move(name);
  op.stream = stream;
  op.action = std::move(action);
  op.after = std::move(after);
  return op;
}

/// `hosts` hosts at one switch.
inline Cluster star(int hosts, double bandwidth, double latency, int cores = 1) {
  Cluster cluster;
  cluster.name = "star";
  for (int i = 0; i < hosts; ++i) {
    cluster.add_host({"host" + std::to_string(i), cores, Bytes(0), 1.0});
    cluster.links.push_back(
        {"link" + std::to_string(i), i, hosts, BytesPerSecond(bandwidth), Seconds(latency)});
  }
  cluster.add_node({"switch", NodeKind::kSwitch});
  return cluster;
}

/// One host that all ranks share.
inline Cluster one_host(int cores) {
  Cluster cluster;
  cluster.name = "one_host";
  cluster.add_host({"host", cores, Bytes(0), 1.0});
  return cluster;
}

/// A model whose segments take declared times and have one parameter of `parameter` bytes each.
inline Model fixed_model(int segments, double forward_s, double backward_s, double parameter) {
  Model model;
  model.name = model.specification = "fixed";
  for (int i = 0; i < segments; ++i) {
    Segment segment;
    segment.name = "layer" + std::to_string(i);
    segment.kind = "fixed";
    segment.fixed_forward = Seconds(forward_s);
    segment.fixed_backward = Seconds(backward_s);
    segment.parameters = {i};
    model.segments.push_back(segment);
    model.ready_order.insert(model.ready_order.begin(), i);
    model.parameters.push_back({segment.name + ".weight",
                                {static_cast<std::int64_t>(parameter / 4)},
                                i,
                                Bytes(parameter),
                                Bytes(parameter),
                                Bytes(parameter)});
  }
  return model;
}

inline Group world_group(int ranks) {
  Group group{"world", std::vector<int>(static_cast<std::size_t>(ranks))};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

/// All ranks run the same program in one group.
inline Schedule same_program(int ranks, std::vector<Op> ops) {
  Schedule schedule;
  schedule.strategy = "test";
  schedule.world_size = ranks;
  schedule.groups = {world_group(ranks)};
  schedule.programs = {{std::move(ops)}};
  schedule.program_of_rank.assign(static_cast<std::size_t>(ranks), 0);
  return schedule;
}

/// One collective that the main thread waits for.
inline Schedule one_collective(CollectiveKind kind, int ranks, double message) {
  Collective call;
  call.kind = kind;
  call.message = Bytes(message);
  return same_program(ranks, {operation("collective", Stream::kComm, call),
                              operation("wait", Stream::kCompute, Synchronize{}, {0})});
}

inline ReplayInput input_of(const Schedule& schedule, const Model& model, const Cluster& cluster) {
  ReplayInput input;
  input.schedule = &schedule;
  input.model = &model;
  input.cluster = &cluster;
  input.node_of_rank = place_ranks(cluster, schedule.world_size);
  return input;
}

/// Endpoint costs: one-way 10 us + n / 1 GB/s, notice 8 us, engine 6 us + n / 2 GB/s, half of which is
/// processor time; reductions and copies at 4 GB/s; no overhead per call.
inline Calibration calibration() {
  const auto line = [](double alpha, double bandwidth) {
    return PiecewiseCost{{{0.0, alpha}, {1e9, alpha + 1e9 / bandwidth}}};
  };
  Calibration result;
  result.backend = "gloo";
  PathCost path;
  path.path_class = "same_host";
  path.latency = line(10e-6, 1e9);
  path.notice_s = 8e-6;
  path.gap = line(6e-6, 2e9);
  path.cpu = line(3e-6, 4e9);
  result.paths = {path};
  result.reduce = line(0.0, 4e9);
  result.copy = line(0.0, 4e9);
  return result;
}

}  // namespace stepcast::small_world

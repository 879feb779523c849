#pragma once

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "sim/replay/replay.hpp"
#include "sim/strategies/strategy.hpp"

/// Small training configurations, models, clusters and Schedules that the tests share.
namespace stepcast::worlds {

/// Message of the error that `action` throws; empty if it throws none.
template <class Expected = InputError, class Action>
std::string error_of(const Action& action) {
  try {
    static_cast<void>(action());
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

/// \param batch samples per step and replica
inline TrainingConfig training(int ranks, int batch, OptionTexts options = {}, int micro_batches = 1) {
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = batch;
  config.micro_batches = micro_batches;
  config.options = std::move(options);
  return config;
}

/// One rank for the strategy `single`, else `ranks`.
inline int ranks_of(const std::string& strategy, int ranks) { return strategy == "single" ? 1 : ranks; }

/// A model of models/, read once.
inline const Model& shipped(const std::string& name) {
  static std::map<std::string, Model> loaded;
  const auto found = loaded.find(name);
  return found != loaded.end() ? found->second : loaded.emplace(name, load_model(name)).first->second;
}

/// Model with SGD, momentum and weight decay.
inline Model with_sgd(const std::string& specification) {
  Model model = load_model(specification);
  model.optimizer = {"sgd", 0.05, 0.9, 1e-3};
  return model;
}

inline std::vector<std::string> names(const Program& program) {
  std::vector<std::string> result;
  for (const Op& op : program.ops) result.push_back(op.name);
  return result;
}

/// Position of the first operation whose name begins with `start`; -1 if there is none.
inline int find(const Program& program, const std::string& start) {
  for (std::size_t i = 0; i < program.ops.size(); ++i)
    if (program.ops[i].name.starts_with(start)) return static_cast<int>(i);
  return -1;
}

/// Bytes of the collectives of a program, by kind.
inline std::map<CollectiveKind, double> messages(const Program& program) {
  std::map<CollectiveKind, double> total;
  for (const Op& op : program.ops)
    if (const auto* call = std::get_if<Collective>(&op.action)) total[call->kind] += call->message.count();
  return total;
}

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
    segment.fixed = FixedTimes{Seconds(forward_s), Seconds(backward_s)};
    segment.parameters = {i};
    segment.frozen.all_before = i == 0;
    model.segments.push_back(segment);
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
/// CPU time; reductions and copies at 4 GB/s; no overhead per call.
inline Calibration calibration() {
  const auto line = [](double alpha, double bandwidth) {
    return PiecewiseCost{{{0.0, alpha}, {1e9, alpha + 1e9 / bandwidth}}};
  };
  Calibration result;
  result.job.backend = "gloo";
  PathCost path;
  path.path_class = "same_host";
  path.latency = line(10e-6, 1e9);
  path.notice_s = 8e-6;
  path.gap = line(6e-6, 2e9);
  path.cpu = line(3e-6, 4e9);
  result.paths = {path};
  result.reduce.cost = line(0.0, 4e9);
  result.copy.cost = line(0.0, 4e9);
  return result;
}

}  // namespace stepcast::worlds

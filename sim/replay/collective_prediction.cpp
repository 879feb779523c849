#include "sim/replay/collective_prediction.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/core/file.hpp"

namespace stepcast {
namespace {

constexpr int kIterations = 10;
constexpr int kWarmupIterations = 2;
constexpr int kTag = 1;

std::optional<CollectiveKind> kind_of(const std::string& name) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kBroadcast,
        CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    if (name == to_text(kind)) return kind;
  return std::nullopt;
}

Op operation(std::string name, Stream stream, Action action, std::vector<int> after) {
  Op op;
  op.name = std::move(name);
  op.stream = stream;
  op.action = std::move(action);
  op.after = std::move(after);
  return op;
}

Schedule empty_schedule(int world_size) {
  Schedule schedule;
  schedule.strategy = "bench";
  schedule.world_size = world_size;
  Group world{"world", std::vector<int>(static_cast<std::size_t>(world_size))};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  schedule.groups.push_back(std::move(world));
  return schedule;
}

/// One call, and the host that waits for it before the next step.
Schedule collective_schedule(CollectiveKind kind, Bytes message, int world_size) {
  Schedule schedule = empty_schedule(world_size);
  schedule.buckets.push_back({{}, message});
  Program program;
  const Collective call{kind, message, 0, 0, {Payload::What::kBucket, 0}};
  program.ops.push_back(operation("collective", Stream::kComm, call, {}));
  program.ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {0}));
  schedule.programs.push_back(std::move(program));
  schedule.program_of_rank.assign(static_cast<std::size_t>(world_size), 0);
  return schedule;
}

/// Rank 0 sends and waits for the answer of rank 1; the other ranks do nothing.
Schedule ping_pong_schedule(Bytes message, int world_size) {
  Schedule schedule = empty_schedule(world_size);
  Program ping;
  ping.ops.push_back(operation("send", Stream::kComm, Send{1, message, kTag}, {}));
  ping.ops.push_back(operation("recv", Stream::kComm, Recv{1, message, kTag + 1}, {0}));
  ping.ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {1}));
  Program pong;
  pong.ops.push_back(operation("recv", Stream::kComm, Recv{0, message, kTag}, {}));
  pong.ops.push_back(operation("send", Stream::kComm, Send{0, message, kTag + 1}, {0}));
  pong.ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {1}));
  schedule.programs = {std::move(ping), std::move(pong), Program{}};
  schedule.program_of_rank.assign(static_cast<std::size_t>(world_size), 2);
  schedule.program_of_rank[0] = 0;
  schedule.program_of_rank[1] = 1;
  return schedule;
}

std::vector<double> slowest_rank(const Result& result) {
  std::vector<double> times = result.step_time_s.front();
  for (const auto& rank : result.step_time_s)
    for (std::size_t i = 0; i < std::min(times.size(), rank.size()); ++i) times[i] = std::max(times[i], rank[i]);
  return times;
}

void check(const CollectiveRequest& request) {
  if (request.world_size < 2) throw UsageError("--world-size must be at least 2 for collectives");
  if (request.smallest.count() <= 0.0 || request.largest < request.smallest || request.factor <= 1.0)
    throw UsageError("--min must be above 0 B and at most --max, --factor above 1");
  for (const std::string& name : request.collectives) {
    const auto& known = bench_collectives();
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(unknown_name("collective", name, known));
  }
}

}  // namespace

const std::vector<std::string>& bench_collectives() {
  static const std::vector<std::string> names = {"send_recv", "all_reduce", "gather",        "scatter",
                                                 "broadcast", "all_gather", "reduce_scatter"};
  return names;
}

std::vector<Bytes> message_sizes(const CollectiveRequest& request) {
  std::vector<Bytes> sizes;
  for (Bytes size = request.smallest; size <= request.largest; size = size * request.factor) sizes.push_back(size);
  return sizes;
}

Bench predict_collectives(const CollectiveRequest& request) {
  check(request);
  const Cluster cluster = load_cluster(request.cluster);
  std::optional<Calibration> calibration;
  Bench bench;
  bench.lineage.push_back(make_ancestor("cluster", cluster.path));
  if (!request.calibration.empty()) {
    calibration = load_calibration(request.calibration);
    bench.backend = calibration->backend;
    bench.lineage.push_back(make_ancestor("calibration", request.calibration));
  }
  bench.origin = Origin::kPredicted;
  bench.world_size = request.world_size;

  const Model no_model;
  ReplayInput input;
  input.model = &no_model;
  input.cluster = &cluster;
  input.host_of_rank = place_ranks(cluster, request.world_size);
  input.calibration = calibration ? &*calibration : nullptr;
  input.fidelity = request.fidelity;
  input.steps = kIterations;
  input.warmup_steps = kWarmupIterations;
  input.record_spans = false;
  for (const std::string& name : request.collectives.empty() ? bench_collectives() : request.collectives) {
    for (const Bytes size : message_sizes(request)) {
      const auto kind = kind_of(name);
      const Schedule schedule = kind ? collective_schedule(*kind, size, request.world_size)
                                     : ping_pong_schedule(size, request.world_size);
      validate(schedule);
      input.schedule = &schedule;
      BenchRow row;
      row.collective = name;
      row.message_bytes = size.count();
      row.time_s = slowest_rank(replay(input));
      if (!kind)
        for (double& time : row.time_s) time /= 2.0;
      bench.rows.push_back(std::move(row));
    }
  }
  return bench;
}

}  // namespace stepcast

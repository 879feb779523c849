#include "sim/replay/collective_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {
namespace {

constexpr int kIterations = 10;
constexpr int kWarmupIterations = 2;
constexpr int kRoundTrips = 16;

/// One call, and the host that waits for it before the next step.
Schedule collective_schedule(CollectiveKind kind, Bytes message, int world_size) {
  Schedule schedule = make_schedule("bench", {.world_size = world_size});
  schedule.buckets.push_back({{}, message});
  schedule.programs.push_back({{{.name = "collective",
                                 .stream = Stream::kComm,
                                 .action = Collective{kind, message, 0, 0, BucketArray{}}},
                                {.name = "wait", .action = Synchronize{}, .after = {0}}}});
  return schedule;
}

/// One side of the ping-pong: the next receive is posted as soon as the one before is done, before the answer
/// leaves, as `bench` does it. A send waits for the receive that it answers; rank 0 serves first.
Program ping_pong_program(int rank, Bytes message) {
  Program program;
  const int peer = 1 - rank;
  const int offset = peer - rank;
  std::vector<int> before;  // what the next send of rank 0 answers
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const std::string number = std::to_string(trip);
    const int recv_tag = 2 * trip + peer;
    const int send_tag = 2 * trip + rank;
    const auto index = static_cast<int>(program.ops.size());
    const std::vector<int> previous = trip == 0 ? std::vector<int>{} : std::vector<int>{index - 2};
    append(program, {.name = "recv" + number, .action = Recv{offset, message, recv_tag}, .after = previous});
    append(program, {.name = "send" + number,
                     .action = Send{offset, message, send_tag},
                     .after = rank == 0 ? before : std::vector<int>{index}});
    before = {index};
  }
  program.ops.push_back(
      {.name = "wait", .action = Synchronize{}, .after = {2 * kRoundTrips - 2, 2 * kRoundTrips - 1}});
  return program;
}

/// Ranks 0 and 1 exchange one message back and forth; the other ranks do nothing.
Schedule ping_pong_schedule(Bytes message, int world_size) {
  Schedule schedule = make_schedule("bench", {.world_size = world_size});
  schedule.programs = {ping_pong_program(0, message), ping_pong_program(1, message), Program{}};
  schedule.program_of_rank.assign(world_size, 2);
  schedule.program_of_rank[0] = 0;
  schedule.program_of_rank[1] = 1;
  return schedule;
}

void add_once(std::vector<std::string>& warnings, const std::string& warning) {
  if (!contains(warnings, warning)) warnings.push_back(warning);
}

void check(const CollectiveRequest& request) {
  if (request.world_size < 2) throw UsageError("--world-size must be at least 2 for collectives");
  if (request.world_size > 65'536) throw UsageError("--world-size must be at most 65536");
  for (const std::string& name : request.collectives)
    named<UsageError>(bench_names(), std::identity(), "collective", name);
  for (const ResourceScale& one : request.scales)
    if (one.resource == "pageable" || one.resource == "compute" ||
        !rank_speeds({one}, make_schedule("bench", {.world_size = request.world_size})).empty())
      throw UsageError("--scale {} has no effect on collectives", one.resource);
}

}  // namespace

Bench predict_collectives(const CollectiveRequest& request) {
  check(request);
  const auto environment = resolve_environment(request, {.world_size = request.world_size}, request.scales);
  PredictionEnvironment& place = *environment;
  Bench bench;
  if (!place.cluster.path.empty()) bench.lineage.push_back(make_ancestor("cluster", place.cluster.path));
  if (place.calibration) bench.lineage.push_back(make_ancestor("calibration", request.calibration));
  if (!place.backend.empty()) bench.backend = place.backend;
  bench.origin = Origin::kPredicted;
  bench.world_size = request.world_size;

  const Model no_model;
  ReplayInput input = place.replay_input(request, request.world_size);
  input.model = &no_model;
  for (const auto& [about, what] : place.communication_notes(input.node_of_rank))
    bench.context.warnings.push_back(about + " " + what);
  input.run.steps = place.calibration ? kIterations : 1;
  input.run.warmup_steps = place.calibration ? kWarmupIterations : 1;
  input.run.record_spans = false;
  for (const std::string& name : request.collectives.empty() ? bench_names() : request.collectives) {
    std::string extrapolated;  // of the largest size
    for (const std::size_t bytes : message_sizes(name, request.sizes, request.world_size)) {
      const Bytes size(static_cast<double>(bytes));
      const auto kind = find_value(kCollectiveKinds, name);
      const Schedule schedule = kind ? collective_schedule(*kind, size, request.world_size)
                                     : ping_pong_schedule(size, request.world_size);
      validate(schedule);
      input.schedule = &schedule;
      BenchRow row{.collective = name, .message_bytes = size.count()};
      const Result result = replay(input);
      row.time_s = result.slowest_steps_s();
      if (const auto classes = result.notes.find("path_classes"); classes != result.notes.end())
        add_once(bench.context.warnings, "path_classes: " + classes->second);
      extrapolated = value_or(result.notes, "messages", extrapolated);
      if (const std::string nccl = value_or(result.notes, "nccl", ""); !nccl.empty())
        row.algorithm = nccl.substr(nccl.find(": ") + 2);
      else if (kind)
        row.algorithm = value_or(input.algorithms, *kind, "");
      if (!kind)
        for (double& time : row.time_s) time /= 2.0 * kRoundTrips;
      bench.rows.push_back(std::move(row));
    }
    if (!extrapolated.empty()) bench.context.warnings.push_back("messages: " + name + " " + extrapolated);
  }
  return bench;
}

}  // namespace stepcast

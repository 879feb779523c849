#include <benchmark/benchmark.h>

#include <numeric>
#include <string>

#include "sim/collectives/nccl_graph.hpp"
#include "sim/replay/replay.hpp"
#include "sim/strategies/strategy.hpp"

/// How fast the replay is: flows per second of a ring all-reduce in which every message is a flow, and the
/// same ring aggregated, counted by the messages that it represents.
namespace stepcast {
namespace {

constexpr double kMessageBytes = 25 * kMebi;

/// Ten ring all-reduces, one after the other.
Schedule ring_schedule(int ranks) {
  Schedule schedule;
  schedule.strategy = "bench";
  schedule.world_size = ranks;
  Group world{"world", std::vector<int>(static_cast<std::size_t>(ranks))};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  schedule.groups.push_back(world);
  Program program;
  for (int i = 0; i < 10; ++i) {
    Op op;
    op.name = "all_reduce/" + std::to_string(i);
    op.stream = Stream::kComm;
    Collective call;
    call.message = Bytes(kMessageBytes);
    op.action = call;
    program.ops.push_back(op);
  }
  schedule.programs.push_back(program);
  schedule.program_of_rank.assign(static_cast<std::size_t>(ranks), 0);
  return schedule;
}

void replay_ring(benchmark::State& state, Fidelity fidelity) {
  const auto ranks = static_cast<int>(state.range(0));
  const Cluster cluster = load_cluster("star:hosts=" + std::to_string(ranks));
  const Schedule schedule = ring_schedule(ranks);
  const Model no_model;
  ReplayInput input;
  input.schedule = &schedule;
  input.model = &no_model;
  input.cluster = &cluster;
  input.node_of_rank = place_ranks(cluster, ranks);
  input.fidelity = fidelity;
  input.run.record_spans = false;
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(replay(input));
  const double flows = 10.0 * 2.0 * (ranks - 1) * ranks;
  state.counters["flows"] =
      benchmark::Counter(flows * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// DDP on H100s, from the cluster's text to the result: a prediction without loading the model.
void replay_gpus(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const Model model = load_model("synthetic:layers=12,forward=1ms");
  TrainingConfig config;
  config.world_size = ranks;
  const Schedule schedule = build_schedule("ddp", model, config);
  for ([[maybe_unused]] auto _ : state) {
    const Cluster cluster = load_cluster("h100-fat-tree:nodes=" + std::to_string((ranks + 7) / 8));
    ReplayInput input;
    input.schedule = &schedule;
    input.model = &model;
    input.cluster = &cluster;
    input.node_of_rank = place_ranks(cluster, ranks);
    NcclGraphs graphs(cluster);
    input.backend = "nccl";
    input.nccl_graphs = &graphs;
    input.run.record_spans = false;
    benchmark::DoNotOptimize(replay(input));
  }
  state.counters["us_per_rank"] =
      benchmark::Counter(1e-6 * ranks * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(replay_gpus)->RangeMultiplier(8)->Range(8, 32'768)->Arg(65'536)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay_ring, message_level, Fidelity::kMessage)
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay_ring, aggregate, Fidelity::kAggregate)
    ->Arg(64)
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepcast

BENCHMARK_MAIN();

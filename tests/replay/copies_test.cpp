#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "core/error.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::copies_test {
namespace {

using namespace worlds;

constexpr double kHostRate = 10.0;   // B/s of every PCIe link
constexpr double kPeerRate = 120.0;  // B/s of every device's link to the NVSwitch

/// A host with `devices` devices, each at the socket by a link of its own, or all behind one PCIe switch; all
/// at one NVSwitch unless `peer_rate` is 0.
Cluster node(int devices, bool pcie_switch = false, double peer_rate = kPeerRate) {
  Cluster cluster;
  cluster.name = "node";
  const int host = cluster.add_host({"node", 8, Bytes(0), 1.0});
  const auto join = [&cluster](int a, int b, double rate, LinkKind kind) {
    cluster.links.push_back(
        {cluster.node_name(a) + "-" + cluster.node_name(b), a, b, BytesPerSecond(rate), Seconds(0), kind});
  };
  int root = cluster.hosts.front().node;
  if (pcie_switch) {
    root = cluster.add_node({"pcie", NodeKind::kPcieSwitch, host, ""});
    join(root, cluster.hosts.front().node, kHostRate, LinkKind::kPcie);
  }
  for (int i = 0; i < devices; ++i) {
    const int device = cluster.add_node({"gpu" + std::to_string(i), NodeKind::kDevice, host, "h100-sxm"});
    cluster.hosts.front().devices.push_back(device);
    join(device, root, kHostRate, LinkKind::kPcie);
  }
  if (peer_rate <= 0.0) return cluster;
  const int hub = cluster.add_node({"nvswitch", NodeKind::kNvSwitch, host, ""});
  for (const int device : cluster.hosts.front().devices) join(device, hub, peer_rate, LinkKind::kNvLink);
  return cluster;
}

MemoryLocation device(int offset) { return {MemoryLocation::Kind::kDevice, offset}; }

Op copy(const std::string& name, MemoryLocation from, MemoryLocation to, double bytes,
        std::vector<int> after = {}, bool pinned = true) {
  return operation(name, Stream::kCopy, Copy{from, to, Bytes(bytes), pinned}, std::move(after));
}

/// Rank 0 drives all devices.
Schedule driven_by_first(int ranks, std::vector<Op> ops) {
  Schedule schedule = same_program(ranks, std::move(ops));
  schedule.data_parallel = 0;
  schedule.programs.emplace_back();
  std::fill(schedule.program_of_rank.begin() + 1, schedule.program_of_rank.end(), 1);
  return schedule;
}

ReplayInput free_launches(const Schedule& schedule, const Model& model, const Cluster& cluster) {
  ReplayInput input = input_of(schedule, model, cluster);
  input.copies = {.pageable = BytesPerSecond(4.0), .launch = Seconds(0)};
  return input;
}

double step_of(const Schedule& schedule, const Cluster& cluster, const Model& model = {}) {
  return replay(free_launches(schedule, model, cluster)).median_step_time_s();
}

Span span_of(const Result& result, const std::string& name) {
  for (const Span& span : result.spans)
    if (span.name == name) return span;
  throw std::runtime_error("no span " + name);
}

double broadcast_time(const std::string& method, int devices, double chunk, double peer_rate = kPeerRate,
                      bool pinned = true) {
  TrainingConfig config;
  config.world_size = devices;
  config.options["method"] = method;
  config.options["buffer"] = "1200B";
  if (std::string(method) == "chunked") config.options["chunk"] = exact_text(Bytes(chunk));
  config.options["pinned"] = pinned ? "yes" : "no";
  // In millionths of a second: the simulator's clock runs on from test to test, and rounds more as it grows.
  constexpr double kMillion = 1e6;
  Cluster cluster = node(devices, false, peer_rate);
  for (Link& link : cluster.links) link.bandwidth = link.bandwidth * kMillion;
  const Model model;
  const Schedule schedule = build_schedule("broadcast", model, config);
  ReplayInput input = free_launches(schedule, model, cluster);
  input.copies.pageable = input.copies.pageable * kMillion;
  return kMillion * replay(input).median_step_time_s();
}

}  // namespace

TEST_CASE(
    "a copy of 20 B over 10 B/s takes 2 s and its launch, either way; between devices NVLink carries it") {
  const Model model;
  const Cluster cluster = node(2);
  for (const auto& [from, to, seconds] : std::vector<std::tuple<MemoryLocation, MemoryLocation, double>>{
           {{}, device(0), 2.0}, {device(1), {}, 2.0}, {device(0), device(1), 20.0 / kPeerRate}}) {
    const Schedule schedule = driven_by_first(2, {copy("copy", from, to, 20.0)});
    ReplayInput input = free_launches(schedule, model, cluster);
    input.copies.launch = Seconds(0.5);
    const Result result = replay(input);
    CHECK(result.median_step_time_s() == Approx(seconds + 0.5));
    CHECK(span_of(result, "copy").start_s == Approx(0.5));
    CHECK(result.bytes_sent_per_rank == 20.0);
    CHECK(result.step_time_s[1] == std::vector<double>{0.0});  // its device is driven by rank 0
  }
  CHECK(step_of(driven_by_first(2, {copy("copy", device(0), device(1), 20.0)}), node(2, false, 0.0)) ==
        Approx(2.0));
}

TEST_CASE("ranks that offload to their own host concurrently with compute fold into one class") {
  const bool pcie_switch = GENERATE(false, true);
  const double bytes = GENERATE(20.0, 200.0);
  CAPTURE(pcie_switch, bytes);
  const Model model = fixed_model(2, 1.0, 1.0, 400.0);
  TrainingConfig config;
  config.world_size = 4;
  Schedule schedule = build_schedule("all_reduce", model, config);
  std::vector<Op>& ops = schedule.programs.front().ops;
  const int forward = find(schedule.programs.front(), "forward/");
  const auto last = static_cast<int>(ops.size());
  ops.push_back(copy("offload", device(0), {}, bytes, {forward}));
  ops.push_back(copy("reload", {}, device(0), bytes, {last}));
  ops.push_back(operation("wait", Stream::kCompute, Synchronize{}, {last + 1}));
  validate(schedule);
  const Cluster cluster = node(4, pcie_switch);
  ReplayInput input = free_launches(schedule, model, cluster);
  const Result folded = replay(input);
  input.exact = true;
  const Result exact = replay(input);
  CHECK(folded.forecast.operations < exact.forecast.operations);
  CHECK(folded.median_step_time_s() == Approx(exact.median_step_time_s()).epsilon(1e-9));
  CHECK(folded.bytes_sent_per_rank == exact.bytes_sent_per_rank);
}

TEST_CASE("copies to four devices at once take 2 s over links of their own, 8 s behind one PCIe switch") {
  std::vector<Op> ops;
  ops.reserve(4);
  for (int i = 0; i < 4; ++i) ops.push_back(copy("copy" + std::to_string(i), {}, device(i), 20.0));
  const Schedule schedule = driven_by_first(4, ops);
  CHECK(step_of(schedule, node(4)) == Approx(2.0));
  CHECK(step_of(schedule, node(4, true)) == Approx(8.0));
}

TEST_CASE("copies in both directions share no link direction") {
  const Schedule schedule =
      driven_by_first(2, {copy("in", {}, device(0), 20.0), copy("out", device(1), {}, 20.0)});
  CHECK(step_of(schedule, node(2, true)) == Approx(2.0));
}

TEST_CASE("the thread issues copies one after the other, and goes on while they run") {
  const Model model = fixed_model(1, 3.0, 0.0, 4.0);
  const Cluster cluster = node(2);
  const Schedule schedule =
      driven_by_first(2, {copy("a", {}, device(0), 20.0), copy("b", {}, device(1), 20.0),
                          operation("forward", Stream::kCompute, Compute{Phase::kForward, 0, 0}),
                          operation("wait", Stream::kCompute, Synchronize{}, {0, 1})});
  ReplayInput input = free_launches(schedule, model, cluster);
  input.copies.launch = Seconds(0.25);
  const Result result = replay(input);
  CHECK(span_of(result, "a").start_s == Approx(0.25));
  CHECK(span_of(result, "b").start_s == Approx(0.5));
  CHECK(span_of(result, "forward").start_s == Approx(0.5));
  CHECK(result.median_step_time_s() == Approx(3.5));
  const Breakdown& parts = result.breakdown.front();
  CHECK(parts.compute_s + parts.exposed_communication_s + parts.input_and_host_s +
            parts.optimizer_and_copies_s + parts.idle_s ==
        Approx(3.5));
}

TEST_CASE("a copy from pageable memory is staged at 4 B/s, and the thread waits for it") {
  const Model model = fixed_model(1, 3.0, 0.0, 4.0);
  const Cluster cluster = node(2);
  const Schedule schedule = driven_by_first(
      2, {copy("a", {}, device(0), 20.0, {}, false), copy("b", {}, device(1), 20.0, {}, false),
          operation("forward", Stream::kCompute, Compute{Phase::kForward, 0, 0})});
  const Result result = replay(free_launches(schedule, model, cluster));
  CHECK(span_of(result, "b").start_s == Approx(5.0));
  CHECK(span_of(result, "forward").start_s == Approx(10.0));
  CHECK(result.median_step_time_s() == Approx(13.0));
  // Between devices nothing is staged.
  CHECK(step_of(driven_by_first(2, {copy("p2p", device(0), device(1), 120.0, {}, false)}), cluster) ==
        Approx(1.0));
}

TEST_CASE("a second step of copies takes as long as the first one") {
  const Model model;
  const Cluster cluster = node(2);
  const Schedule schedule =
      driven_by_first(2, {copy("a", {}, device(0), 20.0), copy("b", device(0), device(1), 60.0, {0})});
  ReplayInput input = free_launches(schedule, model, cluster);
  input.run.steps = 2;
  input.run.warmup_steps = 1;
  const Result result = replay(input);
  CHECK(result.step_time_s[0][0] == Approx(2.5));
  CHECK(result.step_time_s[0][1] == Approx(2.5));
  CHECK(result.bytes_sent_per_rank == 80.0);
}

TEST_CASE("broadcast, sequential: n B / h; from pageable memory at its rate") {
  for (const int n : {1, 2, 4}) {
    CHECK(broadcast_time("sequential", n, 100.0) == Approx(n * 1200.0 / kHostRate));
    CHECK(broadcast_time("sequential", n, 100.0, kPeerRate, false) == Approx(n * 1200.0 / 4.0));
  }
}

TEST_CASE("broadcast, relay: B / h + (n - 1) B / p") {
  for (const int n : {1, 2, 4})
    CHECK(broadcast_time("relay", n, 100.0) == Approx(1200.0 / kHostRate + (n - 1) * 1200.0 / kPeerRate));
}

TEST_CASE("broadcast, chunked: B / min(h, p / (n - 1)) and the last or the first chunk alone") {
  const auto expected = [](int n, double chunk, double peer_rate) {
    const double passed_on = peer_rate / (n - 1);
    return 1200.0 / std::min(kHostRate, passed_on) + chunk / std::max(kHostRate, passed_on);
  };
  for (const int n : {2, 4})
    for (const double chunk : {12.0, 100.0, 400.0, 1200.0})
      for (const double peer_rate : {120.0, 12.0}) {
        CAPTURE(n, chunk, peer_rate);
        CHECK(broadcast_time("chunked", n, chunk, peer_rate) == Approx(expected(n, chunk, peer_rate)));
      }
  CHECK(broadcast_time("chunked", 1, 100.0) == Approx(1200.0 / kHostRate));
}

TEST_CASE("broadcast: smaller chunks are never slower where issuing is free, one chunk is as fast as relay") {
  double before = broadcast_time("chunked", 4, 1200.0);
  CHECK(before == Approx(broadcast_time("relay", 4, 1200.0)));
  for (const double chunk : {600.0, 300.0, 100.0, 10.0}) {
    const double now = broadcast_time("chunked", 4, chunk);
    CHECK(now < before);
    before = now;
  }
}

TEST_CASE("broadcast: from pageable memory the chunks do not overlap with what is issued behind them") {
  // 12 chunks of 100 B at 4 B/s; the last one is passed on to three devices over 120 B/s.
  CHECK(broadcast_time("chunked", 4, 100.0, kPeerRate, false) == Approx(1200.0 / 4.0 + 300.0 / kPeerRate));
}

TEST_CASE("broadcast: from the other socket's memory the link between sockets is the limit") {
  const Model model;
  const Cluster cluster = load_cluster("h100x4-nvlink");
  const auto time = [&](int to) {
    const Schedule schedule = driven_by_first(4, {copy("copy", {}, device(to), 22e9)});
    ReplayInput input = input_of(schedule, model, cluster);
    return replay(input).median_step_time_s();
  };
  CHECK(time(0) == Approx(22.0 / 48.0).epsilon(1e-3));
  CHECK(time(3) == Approx(1.0).epsilon(1e-3));
}

TEST_CASE("copies amid the hooks of a backward operation are refused, those behind it are not") {
  const Model model = fixed_model(1, 1.0, 3.0, 4.0);
  const Cluster cluster = node(1);
  const Op backward = operation("backward", Stream::kCompute, Compute{Phase::kBackward, 0, 0});
  Op hook = operation("hook", Stream::kCompute, Synchronize{});
  hook.within = 0;
  hook.ready_tensor = 0;
  const Op moved = copy("copy", {}, device(0), 20.0);
  const Op last = operation("last", Stream::kCompute, Synchronize{});
  for (const std::vector<Op>& ops :
       {std::vector<Op>{backward, hook, moved, last}, std::vector<Op>{backward, moved, hook, last}}) {
    const Schedule schedule = same_program(1, ops);
    CHECK_THROWS_WITH(replay(free_launches(schedule, model, cluster)),
                      Catch::Contains("'copy'") && Catch::Contains("hook of a backward operation"));
  }
  CHECK(step_of(same_program(1, {backward, hook, last, moved}), cluster, model) == Approx(5.0));
}

TEST_CASE("copies are an error if devices are missing or on several hosts") {
  const Model model;
  const auto refused = [&](const Cluster& cluster, int ranks) {
    const Schedule schedule = driven_by_first(ranks, {copy("copy", {}, device(ranks - 1), 20.0)});
    CHECK_THROWS_AS(replay(input_of(schedule, model, cluster)), UsageError);
    try {
      replay(input_of(schedule, model, cluster));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused(one_host(2), 2), Catch::Contains("no host has any") && Catch::Contains("'one_host'"));
  CHECK_THAT(refused(load_cluster("h100x8-hgx:nodes=2"), 16),
             Catch::Contains("node0") && Catch::Contains("node1"));
  const Schedule crowded =
      driven_by_first(4, {copy("a", {}, device(0), 20.0), copy("b", {}, device(1), 20.0)});
  CHECK_THROWS_WITH(replay(input_of(crowded, model, node(2))),
                    Catch::Contains("ranks 0 and 1 are on gpu0") && Catch::Contains("there are 2"));
}

}  // namespace stepcast::copies_test

#include <catch2/catch.hpp>

#include "runner/measure/bench_collectives.hpp"
#include "runner/measure/probes.hpp"
#include "tests/runner/as_ranks.hpp"

namespace stepcast::bench_test {
using namespace std::chrono_literals;

namespace {

/// A backend whose all_reduce adds one too much to the first element at rank 0.
class WrongBackend : public Backend {
 public:
  explicit WrongBackend(Backend& right) : right_(right) {}
  [[nodiscard]] int rank() const override { return right_.rank(); }
  [[nodiscard]] int world_size() const override { return right_.world_size(); }
  [[nodiscard]] int collectives_in_flight() const override { return right_.collectives_in_flight(); }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return right_.bytes_sent(); }
  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    return right_.subgroup(name, ranks);
  }
  WorkPtr all_reduce(Array array) override {
    WorkPtr work = right_.all_reduce(array);
    work->wait();
    if (rank() == 0) static_cast<float*>(array.data)[0] += 1.0F;
    return work;
  }
  WorkPtr all_reduce_maximum(Array array) override { return right_.all_reduce_maximum(array); }
  WorkPtr broadcast(Array array, int root) override { return right_.broadcast(array, root); }
  WorkPtr gather(Array in, Array out, int root) override { return right_.gather(in, out, root); }
  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    return right_.scatter(in, out, root);
  }
  WorkPtr all_gather(Array in, Array out) override { return right_.all_gather(in, out); }
  WorkPtr reduce_scatter(Array in, Array out) override { return right_.reduce_scatter(in, out); }
  WorkPtr all_to_all(Array in, Array out) override { return right_.all_to_all(in, out); }
  WorkPtr shift(Array in, Array out) override { return right_.shift(in, out); }
  WorkPtr send(Array data, int peer, std::uint32_t tag) override { return right_.send(data, peer, tag); }
  WorkPtr recv(Array data, int peer, std::uint32_t tag) override { return right_.recv(data, peer, tag); }
  WorkPtr submit(std::function<void()> task) override { return right_.submit(std::move(task)); }
  void barrier() override { right_.barrier(); }

 private:
  Backend& right_;
};

BenchSettings small_bench() {
  BenchSettings settings;
  settings.collectives = bench_names();
  settings.sizes = bench_sizes(4.0, 4096.0, 32.0);
  settings.iterations = 2;
  settings.rounds = 3;
  return settings;
}

}  // namespace

TEST_CASE("sizes from 4 B to 64 MiB by powers of 4 are 13", "[bench]") {
  const std::vector<std::size_t> sizes = bench_sizes(4.0, 64.0 * kMebi, 4.0);
  REQUIRE(sizes.size() == 13);
  CHECK(sizes.front() == 4);
  CHECK(sizes[1] == 16);
  CHECK(sizes.back() == 67'108'864);
  CHECK_THROWS_AS(bench_sizes(8.0, 4.0, 2.0), UsageError);
  CHECK_THROWS_AS(bench_sizes(4.0, 8.0, 1.0), UsageError);
}

TEST_CASE("every collective has one row per size with one sample per round and no wrong element", "[bench]") {
  std::vector<BenchRow> rows;
  as_sessions(2, [&](RankSession& session) {
    const auto own = bench_collectives(session, small_bench(), [](const std::string&) {});
    if (session.ranks.rank == 0) rows = own;
  });
  CHECK(rows.size() == bench_names().size() * 3);
  for (const BenchRow& row : rows) {
    CAPTURE(row.collective, row.message_bytes);
    CHECK(row.time_s.size() == 3);
    CHECK(row.median_time_s() > 0.0);
    CHECK(row.wrong == 0);
  }
}

TEST_CASE("sizes that are rounded up to the same are one message, of which progress counts each sample",
          "[bench]") {
  BenchSettings settings = small_bench();
  settings.collectives = {"all_reduce", "all_gather"};
  settings.sizes = {1, 3, 8, 9, 64};
  CHECK(message_sizes("all_reduce", settings.sizes, 2) == std::vector<std::size_t>{4, 8, 12, 64});
  CHECK(message_sizes("all_gather", settings.sizes, 2) == std::vector<std::size_t>{8, 16, 64});
  int samples = 0;
  std::size_t rows = 0;
  as_sessions(2, [&](RankSession& session) {
    const bool first = session.ranks.rank == 0;
    const auto own = bench_collectives(session, settings, [&, first](const std::string&) {
      if (first) ++samples;
    });
    if (first) rows = own.size();
  });
  CHECK(rows == 7);
  CHECK(samples == bench_samples(settings, 2));
}

TEST_CASE("a wrong result is counted: one element per round on one rank", "[bench]") {
  std::vector<BenchRow> rows;
  as_sessions(2, [&](RankSession& session) {
    std::unique_ptr<Backend> right = std::move(session.backend);
    session.backend = std::make_unique<WrongBackend>(*right);
    BenchSettings settings = small_bench();
    settings.collectives = {"all_reduce"};
    const auto own = bench_collectives(session, settings, [](const std::string&) {});
    session.backend = std::move(right);
    if (session.ranks.rank == 0) rows = own;
  });
  REQUIRE(rows.size() == 3);
  for (const BenchRow& row : rows) CHECK(row.wrong == 3);
}

TEST_CASE("the probes of a calibration deliver every sample set with a sample per round", "[bench]") {
  std::vector<SampleSet> sets;
  as_sessions(2, [&](RankSession& session) {
    ProbeSettings settings;
    settings.message_sizes = {4, 4096};
    settings.array_sizes = {1024};
    settings.pairs = {{kSameHost, {0, 1}}};
    settings.sharing_ranks = {0, 1};
    settings.prepare_copy = [](float* to, const float* from, float scale, std::size_t count) {
      return [=] { std::transform(from, from + count, to, [&](float value) { return scale * value; }); };
    };
    settings.rounds = 2;
    settings.budget_s = 1e6;
    settings.repeats = false;
    const auto own = run_probes(session, backends().find("gloo"), settings, [](const std::string&) {});
    if (session.ranks.rank == 0) sets = own.sets;
  });
  std::vector<std::string> probes;
  for (const SampleSet& set : sets) {
    CAPTURE(set.probe, set.bytes);
    probes.push_back(set.probe);
    CHECK(set.time_s.size() >= (set.probe == "compute_one" || set.probe == "compute_all" ? 4 : 2));
    CHECK(set.time_s.size() == set.cpu_s.size());
    CHECK(set.time_s.size() == set.machine.size());
    CHECK(set.machine.valid());
    for (const double time : set.time_s) CHECK(time > 0.0);
  }
  CHECK(probes == std::vector<std::string>{"compute_all", "compute_beside_communication", "compute_one",
                                           "copy", "exchange", "exchange", "handed_over", "handed_over",
                                           "memory_all", "memory_one", "ping_pong", "ping_pong", "reduce",
                                           "rendezvous", "rendezvous"});
}

TEST_CASE("if the budget does not last for three rounds, the largest messages are skipped", "[bench]") {
  ProbedSamples probed;
  as_sessions(2, [&](RankSession& session) {
    ProbeSettings settings;
    settings.message_sizes = {4, std::size_t{64} << 20U};
    settings.array_sizes = {std::size_t{4}, std::size_t{128} << 20U};
    settings.prepare_copy = [](float*, const float*, float, std::size_t) { return [] {}; };
    settings.pairs = {{kSameHost, {0, 1}}};
    settings.rounds = 3;
    settings.repeats = false;
    settings.budget_s = 1e3;
    const auto own = run_probes(session, backends().find("gloo"), settings, [](const std::string&) {});
    if (session.ranks.rank == 0) probed = own;
  });
  CHECK(probed.sampling.largest_bytes_given_up == 67108864.0);
  CHECK(probed.sampling.budget_s == 1e3);
  for (const SampleSet& set : probed.sets) {
    CHECK(set.bytes < 67108864.0);
    CHECK(set.time_s.size() == (set.probe == "compute_one" || set.probe == "compute_all" ? 6 : 3));
  }
}

TEST_CASE("probes end with an error if the budget lasts for small messages only", "[bench]") {
  as_sessions(2, [&](RankSession& session) {
    ProbeSettings settings;
    settings.message_sizes = {4, 65536};
    settings.pairs = {{kSameHost, {0, 1}}};
    settings.budget_s = 1e-3;
    CHECK_THROWS_WITH(run_probes(session, backends().find("gloo"), settings, [](const std::string&) {}),
                      Catch::Contains("--budget 1.00 ms was spent before messages and arrays of 4 B"));
  });
}

TEST_CASE(
    "a calibration measures the messages of every pair on its ranks, and the ring on all of its ranks") {
  std::vector<SampleSet> sets;
  as_sessions(4, [&](RankSession& session) {
    ProbeSettings settings;
    settings.message_sizes = {64};
    settings.pairs = {{kSameHost, {1, 2}}, {kSameSwitch, {3, 0}}};
    settings.ring = {0, 3, 1};
    settings.rounds = 2;
    settings.budget_s = 1e6;
    settings.repeats = false;
    const auto own = run_probes(session, backends().find("gloo"), settings, [](const std::string&) {});
    if (session.ranks.rank == 2) sets = own.sets;
  });
  std::vector<std::string> found;
  for (const SampleSet& set : sets) {
    for (const double time : set.time_s) CHECK(time > 0.0);
    if (set.probe == "ping_pong" || set.probe.starts_with("ring"))
      found.push_back(set.probe + " " + set.path_class);
  }
  CHECK(found == std::vector<std::string>{"ping_pong same_host", "ping_pong same_switch", "ring_all ",
                                          "ring_pair same_switch"});
}

}  // namespace stepcast::bench_test

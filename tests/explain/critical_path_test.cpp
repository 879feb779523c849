#include "sim/explain/critical_path.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <string>

#include "sim/explain/standstills.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast::critical_path_test {
namespace {

constexpr double kEqual = 1e-9;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  template <class Value>
  const Value& from(const std::vector<Value>& values) {
    return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random_)];
  }
  int between(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double part() { return std::uniform_real_distribution<double>(0.1, 0.9)(random_); }

 private:
  std::mt19937 random_;
};

/// A strategy with its options.
struct Way {
  std::string strategy, mesh, schedule;
  int micro_batches = 1;
};

PredictionRequest drawn_request(Draw& draw, bool gpus) {
  std::vector<Way> ways{{"ddp", "", ""},
                        {"fsdp", "", ""},
                        {"gather_scatter", "", ""},
                        {"all_reduce", "", ""},
                        {"pipeline", "pipeline=4,data=2", "gpipe", 4},
                        {"pipeline", "pipeline=4,data=2", "1f1b", 4},
                        {"pipeline", "pipeline=8", "1f1b", 2}};
  if (gpus)
    ways.insert(ways.end(),
                {{"fsdp", "shard=2,tensor=4", ""}, {"pipeline", "pipeline=2,tensor=2,data=2", "1f1b", 2}});
  const Way& way = draw.from(ways);
  PredictionRequest request;
  request.strategy = way.strategy;
  request.training.world_size = 8;
  request.training.micro_batches = way.micro_batches;
  if (!way.mesh.empty()) request.training.options["mesh"] = way.mesh;
  take_mesh(request.strategy, request.training);
  if (!way.schedule.empty()) request.training.options["schedule"] = way.schedule;
  request.costs.batch = 4;
  request.replay.steps = 2;
  request.replay.warmup_steps = 1;
  request.environment.exact = draw.between(0, 1) == 0;
  const auto time = [&](double scale) { return std::to_string(scale * draw.part()) + "s"; };
  if (gpus) {
    request.costs.model = "llama:layers=8,hidden=512,vocabulary=4096,sequence=512";
    request.costs.device = "h100-sxm";
    request.costs.precision = Precision::parse("bf16,reduction=bf16");
    request.environment.cluster =
        draw.from(std::vector<std::string>{"h100x8-hgx", "h100-hosts:hosts=8", "h100-rails:nodes=2"});
  } else {
    request.costs.model = "synthetic:layers=" + std::to_string(draw.between(8, 12)) +
                          ",forward=" + time(1e-2) + ",backward=" + time(1e-2) +
                          ",parameter=" + std::to_string(draw.between(1, 16)) +
                          "MiB,output=" + std::to_string(draw.between(1, 16)) + "MiB";
    request.environment.cluster =
        draw.from(std::vector<std::string>{"star:hosts=8", "star:hosts=4,cores=2", "lab-two-racks:hosts=8"});
  }
  if (draw.between(0, 1) == 0)
    request.scale.push_back({"rank" + std::to_string(draw.between(0, 7)), draw.part()});
  return request;
}

double time_of(const CriticalPath& path, const std::string& kind) {
  for (const auto& [name, seconds] : contributions(path, [](const PathPart& part) { return part.kind; }))
    if (name == kind) return seconds;
  return 0.0;
}

/// Checks that each part begins at the end of the one before, inside its operation.
void check_path(const CriticalPath& path, const Recording& recording) {
  REQUIRE_FALSE(path.parts.empty());
  CHECK(path.parts.front().start_s == Approx(0.0).margin(kEqual * path.step_s));
  CHECK(path.parts.back().end_s == Approx(path.step_s).epsilon(kEqual));
  double sum = 0.0;
  for (std::size_t i = 0; i < path.parts.size(); ++i) {
    const PathPart& part = path.parts[i];
    CHECK(part.end_s > part.start_s);
    if (i > 0) CHECK(part.start_s == path.parts[i - 1].end_s);
    if (part.op >= 0 && part.kind != "host") {
      const RecordedRank& rank = recording.ranks.at(part.rank);
      const auto inside = [&](const std::vector<RecordedOp>& step) {
        return !step.empty() && part.start_s >= step[part.op].start_s - kEqual * path.step_s &&
               part.end_s <= step[part.op].end_s + kEqual * path.step_s;
      };
      CHECK((inside(rank.ops) || inside(rank.before)));
    }
    sum += part.seconds();
  }
  CHECK(sum == Approx(path.step_s).epsilon(kEqual));
  for (const PathWait& wait : path.waits) {
    CHECK(wait.rank != wait.for_rank);
    CHECK(wait.time_s > 0.0);
  }
  for (const auto& key :
       {std::function<std::string(const PathPart&)>([](const PathPart& part) { return part.layer; }),
        std::function<std::string(const PathPart&)>([](const PathPart& part) { return part.link; }),
        std::function<std::string(const PathPart&)>(
            [](const PathPart& part) { return std::to_string(part.rank); })}) {
    double all = 0.0;
    for (const auto& [name, seconds] : contributions(path, key)) all += seconds;
    CHECK(all == Approx(path.step_s).epsilon(kEqual));
  }
}

}  // namespace

TEST_CASE("the critical path adds up to the step, never goes back in time, and leaves no gap unexplained",
          "[law]") {
  for (unsigned seed = 1; seed <= 120; ++seed) {
    Draw draw(seed);
    PredictionRequest request = drawn_request(draw, seed % 2 == 0);
    INFO("seed " << seed << ": " << request.strategy << " on " << request.environment.cluster << " "
                 << request.costs.model << " " << to_text(request.scale));
    Recording recording;
    request.replay.recording = &recording;
    const Result result = predict(request);
    const CriticalPath path = critical_path(recording);
    check_path(path, recording);
    // Nothing is drawn here: all steps are the one that is explained.
    CHECK(path.step_s == Approx(result.median_step_time_s()).epsilon(kEqual));
    CHECK(time_of(path, "host") <= kEqual * path.step_s);
    PredictionRequest other = request;
    other.replay.recording = nullptr;
    other.environment.exact = !request.environment.exact;
    CHECK(predict(other).median_step_time_s() == Approx(path.step_s).epsilon(1e-6));
    double blamed = 0.0;
    for (const Standstill& one : standstills(recording)) {
      CHECK(one.rank != one.for_rank);
      blamed = std::max(blamed, one.time_s);
    }
    CHECK(blamed <= path.step_s);
  }
}

TEST_CASE("the path of DDP on two hosts is compute, then the exposed network time", "[explain]") {
  PredictionRequest request;
  request.strategy = "all_reduce";  // after the backward, one by one
  request.costs.model = "synthetic:layers=2,forward=1s,backward=2s,parameter=1GB";
  request.environment.cluster = "star:hosts=2,bandwidth=1GB/s,latency=0s";
  request.training.world_size = 2;
  Recording recording;
  request.replay.recording = &recording;
  predict(request);
  const CriticalPath path = critical_path(recording);
  CHECK(time_of(path, "forward") == Approx(2.0));
  CHECK(time_of(path, "backward") == Approx(4.0));
  CHECK(time_of(path, "all_reduce") == Approx(2.0));  // 2 (n - 1)/n of 1 GB, twice
  CHECK(path.step_s == Approx(8.0));
}

TEST_CASE("copies hold the main thread where they are staged, and PCIe where they are not", "[explain]") {
  PredictionRequest request;
  request.strategy = "broadcast";
  request.environment.cluster = "h100x8-hgx";
  request.training.world_size = 8;
  request.training.options["method"] = "relay";
  for (const bool pinned : {false, true}) {
    if (pinned) request.training.options["pinned"] = "yes";
    Recording recording;
    request.replay.recording = &recording;
    predict(request);
    const CriticalPath path = critical_path(recording);
    check_path(path, recording);
    CHECK(time_of(path, "copy") > 0.99 * path.step_s);
    const auto links = contributions(path, [](const PathPart& part) { return part.link; });
    CHECK(links.front().first == (pinned ? "pcie" : "pageable"));
  }
}

TEST_CASE("a slow rank causes all waits of the others", "[explain]") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "synthetic:layers=4,forward=10ms,backward=20ms,parameter=1MiB";
  request.environment.cluster = "star:hosts=4";
  request.training.world_size = 4;
  request.scale = {{"rank2", 0.5}};
  Recording recording;
  request.replay.recording = &recording;
  predict(request);
  const CriticalPath path = critical_path(recording);
  double slow = 0.0;
  for (const PathPart& part : path.parts)
    if (part.rank == 2) slow += part.seconds();
  CHECK(slow > 0.9 * path.step_s);
  const std::vector<Standstill> waits = standstills(recording);
  REQUIRE_FALSE(waits.empty());
  CHECK(most_waited_for(waits).first == 2);
  for (const Standstill& one : waits) CHECK(one.because_of == 2);
}

}  // namespace stepcast::critical_path_test

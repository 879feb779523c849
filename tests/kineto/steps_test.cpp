#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/table.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "tests/kineto/imported.hpp"
#include "tests/temporary_folder.hpp"

/// Where the steps of a profile begin and end, and which of them count.
namespace stepcast::tests::kineto_steps_test {

TEST_CASE("without ProfilerStep# steps last from one optimizer to the next") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  std::erase_if(json["traceEvents"].get_ref<nlohmann::json::array_t&>(), [](const nlohmann::json& event) {
    return event["name"].get<std::string>().starts_with("ProfilerStep#");
  });
  const Trace trace = imported_trace({folder.write("loose.json", json.dump())});
  CHECK(trace.profile.at("step") == Approx(1050e-6).epsilon(0.02));
}

TEST_CASE("steps of the profiler that are micro-batches are joined up to each update", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.steps = 7;  // the last one and what the window cut are left out
  profile.accumulate = 2;
  profile.all_reduce = 80.0;
  profile.ranks = 2;
  const ProfiledRun run = read_profiled_run({folder.write("parts.json", profile.json().dump())});
  CHECK(run.micro_batches == 2);
  REQUIRE(run.ranks.front().steps.size() == 3);
  CHECK(run.ranks.front().step_us == Approx(2 * 1000.0 + 80.0 + 50.0).epsilon(0.02));
  CHECK_THAT(joined(run.ranks.front().notes), Catch::Contains("2 ProfilerStep# were joined to each"));
  REQUIRE(run.collectives.size() == 1);
  CHECK(run.collectives.front().per_step == 1.0);
  const TraceEntry entry = traced_entry(run, 16);
  CHECK(entry.segments[0].forward_s[0] == Approx(100e-6));
  CHECK(entry.segments[0].optimizer_s[0] + entry.segments[1].optimizer_s[0] == Approx(50e-6));
}

TEST_CASE("the forward and backward of a closure inside the optimizer's step are the layers'", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  for (nlohmann::json& event : json["traceEvents"]) {
    if (event["name"] != "Optimizer.step#SGD.step") continue;
    double begin = 0.0;  // of its step
    for (const nlohmann::json& other : json["traceEvents"])
      if (other["name"].get<std::string>().starts_with("ProfilerStep#") && other["ts"] < event["ts"])
        begin = std::max(begin, other["ts"].get<double>());
    event["dur"] = event["ts"].get<double>() + event["dur"].get<double>() - begin;
    event["ts"] = begin;
  }
  const TraceEntry own =
      imported_trace({folder.write("plain.json", two_layers().json().dump())}).entries.front();
  const TraceEntry entry = imported_trace({folder.write("closure.json", json.dump())}).entries.front();
  REQUIRE(entry.segments.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(entry.segments[i].forward_s == own.segments[i].forward_s);
    CHECK(entry.segments[i].backward_s == own.segments[i].backward_s);
    CHECK(entry.segments[i].optimizer_s == own.segments[i].optimizer_s);
  }
}

TEST_CASE("steps are compared with those of the same number on other ranks", "[kineto]") {
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  for (int rank = 0; rank < 2; ++rank) {
    WrittenProfile profile = two_layers();
    profile.all_reduce = 80.0;
    profile.rank = rank;
    profile.ranks = 2;
    nlohmann::json json = profile.json();
    for (nlohmann::json& event : json["traceEvents"])  // rank 1 lacks the first step
      if (rank == 1 && event["name"] == "ProfilerStep#3") event["name"] = "warm-up";
    paths.push_back(folder.write(fmt::format("rank{}.json", rank), json.dump()));
  }
  const ProfiledRun run = read_profiled_run(paths);
  for (const RankProfile& rank : run.ranks) {
    REQUIRE(rank.steps.size() == 2);
    CHECK(rank.steps.front().name == "ProfilerStep#4");
  }
  CHECK_THAT(joined(run.ranks[0].notes), Catch::Contains("1 step that another rank lacks"));
}

}  // namespace stepcast::tests::kineto_steps_test

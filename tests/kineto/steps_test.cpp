#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/kineto/profile_result.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "sim/replay/prediction.hpp"
#include "tests/kineto/imported.hpp"
#include "tests/temporary_folder.hpp"

/// Where the steps of a profile begin and end, which of them count, and that a forecast repeats them.
namespace stepcast::tests::kineto_steps_test {
namespace {

/// The imported trace, as a forecast of one GPU.
Result forecast_of(const TemporaryFolder& folder, const std::string& profile, int micro_batches,
                   std::optional<HostWaits> waits = {}) {
  nlohmann::json json = nlohmann::json::parse(import_files({profile}).text);
  json["context"]["schema"] = kTraceSchema;
  PredictionRequest request;
  request.strategy = "single";
  request.costs.trace = folder.write("mine.trace.json", json.dump());
  request.training.micro_batches = micro_batches;
  request.replay.host_waits = waits;
  return predict(request);
}

/// Kernels are shorter than their launches, except for the optimizer's.
WrittenProfile bound_by_launches(int accumulate) {
  WrittenProfile profile = two_layers();
  for (WrittenLayer& layer : profile.layers) layer.forward = layer.backward = 20.0;
  profile.launch = 400.0;
  profile.optimizer = 1500.0;
  profile.accumulate = accumulate;
  profile.steps = 4 * accumulate;
  return profile;
}

}  // namespace

TEST_CASE("the forecast of a profiled step on the same GPU takes as long", "[kineto]") {
  const TemporaryFolder folder;
  for (const int accumulate : {1, 2}) {
    INFO(accumulate);
    const std::string path = folder.write("own.json", bound_by_launches(accumulate).json().dump());
    const Trace trace = imported_trace({path});
    CHECK(forecast_of(folder, path, accumulate).median_step_time_s() ==
          Approx(trace.profile.at("step")).epsilon(1e-3));
    const double tail = trace.entries.front().host_s.front();
    CHECK(tail < 0.1 * trace.profile.at("step"));
  }
}

TEST_CASE("a host that is ahead of the device when a step begins does not wait for it in forecasts",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.launch = 120.0;  // longer than the first kernel, shorter than the mean
  profile.steps = 8;
  CHECK_FALSE(imported_trace({folder.write("waits.json", profile.json().dump())}).profile.contains("ahead"));
  profile.waits = false;
  const std::string path = folder.write("ahead.json", profile.json().dump());
  const Trace trace = imported_trace({path});
  CHECK(trace.profile.at("ahead") > 100e-6);
  CHECK(trace.profile.at("step") == Approx(1e-6 * profile.device_step()));
  CHECK(forecast_of(folder, path, 1).median_step_time_s() == Approx(1e-6 * profile.device_step()));
  CHECK(forecast_of(folder, path, 1, HostWaits::kStep).median_step_time_s() >
        1.01e-6 * profile.device_step());
  CHECK_THAT(joined(import_files({path}).understood, "\n"),
             Catch::Contains("ahead of the device when a step begins"));
}

TEST_CASE("the device's step is found in a window of one step, and in steps with other kernels", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.launch = 120.0;
  profile.steps = 8;
  profile.waits = false;
  nlohmann::json one = profile.json(), unlike = one;
  std::erase_if(one["traceEvents"].get_ref<nlohmann::json::array_t&>(), [](const nlohmann::json& event) {
    const std::string name = event["name"];
    return name.starts_with("ProfilerStep#") && name != "ProfilerStep#8";
  });
  int number = 0;
  for (nlohmann::json& event : unlike["traceEvents"])
    if (event["cat"] == "kernel") event["name"] = "kernel" + std::to_string(number++);
  for (const nlohmann::json& json : {one, unlike}) {
    const Trace trace = imported_trace({folder.write("ahead.json", json.dump())});
    CHECK(trace.profile.at("host_step") == Approx(600e-6));
    CHECK(trace.profile.at("step") == Approx(1e-6 * profile.device_step()));
  }
}

TEST_CASE("times are the median of all steps, layers those of steps with equal gradients", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  double time = 80.0;
  for (nlohmann::json* event : events_named(json, "nccl")) {
    (*event)["dur"] = time;
    time -= 20.0;
  }
  const std::vector<nlohmann::json*> gradients = events_named(json, "torch::autograd::AccumulateGrad");
  REQUIRE(gradients.size() == 6);
  for (const int which : {2, 5}) (*gradients[which])["name"] = "aten::detach";  // one of each later step
  const Trace trace = imported_trace({folder.write("unlike.json", json.dump())});
  CHECK(trace.profile.at("exposed") == Approx(60e-6));
  CHECK(model_of(trace, "x").parameters.size() == 2);
}

TEST_CASE("a copy of pageable memory that waits for the step before is no launch", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.steps = 8;
  profile.waits = false;
  profile.pageable = true;
  const std::string path = folder.write("pageable.json", profile.json().dump());
  CHECK(imported_trace({path}).profile.at("host_input") < 5e-6);
  CHECK(forecast_of(folder, path, 1).median_step_time_s() ==
        Approx(1e-6 * profile.device_step()).epsilon(0.03));
}

TEST_CASE("what a stream does while the busiest one works takes no time, and waits for it are no compute",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(30.0, 2);
  nlohmann::json json = profile.json();
  std::vector<nlohmann::json> copies;
  int number = 100'000;
  for (const nlohmann::json* step : events_named(json, "ProfilerStep#")) {
    const double begin = (*step)["ts"];
    copies.push_back(
        slice("cuda_runtime", "cudaMemcpyAsync", 100, begin + 0.1, 0.2, {{"correlation", ++number}}));
    for (const auto& [from, duration] : {std::pair{50.0, 500.0}, {1004.0, 10.0}}) {  // beside kernels, alone
      copies.push_back(slice("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 9, begin + from, duration,
                             {{"correlation", number}}));
      copies.back()["pid"] = 0;
    }
  }
  add_events(json, copies);
  const std::string path = folder.write("copies.json", json.dump());
  const Trace trace = imported_trace({path});
  CHECK(trace.profile.at("device_copies") == Approx(510e-6));
  CHECK(trace.profile.at("device_input") == Approx(10e-6));
  CHECK(trace.profile.at("device_optimizer") == Approx(50e-6));  // begins when the all-reduce ends
  CHECK(trace.profile.at("device_backward") == Approx(600e-6));
}

TEST_CASE("profiler overhead that the file states is neither launch nor host time", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = bound_by_launches(1).json();
  const auto with_plain = [&](double plain_s) {
    json["stepcast"] = {{"plain_step_s", plain_s}, {"batch", 16}};
    return folder.write("plain.json", json.dump());
  };
  const std::string path = with_plain(0.0025);
  const Imported imported = import_files({path});
  CHECK_THAT(joined(imported.understood, "\n"),
             Catch::Contains("2.50 ms without the profiler, +24.") && Catch::Contains("are scaled"));
  CHECK_THAT(joined(imported.assumed), Catch::Contains("batch 16, of the file's metadata"));
  CHECK(forecast_of(folder, path, 1).median_step_time_s() <= 1.2 * 0.0025);
  const Imported slower = import_files({with_plain(0.005)});
  CHECK_THAT(joined(slower.understood, "\n"),
             Catch::Contains("without the profiler, -3") && Catch::Contains("are scaled"));
  CHECK(forecast_of(folder, with_plain(0.005), 1).median_step_time_s() == Approx(0.005).epsilon(0.01));
  for (const double wrong : {5.0, 0.05, 1e-9, -0.003})
    CHECK_THROWS_WITH(import_files({with_plain(wrong)}),
                      Catch::Contains("plain_step_s: found ") &&
                          Catch::Contains(", expected seconds; a profiled step takes 3.1"));
}

TEST_CASE("steps on a CPU without the profiler last as long as the file states, shorter and longer ones",
          "[kineto]") {
  const ProfiledRun run = read_profiled_run({fixture("cnn-autocast-2.6.0")});
  const double plain_s = run.ranks.front().metadata.plain_step_s;
  CHECK(median(traced_entry(run, 32).step_s) == Approx(plain_s));
}

TEST_CASE("a forecast from a profile states that memory lacks activations", "[kineto]") {
  const TemporaryFolder folder;
  const std::string path = folder.write("own.json", bound_by_launches(1).json().dump());
  CHECK(forecast_of(folder, path, 1).notes.contains("activations"));
}

TEST_CASE("a profile of several micro-batches shows the time of all of them", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.accumulate = 2;
  profile.steps = 8;
  const std::string path = folder.write("parts.json", profile.json().dump());
  const Result shown = profiled_result({path}, forecast_of(folder, path, 2));
  std::map<std::string, double> times;
  for (const Span& span : shown.spans) times[span.name] += span.end_s - span.start_s;
  CHECK(times.at("forward/linear") == Approx(2 * 100e-6));
  CHECK(times.at("backward/linear-2") == Approx(2 * 400e-6));
  CHECK(shown.memory.size() == shown.breakdown.size());
  CHECK_THROWS_WITH(import_files({path}, {{"batch", "31"}}), Catch::Contains("a multiple of 2"));
  CHECK(imported_trace({path}, {{"batch", "32"}}).entries.front().batch == 16);
}

TEST_CASE("without shapes the gradients of all micro-batches are as large as their bucket", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 2);
  profile.accumulate = 2;
  profile.steps = 8;
  nlohmann::json json = profile.json();
  for (nlohmann::json& event : json["traceEvents"]) event["args"].erase("Input Dims");
  json["traceEvents"].push_back({{"ph", "X"},
                                 {"cat", "cpu_op"},
                                 {"name", "torch::distributed::reducer::mul_out"},  // DDP's sign
                                 {"pid", 100},
                                 {"tid", 100},
                                 {"ts", 1.0},
                                 {"dur", 0.5}});
  const ProfiledRun run = read_profiled_run({folder.write("parts.json", json.dump())});
  REQUIRE(run.shared_buckets);
  CHECK(run.micro_batches == 2);
  CHECK(run.parameters == 32 * 16 + 8 * 32);
}

TEST_CASE("without ProfilerStep# steps last from one optimizer to the next") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  std::erase_if(json["traceEvents"].get_ref<nlohmann::json::array_t&>(), [](const nlohmann::json& event) {
    return event["name"].get<std::string>().starts_with("ProfilerStep#");
  });
  const Trace trace = imported_trace({folder.write("loose.json", json.dump())});
  CHECK(trace.profile.at("step") == Approx(1050e-6).epsilon(0.02));
}

TEST_CASE("without ProfilerStep# steps have layers and parameters, whatever updates follow a backward",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.loss_after = 2;
  // Begin of a second update after that of the first: none, after it, inside it, inside the backward
  for (const double second : {0.0, 4.1, 1.0, -8.4}) {
    INFO(second);
    nlohmann::json json = profile.json();
    std::vector<nlohmann::json> more;
    for (nlohmann::json* event : events_named(json, "Optimizer.step#"))
      if (second != 0.0)
        more.push_back(slice("user_annotation", "Optimizer.step#AdamW.step", 100,
                             (*event)["ts"].get<double>() + second, 0.3));
    add_events(json, more);
    for (nlohmann::json* event : events_named(json, "ProfilerStep#")) (*event)["name"] = "other";
    for (nlohmann::json* event : events_named(json, ""))
      if (second < 0.0 && (*event)["tid"] == 101) (*event)["tid"] = 100;  // as on CPUs
    const ProfiledRun run = read_profiled_run({folder.write("loose.json", json.dump())});
    CHECK(run.parameters == 32 * 16 + 8 * 32);
    REQUIRE(run.ranks.front().steps.size() == 2);
    for (const ProfiledStep& step : run.ranks.front().steps) {
      CHECK(step.parts[StepPart::kForward].device == Approx(400.0));
      CHECK(step.parts[StepPart::kBackward].device == Approx(600.0));
      CHECK(step.duration() == Approx(1050.0).epsilon(0.02));
    }
  }
}

TEST_CASE("steps of a host that waits for the device last as long as the host's, without slow ones",
          "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.delay = 1200.0;
  const RankProfile rank =
      read_profiled_run({folder.write("slow.json", profile.json().dump())}).ranks.front();
  CHECK(rank.steps.size() == 2);
  CHECK_FALSE(rank.pace.is_device_step);
  CHECK(rank.pace.step_us == Approx(profile.device_step()).epsilon(0.02));
}

TEST_CASE("a step whose update was skipped is no micro-batch", "[kineto]") {
  const TemporaryFolder folder;
  for (const char* instead : {"aten::_amp_update_scale_", "other"}) {
    INFO(instead);
    WrittenProfile profile = two_layers();
    profile.all_reduce = 80.0;
    profile.ranks = 2;
    nlohmann::json json = profile.json();
    *events_named(json, "Optimizer.step#")[1] =
        slice("cpu_op", instead, 100, (*events_named(json, "Optimizer.step#")[1])["ts"], 0.5);
    const ProfiledRun run = read_profiled_run({folder.write("skipped.json", json.dump())});
    CHECK(run.micro_batches == 1);
    CHECK(run.ranks.front().steps.size() == 3);
    CHECK(run.ranks.front().pace.step_us == Approx(profile.device_step()).epsilon(0.02));
  }
}

TEST_CASE("a window of one step of several micro-batches gives that step", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers(80.0, 2);
  profile.accumulate = 2;
  const ProfiledRun run = read_profiled_run({folder.write("parts.json", profile.json().dump())});
  CHECK(run.micro_batches == 2);
  REQUIRE(run.ranks.front().steps.size() == 1);
  CHECK(run.ranks.front().pace.step_us == Approx(2 * 1000.0 + 80.0 + 50.0).epsilon(0.02));
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
  CHECK(run.ranks.front().pace.step_us == Approx(2 * 1000.0 + 80.0 + 50.0).epsilon(0.02));
  CHECK_THAT(joined(run.ranks.front().notes), Catch::Contains("2 ProfilerStep# were joined to each"));
  REQUIRE(run.collectives.size() == 1);
  CHECK(run.collectives.front().per_step == 1.0);
  const TraceEntry entry = traced_entry(run, 16);
  CHECK(entry.segments[0].forward_s[0] == Approx(100e-6));
  CHECK(entry.segments[0].optimizer_s[0] + entry.segments[1].optimizer_s[0] == Approx(50e-6));
}

TEST_CASE("forwards before the first backward, as in pipelines, are micro-batches of their own", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.forwards = 3;
  const ProfiledRun run = read_profiled_run({folder.write("stage.json", profile.json().dump())});
  CHECK(run.micro_batches == 3);
  CHECK(run.parameters == 32 * 16 + 8 * 32);
  CHECK(run.ranks.front().steps.front().gradients == 6);
  const TraceEntry entry = traced_entry(run, 16);
  REQUIRE(entry.segments.size() == 2);
  CHECK(entry.segments[0].forward_s[0] == Approx(100e-6));
  CHECK(entry.segments[1].backward_s[0] == Approx(400e-6));
}

TEST_CASE("gradients of inputs, of samples and of what a stage receives, are no parameters", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.forwards = 2;
  for (const bool receives : {false, true}) {
    INFO(receives);
    nlohmann::json json = profile.json();
    const nlohmann::json input = receives ? nlohmann::json{4, 4, 16} : nlohmann::json{16, 16};
    std::vector<nlohmann::json> more;
    for (const nlohmann::json* event : events_named(json, "ProfilerStep#"))
      if (receives)
        more.push_back(slice("cpu_op", "record_param_comms", 100, (*event)["ts"].get<double>() + 0.1, 0.1,
                             {{"Collective name", "recv"},
                              {"dtype", "Float"},
                              {"In msg nelems", 16 * 16},
                              {"Group size", 2},
                              {"Process Group Name", "stages"}}));
    for (nlohmann::json* event : events_named(json, "aten::linear")) {
      (*event)["ts"] = (*event)["ts"].get<double>() + 0.5;  // after the call
      if ((*event)["args"]["Input Dims"][1][0] != 32) continue;
      (*event)["name"] = "aten::rms_norm";
      (*event)["args"]["Input Dims"][0] = input;
    }
    for (const nlohmann::json* event : events_named(json, "torch::autograd::AccumulateGrad")) {
      if ((*event)["args"]["Input Dims"][0][0] != 32) continue;  // after the first layer's parameter
      const double end = (*event)["ts"].get<double>() + 1.3;
      more.push_back(*events_named(json, "autograd::engine::evaluate_function: torch::").front());
      more.back()["ts"] = end + 0.1;
      more.back()["dur"] = 0.3;
      more.push_back(slice("cpu_op", "torch::autograd::AccumulateGrad", 101, end + 0.2, 0.1,
                           {{"Input Dims", nlohmann::json::array({input})}}));
    }
    add_events(json, more);
    const ProfiledRun run = read_profiled_run({folder.write("input.json", json.dump())});
    CHECK(run.ranks.front().metadata.batch == 16);
    CHECK(run.parameters == 32 * 16 + 8 * 32);
    CHECK(run.ranks.front().steps.front().gradients == 4);
  }
  // A parameter may be as large as the input.
  profile.layers.front().weight = {16, 16};
  CHECK(read_profiled_run({folder.write("equal.json", profile.json().dump())}).parameters ==
        16 * 16 + 8 * 32);
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

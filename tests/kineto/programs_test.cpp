#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/table.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "sim/replay/prediction.hpp"
#include "tests/kineto/cpu_profile.hpp"
#include "tests/temporary_folder.hpp"

/// Programs that train in other ways than one model, one backward and one update per step.
namespace stepcast::tests::kineto_programs_test {
namespace {

const double kParameters = 32 * 16 + 8 * 32;

/// Three steps of the same.
CpuProfile steps_of(const std::function<void(CpuProfile&)>& step) {
  CpuProfile profile;
  for (int i = 0; i < 3; ++i) {
    profile.mark();
    step(profile);
  }
  profile.mark();
  return profile;
}

/// What is imported from a profile.
struct Read {
  TemporaryFolder folder{};
  std::string path;
  ProfiledRun run;
  explicit Read(const nlohmann::json& json)
      : path(folder.write("p.json", json.dump())), run(read_profiled_run({path})) {}
  explicit Read(const CpuProfile& profile, int ranks = 1) : Read(profile.json(ranks)) {}

  [[nodiscard]] double host(StepPart part) const { return step().parts[part].host; }
  [[nodiscard]] const ProfiledStep& step() const { return run.ranks.front().steps.front(); }
  [[nodiscard]] std::string assumed() const { return joined(import_files({path}).assumed, "\n"); }
  [[nodiscard]] std::string ignored() const { return joined(import_files({path}).ignored, "\n"); }
  [[nodiscard]] Result forecast(int micro_batches = 1) const {
    nlohmann::json json = nlohmann::json::parse(import_files({path}).text);
    json["context"]["schema"] = kTraceSchema;
    PredictionRequest request;
    request.strategy = "single";
    request.costs.trace = folder.write("p.trace.json", json.dump());
    request.training.micro_batches = micro_batches;
    return predict(request);
  }
  /// Checks that a forecast takes as long as the profile.
  void repeats(double step_us, int micro_batches = 1) const {
    CHECK(run.ranks.front().pace.step_us == Approx(step_us));
    CHECK(forecast(micro_batches).median_step_time_s() == Approx(step_us * 1e-6).epsilon(0.001));
  }
};

}  // namespace

TEST_CASE("times before the first operation of a profile are those of its step", "[kineto]") {
  CpuProfile profile;
  profile.add(slice("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", 100, profile.now(), 20.0));
  profile.pass(20.0);
  profile.train();
  profile.update();
  const Read read(profile);
  CHECK(read.host(StepPart::kZeroGrad) == Approx(20.0));
  read.repeats(20.0 + 400.0 + 4.0 + 100.0);
}

TEST_CASE("waits for collectives of Gloo that the program calls are no compute", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
                    p.wait_for("barrier", 1000.0);
                    p.train();
                    p.wait_for("allreduce", 2000.0);  // of gradients
                    p.operation("aten::div_", 10.0);
                    p.add(slice("user_annotation", "Optimizer.step#SGD.step", 100, p.now(), 50.0 + 4008.0));
                    p.operation("aten::add_", 50.0);
                    p.wait_for("broadcast", 4000.0);  // of ZeRO's parameters
                    p.wait_for("allreduce", 8000.0);  // of the loss
                  }),
                  2);
  CHECK(read.step().waited == Approx(15000.0).epsilon(0.002));
  CHECK(read.host(StepPart::kForward) < 230.0);
  CHECK(read.host(StepPart::kBackward) < 230.0);
  CHECK(read.host(StepPart::kOptimizer) < 100.0);
  CHECK(read.host(StepPart::kRest) < 30.0);
  REQUIRE(read.step().collectives.size() == 3);
}

TEST_CASE("transfers of Gloo on the main thread hide no operation", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
                    // As of a stage of a pipeline: its receive lasts until the backward.
                    p.add(slice("user_annotation", "gloo:recv", 100, p.now(), 350.0,
                                {{"Input Dims", {{16, 16}}}, {"Input type", {"float"}}}));
                    p.operation("c10d::recv_", 3.0);
                    p.train();
                    p.update();
                  }),
                  2);
  CHECK(read.run.parameters == kParameters);
  CHECK(read.run.micro_batches == 1);
  CHECK(read.step().collectives.size() == 1);
  CHECK(read.host(StepPart::kForward) == Approx(200.0));
}

TEST_CASE("an operation that ends when a transfer does is no wait", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
                    p.add(slice("user_annotation", "gloo:all_reduce", 103, p.now(), 150.0));
                    p.train();
                    p.update();
                  }),
                  2);
  CHECK(read.step().waited == 0.0);
  CHECK(read.host(StepPart::kForward) == Approx(200.0));
}

TEST_CASE("waits for DDP's reduction of each micro-batch are no backward", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
                    for (int i = 0; i < 3; ++i) {
                      p.train();
                      p.pass(1000.0);
                      p.operation("aten::as_strided", 2.0);
                    }
                    p.update();
                  }),
                  2);
  CHECK(read.run.micro_batches == 3);
  CHECK(read.step().waited == Approx(3000.0));
  CHECK(read.host(StepPart::kBackward) == Approx(3 * 204.0));
}

TEST_CASE("of several models in a step the largest is the forecast's, and no time is lost", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    p.train();
    p.update();
    const int first = p.layer({64, 32}), second = p.layer({32, 64});
    p.node(second, {32, 64}, 300.0);
    p.node(first, {64, 32}, 300.0);
    p.update({{64, 32}, {32, 64}});
  }));
  CHECK(read.run.parameters == 2 * 64 * 32);
  CHECK(read.run.micro_batches == 1);
  CHECK_THAT(read.assumed(), Catch::Contains("2 gradients in 1 forward of a step, 2 in others"));
  read.repeats(400.0 + 4.0 + 100.0 + 800.0 + 4.0 + 100.0);
}

TEST_CASE("a graph that several backwards run through has each parameter once", "[kineto]") {
  for (const bool late : {false, true}) {
    INFO(late);
    const Read read(steps_of([late](CpuProfile& p) {
      const int trunk = p.layer({32, 16}), one = p.layer({8, 32});
      int other = late ? 0 : p.layer({4, 32});
      p.node(one, {8, 32});
      p.node(trunk, {32, 16});
      if (late) other = p.layer({4, 32});
      p.node(other, {4, 32});
      p.node(trunk, {32, 16});
      p.update();
    }));
    CHECK(read.run.parameters == kParameters + 4 * 32);
    CHECK(read.run.gradients == 3);
    CHECK(read.run.micro_batches == 1);
    read.repeats(700.0 + 8.0 + 100.0);
  }
}

TEST_CASE("an update without Optimizer.step# is in forecasts", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    p.train();
    p.operation("aten::sub_", 80.0);
  }));
  CHECK_THAT(read.assumed(), Catch::Contains("no Optimizer.step# was recorded"));
  read.repeats(400.0 + 4.0 + 80.0);
}

TEST_CASE("gradients of inputs are no parameters, and gradients of gradients no micro-batches", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    const int first = p.layer({32, 16}), second = p.layer({8, 32});
    p.node(second);  // torch.autograd.grad(..., create_graph=True)
    p.node(first);
    const int penalty = p.layer({16, 16});
    p.node(penalty, {16, 16});  // of the input, which is no parameter
    p.node(second, {8, 32});
    p.node(first, {32, 16});
    p.update();
  }));
  CHECK(read.run.micro_batches == 1);
  CHECK(read.run.parameters == kParameters);
  read.repeats(800.0 + 6.0 + 100.0);
  // A parameter may be as large as the input.
  const Read same(steps_of([](CpuProfile& p) {
    const int first = p.layer({16, 16}), second = p.layer({16, 16});
    p.node(second, {16, 16});
    p.node(first, {16, 16});
    p.update({{16, 16}, {16, 16}});
  }));
  CHECK(same.run.parameters == 2 * 16 * 16);
  // The input may be a parameter, as of an autodecoder.
  const Read codes(steps_of([](CpuProfile& p) {
    const int first = p.layer({32, 16});
    p.node(first, {32, 16});
    p.node(-1, {16, 16});
    p.update({{32, 16}, {16, 16}});
  }));
  CHECK(codes.run.parameters == 32 * 16 + 16 * 16);
}

TEST_CASE("work between micro-batches is input, and inside an optimizer's step the optimizer's", "[kineto]") {
  const auto micro_batches = [](CpuProfile& p) {
    for (int i = 0; i < 2; ++i) {
      p.pass(500.0);
      p.operation("aten::to", 10.0);
      p.train();
    }
  };
  const Read read(steps_of([&](CpuProfile& p) {
    micro_batches(p);
    p.update();
  }));
  CHECK(read.host(StepPart::kInput) == Approx(1020.0));
  CHECK(read.host(StepPart::kBackward) == Approx(408.0));
  const Read closure(steps_of([&](CpuProfile& p) {
    p.add(slice("user_annotation", "Optimizer.step#LBFGS.step", 100, p.now(), 2.0 * 914.0));
    micro_batches(p);
  }));
  CHECK(closure.host(StepPart::kOptimizer) == Approx(510.0));
  CHECK(closure.host(StepPart::kBackward) == Approx(408.0));
}

TEST_CASE("a forecast states that it has other micro-batches than its profile", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    for (int i = 0; i < 4; ++i) p.train();
    p.update();
  }));
  CHECK_THAT(read.forecast().notes.at("micro-batches"),
             Catch::Contains("1 of the 4 that the profile's step has; --micro-batches 4"));
  CHECK_FALSE(read.forecast(4).notes.contains("micro-batches"));
  read.repeats(4 * 404.0 + 100.0, 4);
}

TEST_CASE("annotations of the program wait for no device, whatever their names", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    p.train();
    p.update();
    p.add(slice("user_annotation", "Synchronize metrics", 100, p.now(), 60.0));
    p.operation("aten::mean", 60.0);
  }));
  CHECK(read.step().blocked == 0.0);
  read.repeats(404.0 + 100.0 + 60.0);
}

TEST_CASE("files that do not state their ranks are imported one by one", "[kineto]") {
  const TemporaryFolder folder;
  const auto step = [](CpuProfile& p) {
    p.train();
    p.update();
  };
  const std::string path = folder.write("a.json", steps_of(step).json().dump());
  CHECK_THROWS_WITH(import_files({path, path}), Catch::Contains("a.json: does not state its rank"));
  nlohmann::json beyond = steps_of(step).json(4);
  beyond["distributedInfo"]["rank"] = 7;
  CHECK_THROWS_WITH(import_files({folder.write("b.json", beyond.dump())}),
                    Catch::Contains("rank: found 7, expected one below world_size, 4"));
}

TEST_CASE("marks between forward and backward are no steps", "[kineto]") {
  CpuProfile profile;
  for (int i = 0; i < 5; ++i) {  // as with Lightning's profiler, inside an optimizer's step with a closure
    const double begin = profile.now();
    const int first = profile.layer({32, 16}), second = profile.layer({8, 32});
    profile.mark();
    if (i < 4) {
      profile.node(second, {8, 32});
      profile.node(first, {32, 16});
    }
    profile.operation("aten::add_", 50.0);
    profile.add(slice("user_annotation", "Optimizer.step#SGD.step", 100, begin, profile.now() - begin));
  }
  const Read read(profile);
  CHECK(read.run.ranks.front().steps.size() == 3);
  CHECK(read.run.segments.size() == 2);
  CHECK_THAT(read.ignored(),
             Catch::Contains("step() of the profiler is called between forward and backward"));
  read.repeats(400.0 + 4.0 + 50.0);
}

TEST_CASE("steps of several kinds take the mean of all", "[kineto]") {
  CpuProfile profile;
  for (int i = 0; i < 6; ++i) {
    profile.mark();
    profile.train(i % 3 == 2 ? 1000.0 : 100.0);
    if (i % 3 == 2) profile.node(profile.layer({4, 4}), {4, 4});
    profile.update();
  }
  profile.mark();
  const double like = 504.0, unlike = 4000.0 + 4.0 + 202.0 + 100.0;
  const Read read(profile);
  read.repeats((2.0 * like + unlike) / 3.0);
  CHECK_THAT(read.ignored(), Catch::Contains("2 of 6 steps have other gradients"));
}

TEST_CASE("without marks, updates of several models are one step", "[kineto]") {
  CpuProfile profile;
  for (int i = 0; i < 5; ++i) {
    profile.train();
    profile.update();
    const int layer = profile.layer({64, 32});
    profile.node(layer, {64, 32}, 300.0);
    profile.update({{64, 32}});
  }
  const Read read(profile);
  CHECK(read.run.parameters == 64 * 32);
  read.repeats(504.0 + 400.0 + 2.0 + 50.0);
}

TEST_CASE("a step that lacks its mark is left out", "[kineto]") {
  nlohmann::json json = [] {
    CpuProfile profile;
    for (int i = 0; i < 5; ++i) {
      profile.mark();
      profile.train();
      profile.update();
    }
    profile.mark();
    return profile.json();
  }();
  events_named(json, "ProfilerStep#2").front()->at("name") = "other";
  const Read read(json);
  CHECK(read.run.micro_batches == 1);
  CHECK_THAT(read.ignored(), Catch::Contains("it has the updates of several steps"));
  CHECK(read.run.ranks.front().steps.size() == 3);
}

TEST_CASE("states of optimizers are counted, and their GEMMs give no precision", "[kineto]") {
  const auto states = [](const std::string& name, const std::string& operation) {
    const Read read(steps_of([&](CpuProfile& p) {
      p.train();
      p.update({{32, 16}, {8, 32}}, 50.0, name, operation);
      p.operation("aten::mm", 5000.0, {{"Input Dims", {{8, 8}}}, {"Input type", {"c10::BFloat16"}}});
    }));
    CHECK(read.run.compute_dtype == "fp32");
    return model_of(imported_trace({read.path}), "x").optimizer.states();
  };
  CHECK(states("SGD", "aten::add_") == 0);
  CHECK(states("SGD", "aten::mul_") == 1);
  CHECK(states("RMSprop", "aten::add_") == 1);
  CHECK(states("AdamW", "aten::lerp_") == 2);
}

TEST_CASE("steps that vary are reported, since ranks wait for the slowest", "[kineto]") {
  for (const double longer : {0.0, 500.0}) {
    int step = 0;
    const Read read(steps_of([&](CpuProfile& p) {
      p.train();
      p.update();
      p.operation("aten::mm", 1000.0 + (step++ % 2) * longer);
    }));
    CHECK((joined(import_files({read.path}).assumed).find("steps vary") != std::string::npos) ==
          (longer > 0.0));
  }
}

TEST_CASE("sparse gradients of embeddings are reported", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    p.train();
    p.operation("aten::embedding_sparse_backward", 5.0);
    p.update();
  }));
  CHECK_THAT(read.ignored(), Catch::Contains("gradients of embeddings are sparse"));
}

TEST_CASE("gradients that precisions lack are refused", "[kineto]") {
  CHECK_THROWS_WITH(Read(steps_of([](CpuProfile& p) {
                      p.train(100.0, 16, "double");
                      p.update();
                    })),
                    Catch::Contains("p.json: has gradients of type double"));
}

TEST_CASE("a profile without accumulated gradients is reported as such", "[kineto]") {
  const Read read(steps_of([](CpuProfile& p) {
    const int first = p.layer({32, 16});
    p.node(first);
    p.update();
  }));
  CHECK_THAT(joined(import_files({read.path}).understood, "\n"),
             Catch::Contains("no gradient of a parameter"));
}

TEST_CASE("batches are those of bags of embeddings, and of recurrent layers' states", "[kineto]") {
  const auto batch = [](const std::string& name, const std::vector<std::vector<int>>& dims) {
    const Read read(steps_of([&](CpuProfile& p) {
      p.operation(name, 5.0, {{"Sequence number", 0}, {"Fwd thread id", 0}, {"Input Dims", dims}});
      p.train();
      p.update();
    }));
    return read.run.ranks.front().metadata.batch;
  };
  CHECK(batch("aten::embedding_bag", {{50000, 64}, {320}, {24}}) == 24);
  CHECK(batch("aten::lstm", {{40, 24, 64}, {2, 24, 128}, {2, 24, 128}}) == 24);
}

TEST_CASE("much time before the forward is reported, as events that are damaged", "[kineto]") {
  nlohmann::json json = steps_of([](CpuProfile& p) {
                          p.operation("aten::linear", 700.0);
                          p.train();
                          p.update();
                        }).json();
  CHECK_THAT(Read(json).assumed(), Catch::Contains("% of a step precedes the forwards of the training"));
  json["traceEvents"].push_back(slice("cpu_op", "aten::add", 100, 5e9, -1.0));
  CHECK_THAT(Read(json).ignored(), Catch::Contains("1 event without a valid duration"));
  const TemporaryFolder folder;
  CHECK_NOTHROW(import_files({folder.write("mark.json", "\xEF\xBB\xBF" + json.dump())}));
  nlohmann::json other = json;
  for (nlohmann::json& event : other["traceEvents"])
    if (!event["name"].get<std::string>().starts_with("ProfilerStep#")) {
      event["pid"] = 200;
      json["traceEvents"].push_back(event);
    }
  CHECK_THROWS_WITH(Read(json), Catch::Contains("of 2 processes"));
}

}  // namespace stepcast::tests::kineto_programs_test

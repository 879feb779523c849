#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/importer.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/trace.hpp"
#include "sim/kineto/profile_trace.hpp"
#include "tests/kineto/imported.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::tests::import_kineto_test {
namespace {

double sum_of_parts(const ProfiledStep& step) {
  double sum = step.strategy.host + step.waited + step.blocked;
  for (const PartTime& part : step.parts) sum += part.host;
  return sum;
}

const char* const kCnn = R"(description: the fixtures' network
input: {kind: image, shape: [3, 32, 32]}
loss: cross_entropy
classes: 10
optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9}
segments:
  - name: first
    layers:
      - conv: {name: conv1, out: 16, kernel: 3, padding: 1}
      - relu
      - max_pool: {name: pool, kernel: 2}
      - conv: {name: conv2, out: 32, kernel: 3, padding: 1}
      - relu
      - max_pool: {name: pool, kernel: 2}
  - name: second
    layers:
      - flatten
      - linear: {name: fc1, out: 64}
      - relu
      - linear: {name: fc2, out: 10}
)";

}  // namespace

TEST_CASE("profiles of every version of torch have all layers, parameters and parts of a step") {
  for (const char* name :
       {"cnn-1.13.1", "cnn-1.13.1-debian", "cnn-2.1.2", "cnn-2.4.1", "cnn-2.15.0", "cnn-stack-2.7.1"}) {
    INFO(name);
    const ProfiledRun run = read_profiled_run({fixture(name)});
    CHECK(run.parameters == 136874);
    CHECK(run.gradients == 8);
    CHECK(run.micro_batches == 1);
    CHECK(run.precision == "fp32");
    CHECK(run.ranks.front().metadata.batch == 16);
    CHECK(run.ranks.front().optimizer.name == "SGD");
    CHECK(run.ranks.front().steps.size() == 2);
    REQUIRE(run.segments.size() == 4);
    // In the order in which gradients become ready: fc1's bias before its weight.
    CHECK(run.segments[2].elements == std::vector<double>{64.0, 64.0 * 2048.0});
    for (const ProfiledStep& step : run.ranks.front().steps) {
      CHECK(sum_of_parts(step) == Approx(step.duration()).epsilon(0.001));
      CHECK(step.parts[StepPart::kRest].host < 0.05 * step.duration());
      CHECK(step.waited == 0.0);
    }
  }
}

TEST_CASE("autocast gives the dtype of compute, and a compiled graph is one segment") {
  for (const auto& [name, precision, segments] :  // studies/pytorch/train.py cnn --autocast, --compile
       {std::tuple{"cnn-autocast-2.6.0", "fp32,compute=bf16", 5}, {"cnn-compile-2.6.0", "fp32", 1}}) {
    INFO(name);
    const ProfiledRun run = read_profiled_run({fixture(name)});
    CHECK(run.parameters == 1147466);
    CHECK(run.gradients == 10);
    CHECK(run.precision == precision);
    CHECK(run.segments.size() == static_cast<std::size_t>(segments));
    for (const ProfiledStep& step : run.ranks.front().steps)
      CHECK(sum_of_parts(step) == Approx(step.duration()).epsilon(0.001));
  }
}

TEST_CASE("operations give the dtype of compute if no GEMM is PyTorch's", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  for (nlohmann::json* event : events_named(json, "aten::linear"))
    (*event)["args"]["Input type"] = {"c10::BFloat16", "c10::BFloat16", ""};
  CHECK(read_profiled_run({folder.write("other.json", json.dump())}).precision == "fp32,compute=bf16");
}

TEST_CASE("modules name segments where stacks were recorded") {
  const ProfiledRun run = read_profiled_run({fixture("cnn-stack-2.7.1")});
  CHECK(run.segments[0].name == "Conv2d_0");
  CHECK(run.segments[3].name == "Linear_1");
}

TEST_CASE("TorchScript's operations are the layers, not its one call") {
  const ProfiledRun run = read_profiled_run({fixture("resnet-script-2.4.1")});
  CHECK(run.parameters == 19954);
  CHECK(run.gradients == 29);
  CHECK(run.segments.size() == 19);
}

TEST_CASE("a GPU's kernels belong to the operations that launched them") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.layers[1].weight = {8, 32};
  const Trace trace = imported_trace({folder.write("gpu.json", profile.json().dump())});
  CHECK(trace.device == "NVIDIA H100 80GB HBM3");
  REQUIRE(trace.entries.size() == 1);
  const TraceEntry& entry = trace.entries.front();
  CHECK(entry.batch == 16);
  REQUIRE(entry.segments.size() == 2);
  for (std::size_t k = 0; k < entry.steps(); ++k) {
    CHECK(entry.segments[0].forward_s[k] == Approx(100e-6));
    CHECK(entry.segments[1].forward_s[k] == Approx(300e-6));
    CHECK(entry.segments[0].backward_s[k] == Approx(200e-6));
    CHECK(entry.segments[1].backward_s[k] == Approx(400e-6));
    CHECK(entry.segments[0].optimizer_s[k] + entry.segments[1].optimizer_s[k] == Approx(50e-6));
    CHECK(entry.segments[1].forward_issue_s[k] == Approx(5e-6).margin(2e-6));
    CHECK(entry.step_s[k] == Approx(1e-6 * profile.device_step()).epsilon(0.02));
  }
  CHECK(trace.profile.at("device_compute") == Approx(1050e-6));
  CHECK(trace.profile.at("exposed") == 0.0);
}

TEST_CASE("kernels without a launch belong where the kernel before on their stream does", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json(), untraced = json;
  std::set<nlohmann::json> lost;  // correlations
  for (const nlohmann::json* event : events_named(json, "gemm_backward"))
    lost.insert((*event)["args"]["correlation"]);
  std::erase_if(json["traceEvents"].get_ref<nlohmann::json::array_t&>(), [&](const nlohmann::json& event) {
    return event["cat"] == "cuda_runtime" && lost.contains(event["args"]["correlation"]);
  });
  const Imported imported = import_files({folder.write("lost.json", json.dump())});
  CHECK(nlohmann::json::parse(imported.text)["profile"]["device_compute"].get<double>() == Approx(1050e-6));
  CHECK_THAT(joined(imported.ignored), !Catch::Contains("without a launch"));
  std::erase_if(untraced["traceEvents"].get_ref<nlohmann::json::array_t&>(),
                [](const nlohmann::json& event) { return event["cat"] == "cuda_runtime"; });
  CHECK_THROWS_WITH(import_files({folder.write("untraced.json", untraced.dump())}),
                    Catch::Contains("has 15 kernels, but no launch of one in a step"));
}

TEST_CASE("a process and a thread may have the numbers of a GPU and a stream", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  for (nlohmann::json& event : json["traceEvents"]) {
    event["pid"] = 0;
    if (event["tid"] == 100) event["tid"] = 7;
  }
  const Trace trace = imported_trace({folder.write("container.json", json.dump())});
  CHECK(trace.profile.at("device_compute") == Approx(1050e-6));
  CHECK(model_of(trace, "x").parameters.size() == 2);
}

TEST_CASE("numbers of nodes and launches may be above 2^32, as in long trainings", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  for (nlohmann::json& event : json["traceEvents"])
    for (const char* key : {"Sequence number", "correlation"})
      if (event["args"].contains(key))
        event["args"][key] = event["args"][key].get<std::int64_t>() + 5'000'000'000;
  const ProfiledRun run = read_profiled_run({folder.write("long.json", json.dump())});
  CHECK(run.parameters == 32 * 16 + 8 * 32);
  CHECK(run.ranks.front().steps.front().parts[StepPart::kBackward].device == Approx(600.0));
}

TEST_CASE("a written trace describes its model, and contains no name of a host, user or path") {
  const TemporaryFolder folder;
  const std::string path = folder.write("gpu.json", two_layers().json().dump());
  const Imported imported = import_files({path});
  for (const char* name : {"secret-host", "somebody", "stepcast-test"})
    CHECK(imported.text.find(name) == std::string::npos);
  const Trace trace = imported_trace({path});
  REQUIRE(trace.lineage.size() == 1);
  CHECK(trace.lineage.front().path == "gpu.json");
  const std::string zipped = fixture("cnn-2.15.0");
  CHECK(imported_trace({zipped}).lineage.front().sha1 == make_ancestor("profile", zipped).sha1);
  const Model model = model_of(trace, "x.trace.json");
  CHECK(model.parameter_count() == 32 * 16 + 8 * 32);
  CHECK(model.specification == trace.model);
  CHECK(of_whole_model(trace, model).entries.size() == 1);
  CHECK(trace.problem().empty());
}

TEST_CASE("--model gives segments of a known model their times") {
  const TemporaryFolder folder;
  const std::string model = folder.write("cnn.yaml", kCnn);
  const Trace trace = imported_trace({fixture("cnn-2.15.0")}, {{"model", model}});
  CHECK(trace.described.empty());
  CHECK(trace.model == model);
  const auto& segments = trace.entries.front().segments;
  REQUIRE(segments.size() == 2);
  CHECK(segments[0].name == "first");
  CHECK(segments[0].grad_ready_fraction.size() == 4);
  const Trace own = imported_trace({fixture("cnn-2.15.0")});
  CHECK(segments[0].forward_s[0] ==
        Approx(own.entries[0].segments[0].forward_s[0] + own.entries[0].segments[1].forward_s[0]));
  CHECK_THROWS_WITH(import_files({fixture("resnet-script-2.4.1")}, {{"model", model}}),
                    Catch::Contains("segment 'first'"));
}

TEST_CASE("models are recognised by their number of parameters") {
  CHECK(models_with(25557032) == std::vector<std::string>{"resnet50"});
  CHECK(models_with(25557033).empty());
}

TEST_CASE("without shapes models are recognised by what their all-reduces move", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers(80.0, 2).json();
  for (nlohmann::json& event : json["traceEvents"]) {
    event["args"].erase("Input Dims");
    if (event["name"] == "record_param_comms") event["args"]["In msg nelems"] = 11'689'512;
  }
  CHECK_THAT(joined(import_files({folder.write("unsized.json", json.dump())}).understood),
             Catch::Contains("all-reduces move as many elements as resnet18 has"));
}

TEST_CASE("what is no profile of a training is refused with what was found") {
  const TemporaryFolder folder;
  const auto refused = [](const std::vector<std::string>& paths, const std::string& text) {
    INFO(text);
    CHECK_THROWS_WITH(import_files(paths), Catch::Contains(text));
  };
  refused({fixture("cnn-without-kineto")}, "without Kineto");
  nlohmann::json json = two_layers().json();
  nlohmann::json inference = json, shapeless = json;
  std::erase_if(
      inference["traceEvents"].get_ref<nlohmann::json::array_t&>(),
      [](const nlohmann::json& event) { return event["name"].get<std::string>().starts_with("autograd"); });
  refused({folder.write("graphs.json", inference.dump())}, "although optimizers run: CUDA graphs");
  std::erase_if(
      inference["traceEvents"].get_ref<nlohmann::json::array_t&>(),
      [](const nlohmann::json& event) { return event["name"].get<std::string>().starts_with("Optimizer"); });
  refused({folder.write("inference.json", inference.dump())}, "as in inference");
  std::erase_if(inference["traceEvents"].get_ref<nlohmann::json::array_t&>(),
                [](const nlohmann::json& event) { return event["cat"] == "user_annotation"; });
  refused({folder.write("loose.json", inference.dump())}, "no ProfilerStep#");
  std::erase_if(inference["traceEvents"].get_ref<nlohmann::json::array_t&>(),
                [](const nlohmann::json& event) { return event["cat"] == "cpu_op"; });
  CHECK_THROWS_WITH(import_files({folder.write("kernels.json", inference.dump())}),
                    Catch::Contains("no ProfilerStep#") && !Catch::Contains("inference"));
  for (nlohmann::json& event : inference["traceEvents"]) event.erase("cat");
  refused({folder.write("jax.json", inference.dump())}, "has no event of a category such as cpu_op");
  nlohmann::json timeline = json;  // of the device alone
  std::erase_if(timeline["traceEvents"].get_ref<nlohmann::json::array_t&>(), [](const nlohmann::json& event) {
    return event["cat"] == "cpu_op" || event["name"].get<std::string>().starts_with("Optimizer");
  });
  refused({folder.write("timeline.json", timeline.dump())}, "none of 3 steps has a backward pass; found");
  const std::string rank0 = fixture("cnn-ddp-2.7.1-rank0");
  refused({rank0, rank0}, "give each rank once");
  refused({rank0, fixture("cnn-2.4.1")}, "import runs one by one");
  for (nlohmann::json& event : shapeless["traceEvents"]) event["args"].erase("Input Dims");
  const Trace trace = imported_trace({folder.write("shapeless.json", shapeless.dump())});
  CHECK(model_of(trace, "x").parameters.empty());
}

TEST_CASE("profiles of other runtimes and older versions are read by their names of categories", "[kineto]") {
  const TemporaryFolder folder;
  const std::string cuda = two_layers().json().dump();
  using Names = std::vector<std::pair<std::string, std::string>>;
  for (const Names& names : {Names{{"cudaLaunchKernel", "hipLaunchKernel"}, {"cudaStream", "hipStream"}},
                             Names{{"cuda_runtime", "cuda_driver"}, {"cudaLaunchKernel", "cuLaunchKernel"}},
                             Names{{"cuda_runtime", "xpu_runtime"},
                                   {"cudaLaunchKernel", "urEnqueueKernelLaunch"},
                                   {"cudaStreamSynchronize", "urQueueFinish"}},
                             Names{{"cuda_runtime", "Runtime"},
                                   {"cpu_op", "Operator"},
                                   {"user_annotation", "Operator"},
                                   {"\"kernel\"", "\"Kernel\""}}}) {
    INFO(names.front().second);
    std::string text = cuda;
    for (const auto& [from, to] : names)
      for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    const ProfiledRun run = read_profiled_run({folder.write("other.json", text)});
    REQUIRE(run.segments.size() == 2);
    CHECK(traced_entry(run, 16).segments[1].backward_s[0] == Approx(400e-6));
    CHECK(run.ranks.front().steps.front().blocked > 500.0);
  }
}

TEST_CASE("what a profile lacks, and collectives of layers, are reported", "[kineto]") {
  const TemporaryFolder folder;
  using Events = nlohmann::json::array_t;
  const nlohmann::json whole = two_layers().json();
  const auto without = [&](const std::function<bool(const nlohmann::json&)>& left_out) {
    nlohmann::json json = whole;
    std::erase_if(json["traceEvents"].get_ref<Events&>(), left_out);
    return json;
  };
  const auto refused = [&](const nlohmann::json& json, const std::string& text) {
    INFO(text);
    CHECK_THROWS_WITH(import_files({folder.write("refused.json", json.dump())}), Catch::Contains(text));
  };
  refused(without([](const auto& event) { return event["cat"] == "kernel"; }), "activities=");
  refused(without([](const auto& event) { return event["cat"] == "cpu_op"; }), "activities=");
  nlohmann::json graphs = without([](const auto& event) { return event["cat"] == "cpu_op"; });
  for (nlohmann::json& event : graphs["traceEvents"])
    if (event["name"] == "cudaLaunchKernel") event["name"] = "cudaGraphLaunch";
  refused(graphs, "of CUDA graphs, which hide operations");
  nlohmann::json merged = whole;
  for (nlohmann::json event : whole["traceEvents"]) {
    event["pid"] = event["pid"].get<int>() + 1;
    merged["traceEvents"].push_back(event);
  }
  refused(merged, "steps of 2 processes");

  int updates = 0;
  const nlohmann::json once = without([&](const auto& event) {
    const auto name = event["name"].template get<std::string>();
    return name.starts_with("ProfilerStep#") || (name.starts_with("Optimizer.step#") && updates++ > 0);
  });
  const ProfiledRun one = read_profiled_run({folder.write("once.json", once.dump())});
  CHECK(one.ranks.front().steps.size() == 1);
  CHECK_THAT(joined(one.ranks.front().notes), Catch::Contains("from the first event"));

  nlohmann::json shared = whole, second = whole, processor = whole;
  for (const nlohmann::json& event : whole["traceEvents"])
    if (event["name"] == "aten::linear" && event["args"]["Input Dims"][0][1] == 32)
      shared["traceEvents"].push_back({{"ph", "X"},
                                       {"cat", "cpu_op"},
                                       {"name", "record_param_comms"},
                                       {"pid", event["pid"]},
                                       {"tid", event["tid"]},
                                       {"ts", event["ts"].get<double>() - 0.6},
                                       {"dur", 0.4},
                                       {"args",
                                        {{"Collective name", "allreduce"},
                                         {"dtype", "Float"},
                                         {"In msg nelems", 128},
                                         {"Group size", 2},
                                         {"Process Group Name", "tensor"}}}});
  CHECK_THAT(joined(import_files({folder.write("shared.json", shared.dump())}).assumed),
             Catch::Contains("1 all_reduce between operations of the forward"));
  for (nlohmann::json& event : second["traceEvents"])
    if (event["cat"] == "kernel" && event["name"] == "gemm_backward") event["pid"] = 1;
  CHECK_THAT(joined(import_files({folder.write("second.json", second.dump())}).ignored),
             Catch::Contains("kernels ran on 2 GPUs of one process"));
  processor = without([](const auto& event) { return event["cat"] == "kernel"; });
  processor["distributedInfo"]["backend"] = "gloo";
  CHECK_THAT(joined(import_files({folder.write("processor.json", processor.dump())}).assumed),
             Catch::Contains("no kernel was recorded"));
}

TEST_CASE("forwards of several models in a step are reported", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.accumulate = 2;
  profile.steps = 8;
  nlohmann::json json = profile.json();
  const char* const reported = "2 gradients in 1 forward of a step, 1 in others";
  CHECK_THAT(joined(import_files({folder.write("same.json", json.dump())}).assumed),
             !Catch::Contains(reported));
  int number = 0;
  for (nlohmann::json* event : events_named(json, "torch::autograd::AccumulateGrad"))
    if (number++ % 4 == 3) (*event)["name"] = "other";  // the second forward's
  CHECK_THAT(joined(import_files({folder.write("several.json", json.dump())}).assumed),
             Catch::Contains(reported));
}

TEST_CASE("a step of the profiler with several training steps is reported", "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  const auto notes = [&] { return joined(import_files({folder.write("steps.json", json.dump())}).ignored); };
  CHECK_THAT(notes(), !Catch::Contains("with an Optimizer.step each"));
  const auto steps = events_named(json, "ProfilerStep#");
  for (std::size_t i = 1; i < steps.size(); ++i) (*steps[i])["name"] = "other";
  (*steps[0])["dur"] =
      (*steps[2])["ts"].get<double>() + (*steps[2])["dur"].get<double>() - (*steps[0])["ts"].get<double>();
  CHECK_THAT(notes(), Catch::Contains("ProfilerStep#3 has 3 backwards with an Optimizer.step each"));
}

TEST_CASE("layers after a loss in the middle of the forward are no loss", "[kineto]") {
  const TemporaryFolder folder;
  WrittenProfile profile = two_layers();
  profile.loss_after = 1;
  const ProfiledRun run = read_profiled_run({folder.write("middle.json", profile.json().dump())});
  CHECK(run.parameters == 32 * 16 + 8 * 32);
  const ProfiledStep& step = run.ranks.front().steps.front();
  CHECK(step.parts[StepPart::kForward].device == Approx(400.0));
  CHECK(step.parts[StepPart::kBackward].device == Approx(600.0));
  CHECK(step.parts[StepPart::kLoss].device == 0.0);
  CHECK(sum_of_parts(step) == Approx(step.duration()).epsilon(0.001));
  CHECK(step.parts[StepPart::kLoss].host < 0.02 * step.duration());
}

TEST_CASE("nodes inside of a node, of a recomputed forward, belong to the operation of the outer one",
          "[kineto]") {
  const TemporaryFolder folder;
  nlohmann::json json = two_layers().json();
  std::vector<nlohmann::json> inner;
  for (const nlohmann::json* event : events_named(json, "autograd::engine::evaluate_function: Addmm")) {
    const int number = (*event)["args"]["Sequence number"];
    inner.push_back(*event);
    inner.back()["ts"] = (*event)["ts"].get<double>() + 0.2;
    inner.back()["dur"] = 0.2;
    inner.back()["args"]["Sequence number"] = number % 2 == 1 ? number + 1 : number - 1;  // the other layer's
    const double input = (*event)["ts"].get<double>() + 1.6;  // its gradient is none of a parameter
    inner.push_back(*events_named(json, "autograd::engine::evaluate_function: torch::").front());
    inner.back()["ts"] = input;
    inner.back()["dur"] = 0.3;
    inner.push_back(slice("cpu_op", "torch::autograd::AccumulateGrad", 101, input + 0.1, 0.1,
                          {{"Input Dims", {{16, number % 2 == 1 ? 16 : 32}}}}));
  }
  add_events(json, inner);
  const ProfiledRun run = read_profiled_run({folder.write("nested.json", json.dump())});
  REQUIRE(run.segments.size() == 2);
  CHECK(run.segments[0].elements == std::vector<double>{32 * 16});
  CHECK(run.segments[1].elements == std::vector<double>{8 * 32});
  CHECK(run.ranks.front().steps.front().gradients == 2);
}

}  // namespace stepcast::tests::import_kineto_test

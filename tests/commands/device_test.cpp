#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "records/trace.hpp"
#include "tests/commands/shell.hpp"

namespace stepcast::tests::device_test {
namespace {

/// A trace of netflix-mlp at batch 64 whose segments take 20 us a phase, and host and input 1 ms each.
Trace mlp_trace(const std::string& device) {
  Trace trace;
  trace.context.schema = kTraceSchema;
  trace.model = "netflix-mlp";
  trace.device = device;
  TraceEntry entry;
  entry.batch = 64;
  entry.launch = {0};
  entry.loss_s = {20e-6};
  entry.input_s = entry.host_s = {1e-3};
  entry.step_s = {2.18e-3};
  entry.native_step_s = {2.18e-3};
  for (const char* name : {"fc1", "fc2"}) {
    SegmentTrace segment;
    segment.name = name;
    segment.forward_s = segment.backward_s = segment.zero_grad_s = segment.optimizer_s = {20e-6};
    entry.segments.push_back(segment);
  }
  trace.entries = {entry};
  return trace;
}

}  // namespace

TEST_CASE("predict --device without a trace reports that it is an estimate, with its known errors",
          "[commands]") {
  const Shell shell;
  const Outcome outcome = shell.run(
      "stepcast predict --model resnet18-cifar --batch 128 --strategy ddp --device h100-sxm --cluster "
      "h100x8-hgx "
      "--world-size 8 -o x.json");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("on h100-sxm") && Catch::Contains("ESTIMATE") &&
                              Catch::Contains("known errors") &&
                              Catch::Contains("bert-base-ddp-fsdp-h100x4"));
  const auto json = nlohmann::json::parse(shell.read("x.json"));
  CHECK(json["configuration"]["device"] == "h100-sxm");
  CHECK(json["configuration"]["cluster"] == "h100x8-hgx");
}

TEST_CASE("predict --device warns if no estimate for the device was compared with a measurement",
          "[commands]") {
  const Outcome outcome = Shell().run(
      "stepcast predict --model simple-cnn --batch 8 --strategy single --device h20 --cluster star:hosts=1");
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("known errors: not known on h20"));
}

TEST_CASE("predict --device moves a trace, and keeps what the host does", "[commands]") {
  const Shell shell;
  shell.write("cpu.json", nlohmann::json(mlp_trace("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz")).dump(1));
  shell.write("other.json", nlohmann::json(mlp_trace("Some Processor")).dump(1));
  const std::string predict =
      "stepcast predict --strategy single --device p100-pcie-12gb --cluster p100x4-pcie --force -o x.json "
      "--trace ";
  CHECK_THAT(shell.run(predict + "cpu.json").out, Catch::Contains("measured on xeon-e5-2680-v4"));
  const auto moved = nlohmann::json::parse(shell.read("x.json"));
  CHECK(moved["step_time_s"][0][0].get<double>() > 2e-3);
  CHECK(moved["step_time_s"][0][0].get<double>() < 2.3e-3);  // 11 kernels are launched in 20 us each
  const Outcome unknown = shell.run(predict + "other.json");
  CHECK(unknown.exit_code == 3);
  CHECK_THAT(unknown.err, Catch::Contains("Some Processor") && Catch::Contains("--trace-device"));
  CHECK(shell.run(predict + "other.json --trace-device xeon-e5-2680-v4").exit_code == 0);
  const Outcome elsewhere = shell.run(
      "stepcast predict --strategy single --device p100-pcie-12gb --trace cpu.json --cluster h100x8-hgx");
  CHECK(elsewhere.exit_code == 3);
  CHECK_THAT(elsewhere.err, Catch::Contains("h100x8-hgx") && Catch::Contains("is h100-sxm"));
}

TEST_CASE("a misspelt device is answered with the nearest, and options without their partner are refused",
          "[commands]") {
  const Shell shell;
  const std::string predict = "stepcast predict --strategy single --model resnet18-cifar --batch 8 ";
  const Outcome misspelt = shell.run(predict + "--device h100-sxn");
  CHECK(misspelt.exit_code == 3);
  CHECK_THAT(misspelt.err, Catch::Contains("did you mean 'h100-sxm'"));
  for (const char* options :
       {"--trace-device h100-sxm", "--device h100-sxm --trace-device h100-sxm",
        "--device h100-sxm --precision bfloat16", "--device h100-sxm --dispatch-sms 16", ""}) {
    INFO(options);
    CHECK(shell.run(predict + options).exit_code == 2);
  }
}

}  // namespace stepcast::tests::device_test

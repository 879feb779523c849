#include "sim/explain/explanation.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/explain/difference.hpp"
#include "sim/explain/report.hpp"

/// Three well-known bottlenecks. The gain that an explanation reports for a resource equals that of a
/// prediction with more of it.
namespace stepcast::explanation_test {
namespace {

constexpr double kMore = 1.1;

double gain_of(const Explanation& explanation, const std::string& resource) {
  const auto found = std::find_if(explanation.gains.begin(), explanation.gains.end(),
                                  [&](const Gain& gain) { return gain.resource == resource; });
  INFO(resource);
  REQUIRE(found != explanation.gains.end());
  return 1.0 - found->step_s / explanation.result.median_step_time_s();
}

double tried(PredictionRequest request, const std::string& scale) {
  const double before = predict(request).median_step_time_s();
  request.scale = parse_scales(scale);
  return 1.0 - predict(request).median_step_time_s() / before;
}

double part_of_path(const Explanation& explanation, const std::function<bool(const PathPart&)>& belongs) {
  double sum = 0.0;
  for (const PathPart& part : explanation.path.parts) sum += belongs(part) ? part.seconds() : 0.0;
  return sum / explanation.path.step_s;
}

/// Predictions with the option of each gain have its step time.
void check_gains(const PredictionRequest& request, const Explanation& explanation) {
  for (const Gain& gain : explanation.gains) {
    if (!gain.option.starts_with("--scale ")) continue;
    INFO(gain.option);
    PredictionRequest again = request;
    again.scale = parse_scales(gain.option.substr(8));
    CHECK(predict(again).median_step_time_s() == gain.step_s);
  }
  CHECK(std::is_sorted(explanation.gains.begin(), explanation.gains.end(),
                       [](const Gain& a, const Gain& b) { return a.step_s < b.step_s; }));
}

}  // namespace

TEST_CASE("gather_scatter waits for the root's link, and a faster link of another rank gains nothing",
          "[law]") {
  PredictionRequest request;
  request.strategy = "gather_scatter";
  request.costs.model = "synthetic:layers=8,forward=10ms,backward=20ms,parameter=16MiB";
  request.environment.cluster = "star:hosts=4,bandwidth=1GB/s";
  request.training.world_size = 4;
  const Explanation explanation = explain(request, kMore);
  const double at_root =
      part_of_path(explanation, [](const PathPart& part) { return part.link == "host0-switch"; });
  CHECK(at_root > 0.7);
  CHECK(part_of_path(explanation, [](const PathPart& part) { return !part.link.empty(); }) ==
        Approx(at_root));
  // A tenth faster, what is charged to it takes 1/1.1 of its time.
  CHECK(gain_of(explanation, "host0-switch") == Approx(at_root * (1.0 - 1.0 / kMore)).epsilon(0.01));
  CHECK(explanation.gains.front().step_s <= explanation.result.median_step_time_s());
  CHECK(gain_of(explanation, "host0-switch") > gain_of(explanation, "compute"));
  for (const char* other : {"host1-switch=1.1", "host2-switch=1.1", "host3-switch=1.1"})
    CHECK(std::abs(tried(request, other)) < 1e-4);
  check_gains(request, explanation);
}

TEST_CASE("a 6-2-2-2 pipeline: the first stage is the path, its speed gains most, and the others wait for it",
          "[law]") {
  PredictionRequest request;
  request.strategy = "pipeline";
  request.costs.model = "synthetic:layers=12,forward=10ms,backward=20ms,parameter=16MiB,output=1MiB";
  request.training.options["split"] = "6-2-2-2";
  request.training.micro_batches = 4;
  request.costs.batch = 8;
  request.environment.cluster = "star:hosts=4,bandwidth=1GB/s";
  request.training.world_size = 4;
  const Explanation explanation = explain(request, kMore);
  const double first = part_of_path(explanation, [](const PathPart& part) { return part.rank == 0; });
  CHECK(first > 0.7);
  CHECK(most_waited_for(explanation.standstills).first == 0);
  for (const char* stage : {"stage1", "stage2", "stage3"})
    CHECK(gain_of(explanation, "stage0") > 5.0 * gain_of(explanation, stage));
  CHECK(gain_of(explanation, "stage0") == Approx(first * (1.0 - 1.0 / kMore)).epsilon(0.02));
  // An even split does what the explanation suggests.
  PredictionRequest even = request;
  even.training.options["split"] = "3-3-3-3";
  CHECK(predict(even).median_step_time_s() < 0.9 * explanation.result.median_step_time_s());
  CHECK(gain_of(explanation, "network1") < 0.01);
  check_gains(request, explanation);
}

TEST_CASE("DDP over 10 Gb/s Ethernet: the network is the step, and a faster GPU gains nothing", "[law]") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "gpt2-small";
  request.costs.device = "h100-sxm";
  request.costs.precision = Precision::parse("bf16");
  request.costs.batch = 8;
  request.environment.cluster = "h100-hosts:hosts=4,protocol=roce,rate=10Gb/s";
  request.training.world_size = 4;
  const Explanation explanation = explain(request, kMore);
  const double network =
      part_of_path(explanation, [](const PathPart& part) { return part.link == "network1"; });
  CHECK(network > 0.9);
  CHECK(explanation.gains.front().resource == "network1");
  CHECK(gain_of(explanation, "network1") == Approx(network * (1.0 - 1.0 / kMore)).epsilon(0.02));
  CHECK(gain_of(explanation, "compute") < 0.005);
  // Where the network is fast, it is the other way round.
  request.environment.cluster = "h100-hosts:hosts=4,protocol=infiniband,rate=400Gb/s";
  const Explanation fast = explain(request, kMore);
  CHECK(gain_of(fast, "network1") < 0.05);
  CHECK(gain_of(fast, "compute") + gain_of(fast, "memory") + gain_of(fast, "host") >
        gain_of(fast, "network1"));
  check_gains(request, fast);
}

TEST_CASE("resources that a prediction lacks are left out, and rejected in --scale", "[explain]") {
  PredictionRequest request;
  request.strategy = "single";
  request.costs.model = "synthetic:layers=2,forward=10ms,backward=20ms";
  const Explanation alone = explain(request, kMore);
  REQUIRE(alone.gains.size() == 1);
  CHECK(gain_of(alone, "compute") == Approx(1.0 - 1.0 / kMore));
  for (const char* scale :
       {"memory=1.1", "host=1.1", "endpoints=1.1", "nvlink=1.1", "rank1=1.1", "stage0=1.1", "bogus=2"}) {
    INFO(scale);
    request.scale = parse_scales(scale);
    CHECK_THROWS_AS(predict(request), UsageError);
  }
  for (const char* text :
       {"compute", "compute=", "=2", "compute=0", "compute=-1", "compute=1e9", "compute=nan"})
    CHECK_THROWS_AS(parse_scales(text), UsageError);
  CHECK(to_text(parse_scales("compute=1.1,network1=0.5")) == "compute=1.1,network1=0.5");
}

TEST_CASE("the option of a gain contains the scale that a forecast has", "[explain]") {
  PredictionRequest request;
  request.strategy = "single";
  request.costs.model = "synthetic:layers=2,forward=10ms,backward=20ms";
  request.scale = parse_scales("compute=0.5");
  const Explanation explanation = explain(request, kMore);
  CHECK(explanation.gains.front().option == "--scale compute=0.5,compute=1.1");
  check_gains(request, explanation);
}

TEST_CASE("more micro-batches are tried if they divide the batch", "[explain]") {
  PredictionRequest request;
  request.strategy = "pipeline";
  request.costs.model = "synthetic:layers=8,forward=10ms,backward=20ms,output=1KiB";
  request.training.micro_batches = 2;
  request.costs.batch = 12;
  request.environment.cluster = "star:hosts=4";
  request.training.world_size = 4;
  const Explanation explanation = explain(request, kMore);
  CHECK(gain_of(explanation, "micro-batches") > 0.1);
  request.training.micro_batches = 3;
  const auto found = std::find_if(explanation.gains.begin(), explanation.gains.end(),
                                  [](const Gain& gain) { return gain.resource == "micro-batches"; });
  CHECK(found->option == "--micro-batches 3");
  CHECK(predict(request).median_step_time_s() == found->step_s);
}

TEST_CASE("parts of the difference between a run and its forecast add up to it, largest first", "[explain]") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "synthetic:layers=4,forward=10ms,backward=20ms,parameter=16MiB";
  request.environment.cluster = "star:hosts=4,bandwidth=1GB/s";
  request.training.world_size = 4;
  const Result forecast = predict(request);
  request.environment.cluster = "star:hosts=4,bandwidth=500MB/s";
  Result measured = predict(request);
  const StepDifferences found = step_differences(measured, forecast);
  CHECK(found.measured_s - found.forecast_s > 0.01);
  double sum = 0.0;
  for (const StepDifference& part : found.parts) sum += part.seconds();
  CHECK(sum == Approx(found.measured_s - found.forecast_s).epsilon(1e-9));
  CHECK(found.parts.front().name == "exposed_communication");
  CHECK(found.kinds.front().name == "all_reduce");
  CHECK(found.layers.front().seconds() == Approx(0.0).margin(1e-12));
  CHECK(std::is_sorted(found.collectives.begin(), found.collectives.end(), [](const auto& a, const auto& b) {
    return std::abs(a.seconds()) > std::abs(b.seconds());
  }));
  CHECK(found.note.empty());
  measured.configuration.add_option("bucket-cap", "1MiB");
  CHECK_THAT(step_differences(measured, forecast).note, Catch::Contains("bucket-cap 1MiB"));
  measured.configuration.compute = "replayed";
  CHECK_THAT(step_differences(measured, forecast).note, Catch::Contains("with replayed compute"));
  measured.configuration.batch = 2;
  CHECK_THROWS_WITH(step_differences(measured, forecast), Catch::Contains("batch '1', not '2'"));
}

TEST_CASE("a run on CPUs is not explained by a forecast for GPUs, nor one device by another", "[explain]") {
  PredictionRequest request;
  request.strategy = "ddp";
  request.costs.model = "resnet18-cifar";
  request.costs.batch = 8;
  request.training.world_size = 2;
  request.costs.device = "h100-sxm";
  request.environment.cluster = "h100x8-hgx";
  const Result forecast = predict(request);
  Result measured = forecast;
  measured.configuration.device.clear();
  CHECK_NOTHROW(step_differences(measured, forecast));
  measured.configuration.backend = "gloo";
  CHECK_THROWS_WITH(step_differences(measured, forecast), Catch::Contains("backend 'nccl', not 'gloo'"));
  measured = forecast;
  measured.configuration.device = "a100-sxm";
  CHECK_THROWS_WITH(step_differences(measured, forecast),
                    Catch::Contains("device 'h100-sxm', not 'a100-sxm'"));
}

TEST_CASE("micro-batches of a layer add up, and parts are those of the ranks in both files", "[explain]") {
  PredictionRequest request;
  request.strategy = "pipeline";
  request.costs.model = "synthetic:layers=4,forward=10ms,backward=20ms,output=1KiB";
  request.training.options["split"] = "3-1";
  request.training.micro_batches = 2;
  request.costs.batch = 2;
  request.environment.cluster = "star:hosts=2";
  request.training.world_size = 2;
  Result forecast = predict(request);
  forecast.spans.push_back({.rank = 1, .name = "loss/mb0", .start_s = 0.0, .end_s = 0.001});
  Result measured = forecast;  // of rank 1 alone
  measured.origin = Origin::kMeasured;
  std::erase_if(measured.spans, [](const Span& span) { return span.rank != 1; });
  measured.memory.erase(measured.memory.begin());
  measured.breakdown.erase(measured.breakdown.begin());
  const StepDifferences found = step_differences(measured, forecast);
  for (const StepDifference& part : found.parts) {
    INFO(part.name);
    CHECK(part.seconds() == Approx(0.0).margin(1e-12));
    if (part.name == "compute") CHECK(part.measured_s == Approx(2 * 0.030));
  }
  REQUIRE(found.layers.size() == 1);
  CHECK(found.layers.front().name == "layer3");
  CHECK(found.layers.front().forecast_s == Approx(2 * 0.030));
}

}  // namespace stepcast::explanation_test

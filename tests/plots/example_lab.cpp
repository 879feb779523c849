#include <algorithm>
#include <array>
#include <cmath>

#include "plots/sheet.hpp"
#include "tests/plots/example_inputs.hpp"

namespace stepcast::examples {
namespace {

struct LabModel {
  const char* name;
  int batch;
  double compute_s;
  double parameter_bytes;
};

struct LabStrategy {
  const char* name;
  const char* text;
  double traffic;  ///< relative to an all_reduce of the parameters
  double hidden;   ///< part of the communication behind compute
};

constexpr LabStrategy kPipeline{"pipeline", "pipeline, even, 1f1b, 4 micro-batches", 0.02, 0.0};
constexpr std::array<LabStrategy, 8> kStrategies = {
    {{"all_reduce", "all_reduce", 1.0, 0.0},
     {"ddp", "ddp, bucket-cap 1MiB", 1.04, 0.6},
     {"ddp", "ddp, bucket-cap 5MiB", 1.0, 0.5},
     {"ddp", "ddp, bucket-cap 25MiB", 1.0, 0.3},
     {"fsdp", "fsdp", 1.5, 0.2},
     {"gather_scatter", "gather_scatter", 2.5, 0.0},
     {"pipeline", "pipeline, uneven, gpipe, 4 micro-batches", 0.03, 0.0},
     kPipeline}};

Case lab_case(const LabModel& model, const LabStrategy& strategy, int ranks, double rate) {
  const bool pipeline = strategy.name == std::string(kPipeline.name);
  Case one{.name = strategy.text, .link_rate_bytes_per_s = rate, .baseline_step_time_s = model.compute_s};
  Configuration& c = one.configuration;
  c.model = model.name;
  c.strategy = strategy.name;
  c.compute = "replayed";
  c.world_size = ranks;
  c.batch = model.batch;
  c.data_parallel = pipeline ? 1 : ranks;
  c.micro_batches = pipeline ? 4 : 1;
  c.cluster = "star:hosts=" + std::to_string(ranks) + ",link=" + style::number(rate / 125e6) + "Gb/s";
  const double compute =
      pipeline ? model.compute_s / ranks * (c.micro_batches + ranks - 1) / c.micro_batches : model.compute_s;
  const double communication =
      strategy.traffic * 2.0 * (ranks - 1) / ranks * model.parameter_bytes / rate + 0.001 * (ranks - 1);
  one.measured =
      estimate_of({compute + communication - std::min(strategy.hidden * communication, 0.6 * compute)});
  return one;
}

/// Errors of a few per cent, more of them far from the calibration; every fortieth is a miss.
void predict(Case& one, std::size_t i) {
  const auto distance = std::find(kLabDistances.begin(), kLabDistances.end(), one.distance);
  const double growth = 1.0 + 0.5 * static_cast<double>(distance - kLabDistances.begin());
  const double error = i % 40 == 17 ? -0.13 : 0.025 * growth * std::sin(12.9898 * static_cast<double>(i));
  const double measured = one.measured->value;
  one.predicted = estimate_of({measured * (1.0 + error)});
  one.measured = {measured, 0.985 * measured, 1.02 * measured};
  one.trivial = {{"ideal_scaling", one.baseline_step_time_s}};
  int launch = 0;
  for (const double time : {measured, one.measured->high, one.measured->low})
    one.launches.push_back({"launch" + std::to_string(++launch) + ".json", std::to_string(i),
                            "2026-01-01T00:00:00Z", 0.2, time});
  one.prediction = CaseFile{"predicted.json", "p" + std::to_string(i)};
}

}  // namespace

LabReport lab_report() {
  constexpr double kMbit = 1e6 / 8.0;
  constexpr double kCalibrated = 5000.0 * kMbit;
  LabReport report;
  report.context.schema = kLabSchema;
  report.context.cpu_model = "Example CPU";
  report.calibration = {2, kCalibrated, 16.0 * kMebi};
  const std::array<LabModel, 3> models = {{{"vgg11-bn-cifar", 16, 0.160, 37e6},
                                           {"resnet18-cifar", 8, 0.210, 45e6},
                                           {"simple-cnn", 32, 0.018, 250e3}}};
  const auto add = [&](Case one) {
    if (one.measured->value > 1.0) return;
    predict(one, report.cases.size());
    report.cases.push_back(std::move(one));
  };
  for (const LabModel& model : models)
    for (const double rate : {100.0 * kMbit, 1000.0 * kMbit, 2500.0 * kMbit, kCalibrated})
      for (const int ranks : {2, 4, 8}) {
        if (rate * ranks > 8.0 * 1250.0 * kMbit) continue;  // more than the machine carries
        for (const LabStrategy& strategy : kStrategies) {
          Case one = lab_case(model, strategy, ranks, rate);
          one.distance = ranks > 2 ? kNewWorldSize : rate < kCalibrated ? kNewRate : kSeenRateSeenSize;
          add(one);
          if (ranks > 2 || rate < 1000.0 * kMbit || model.batch == 8) continue;
          one.configuration.compute = "real";
          one.measured->value *= 1.07;
          add(one);
        }
      }
  for (const char* cluster : {"star:hosts=4,link=1Gb/s,slow=1", "tree:hosts=8,uplink=1Gb/s", "straggler"}) {
    Case one = lab_case(models[0], kStrategies[2], 4, 1000.0 * kMbit);
    one.configuration.cluster = cluster;
    one.distance = kNewTopology;
    one.measured->value *= 1.4;
    add(one);
  }
  report.perturbations = {{"one host's link at half its rate", 0.41, 0.39, 0.44, 0.43},
                          {"a straggler that computes 1.5 times as long", 0.22, 0.20, 0.23, 0.27}};
  return report;
}

}  // namespace stepcast::examples

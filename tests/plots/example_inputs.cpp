#include "tests/plots/example_inputs.hpp"

#include <cmath>

namespace stepcast::examples {
namespace {

struct ModelExample {
  const char* name;
  int batch;
  double compute_s;
  double communication_s;
};

Result base(const ModelExample& model, const std::string& strategy, int world_size) {
  Result result;
  result.context.cpu_model = "Example CPU";
  result.configuration.model = model.name;
  result.configuration.strategy = strategy;
  result.configuration.world_size = world_size;
  result.configuration.data_parallel = world_size;
  result.configuration.batch = model.batch;
  return result;
}

/// A step of `scale` times its nominal length: input, forward, backward with a copy inside, two overlapping
/// collectives, wait, optimizer.
Result with_step(Result result, const ModelExample& model, double scale) {
  const bool alone = result.configuration.world_size == 1;
  const bool overlaps = result.configuration.strategy == "ddp";
  const double compute = scale * model.compute_s;
  const double communication = alone ? 0.0 : scale * model.communication_s;
  const double hidden = overlaps ? 0.4 * communication : 0.0;
  const double input = 0.02 * compute, optimizer = 0.05 * compute;
  const double step = input + compute + communication - hidden + optimizer;
  for (int rank = 0; rank < result.configuration.world_size; ++rank) {
    const double backward = input + compute / 3.0, end = input + compute;
    const auto add = [&](Stream stream, SpanKind kind, const char* name, double from, double to) {
      result.spans.push_back({rank, stream, kind, name, from, to});
    };
    add(Stream::kHost, SpanKind::kInputAndHost, "input", 0.0, input);
    add(Stream::kCompute, SpanKind::kCompute, "forward/features", input, backward);
    add(Stream::kCompute, SpanKind::kCompute, "backward/features", backward, end);
    if (!alone) {
      add(Stream::kCompute, SpanKind::kOptimizerAndCopies, "copy_in/bucket0", end - 0.2 * compute,
          end - 0.15 * compute);
      add(Stream::kComm, SpanKind::kCommunication, "all_reduce/bucket0", end - hidden,
          end - hidden + 0.7 * communication);
      add(Stream::kComm, SpanKind::kCommunication, "all_reduce/bucket1", end - hidden + 0.4 * communication,
          end - hidden + communication);
      add(Stream::kCompute, SpanKind::kWait, "wait", end, end - hidden + communication);
    }
    add(Stream::kCompute, SpanKind::kOptimizerAndCopies, "optimizer", step - optimizer, step);
    result.step_time_s.push_back({step, 1.01 * step, 0.99 * step});
    result.breakdown.push_back({compute, communication - hidden, hidden, input, optimizer, 0.0});
  }
  return result;
}

Bench bench(Origin origin, double factor) {
  Bench result;
  result.origin = origin;
  int wobble = 0;
  for (const char* name :
       {"send_recv", "all_reduce", "gather", "scatter", "broadcast", "all_gather", "reduce_scatter"}) {
    for (int power = 1; power <= 13; ++power) {  // 4 B to 64 MiB
      const double bytes = std::ldexp(1.0, 2 * power);
      const double time = factor * (60e-6 + bytes / 1.5e9);
      const double spread = origin == Origin::kMeasured ? 0.1 * (++wobble % 3) : 0.0;
      result.rows.push_back({name, bytes, {time, time * (1.0 + spread), time * (1.2 + spread)}, {}, 0});
    }
  }
  return result;
}

}  // namespace

std::vector<ResultFile> results() {
  std::vector<ResultFile> files;
  for (const ModelExample& model :
       {ModelExample{"vgg11-bn-cifar", 16, 0.160, 0.060}, ModelExample{"resnet18-cifar", 8, 0.210, 0.080},
        ModelExample{"simple-cnn", 32, 0.018, 0.004}, ModelExample{"netflix-mlp", 64, 0.0006, 0.0009}}) {
    int ranks = 1;
    for (const char* strategy : {"single", "all_reduce", "gather_scatter", "ddp"}) {
      for (const double scale : {1.00, 1.08, 0.97}) {
        Result measured = with_step(base(model, strategy, ranks), model, scale);
        files.push_back({std::string(strategy) + ".json", std::to_string(files.size()), std::move(measured)});
      }
      Result predicted =
          with_step(base(model, strategy, ranks), model, 0.92 + 0.03 * static_cast<double>(files.size() % 5));
      predicted.origin = Origin::kPredicted;
      predicted.trivial_step_time_s = {{"ideal_scaling", model.compute_s},
                                       {"alpha_beta", 1.3 * model.compute_s}};
      files.push_back(
          {std::string(strategy) + ".predicted.json", std::to_string(files.size()), std::move(predicted)});
      ranks = 2;
    }
  }
  return files;
}

std::vector<Bench> benches() { return {bench(Origin::kMeasured, 1.0), bench(Origin::kPredicted, 1.1)}; }

}  // namespace stepcast::examples

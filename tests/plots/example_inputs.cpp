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
  result.configuration.strategy = result.configuration.label = strategy;
  result.configuration.world_size = world_size;
  result.configuration.data_parallel = world_size;
  result.configuration.batch = model.batch;
  result.configuration.data_parallel = world_size;
  return result;
}

/// 100 MB of parameters, as many gradients, and activations that come and go.
MemoryUse memory(int rank, double activations) {
  const double model = 1e8;
  return {rank,
          2.0 * model + activations,
          {{"parameters", model},
           {"gradients", model},
           {"optimizer_state", 0.0},
           {"activations", activations},
           {"communication_buffers", 0.0}},
          {0.0, 1e-3, 2e-3},
          {2.0 * model, 2.0 * model + activations, 2.0 * model}};
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
    add(Stream::kCompute, SpanKind::kInputAndHost, "input", 0.0, input);
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
    result.memory.push_back(memory(rank, 4e6 * model.batch));
  }
  return result;
}

/// One segment's operation, or a message, of a micro-batch.
Span work(int rank, const std::string& name, int micro_batch, double from, double to) {
  const bool message = name.starts_with("send");
  return {rank,
          message ? Stream::kComm : Stream::kCompute,
          message ? SpanKind::kCommunication : SpanKind::kCompute,
          name + "/mb" + std::to_string(micro_batch),
          from,
          to};
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

Result pipeline(int stages, int micro_batches, const std::string& schedule) {
  constexpr int kBatch = 16;
  Result result = base({"bert-base", kBatch, 0.0, 0.0}, "pipeline", stages);
  result.configuration.data_parallel = 1;
  result.configuration.micro_batches = micro_batches;
  result.configuration.options = {{"schedule", schedule}, {"split", "even"}};
  result.configuration.label = "pipeline" + (schedule == "1f1b" ? "" : ", schedule " + schedule);
  const double forward = 0.016 / micro_batches, backward = 2.0 * forward, message = 0.1 * forward;
  const double all_forward = (micro_batches + stages - 1) * forward;
  const double step = 3.0 * all_forward;
  for (int rank = 0; rank < stages; ++rank) {
    const std::string first = "layer" + std::to_string(2 * rank),
                      second = "layer" + std::to_string(2 * rank + 1);
    for (int i = 0; i < micro_batches; ++i) {
      const double f = (rank + i) * forward;
      const double b = all_forward + (stages - 1 - rank + i) * backward;
      result.spans.push_back(work(rank, "forward/" + first, i, f, f + 0.5 * forward));
      result.spans.push_back(work(rank, "forward/" + second, i, f + 0.5 * forward, f + forward));
      result.spans.push_back(work(rank, "backward/" + second, i, b, b + 0.5 * backward));
      result.spans.push_back(work(rank, "backward/" + first, i, b + 0.5 * backward, b + backward));
      if (rank + 1 < stages)
        result.spans.push_back(
            work(rank, "send/activation/" + second, i, f + forward, f + forward + message));
      if (rank > 0)
        result.spans.push_back(work(rank, "send/gradient/" + first, i, b + backward, b + backward + message));
    }
    const double busy = micro_batches * (forward + backward);
    result.step_time_s.push_back({step});
    result.breakdown.push_back({busy, 0.0, 0.0, 0.0, 0.0, step - busy});
    result.memory.push_back(memory(rank, 1e8 / (rank + 1)));
  }
  return result;
}

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
      predicted.forecast.baseline_step_time_s = {{"ideal_scaling", model.compute_s},
                                                 {"alpha_beta", 1.3 * model.compute_s}};
      files.push_back(
          {std::string(strategy) + ".predicted.json", std::to_string(files.size()), std::move(predicted)});
      ranks = 2;
    }
  }
  for (const char* schedule : {"1f1b", "gpipe"})
    for (const int micro_batches : {1, 4, 8}) {
      Result predicted = pipeline(4, micro_batches, schedule);
      files.push_back({"run.json", std::to_string(files.size()), predicted});
      predicted.origin = Origin::kPredicted;
      files.push_back({"predicted.json", std::to_string(files.size()), predicted});
    }
  return files;
}

std::vector<Bench> benches() { return {bench(Origin::kMeasured, 1.0), bench(Origin::kPredicted, 1.1)}; }

}  // namespace stepcast::examples

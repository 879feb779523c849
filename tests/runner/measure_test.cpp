#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "models/model.hpp"
#include "records/trace.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/training_dtypes.hpp"
#include "sim/strategies/pipeline_layout.hpp"

namespace stepcast::measure_test {

namespace {

/// A trace of one segment with one parameter and one step.
Trace one_step(int threads, int batch, double step_s, double fraction) {
  TraceEntry entry;
  entry.batch = batch;
  entry.threads = threads;
  entry.launch = {0};
  entry.step_s = {step_s};
  entry.segments.resize(1);
  entry.segments[0].forward_s = {step_s};
  entry.segments[0].grad_ready_fraction = {fraction};
  Trace trace;
  trace.entries = {entry};
  return trace;
}

}  // namespace

TEST_CASE("the phases of every measured step add up to the step") {
  MeasureOptions options;
  options.batches = {4, 8};
  options.steps = 7;
  options.warmup_steps = 1;
  options.budget_s = 0.0;
  int steps = 0;
  options.on_step = [&] { ++steps; };
  const Model model = load_model("netflix-mlp");
  const Trace trace = measure_trace(model, options);
  CHECK(steps == 28);
  REQUIRE(trace.entries.size() == 4);
  for (const TraceEntry& entry : trace.entries) {
    REQUIRE(entry.steps() == 7);
    CHECK(entry.machine.size() == entry.steps());
    CHECK(entry.native_step_s.size() == (entry.pace == StepContext::kContinuous ? entry.steps() : 0));
    REQUIRE(entry.segments.size() == model.segments.size());
    for (std::size_t step = 0; step < entry.steps(); ++step) {
      double sum = entry.input_s[step] + entry.sum(&SegmentTrace::zero_grad_s)[step] + entry.loss_s[step] +
                   entry.sum(&SegmentTrace::optimizer_s)[step] + entry.host_s[step];
      for (const SegmentTrace& segment : entry.segments)
        sum += segment.forward_s[step] + segment.backward_s[step];
      CHECK(sum == Approx(entry.step_s[step]).epsilon(1e-9));
    }
  }
  std::size_t all = 0;
  for (const auto* entries : {&trace.entries, &trace.rejected})
    for (const TraceEntry& entry : *entries) all += entry.steps();
  CHECK(all == 28);
  CHECK(trace.problem().empty());
  CHECK(trace.entries[1].batch == 4);
  CHECK(trace.entries[1].pace == StepContext::kWaiting);
  CHECK(trace.entries[2].batch == 8);
}

TEST_CASE(
    "gradients become ready inside their segment's backward, in order; saved bytes are the known ones") {
  MeasureOptions options;
  options.batches = {16};
  options.steps = 5;
  const Model model = load_model("netflix-mlp");
  const TraceEntry entry = measure_trace(model, options).entries.front();
  for (const SegmentTrace& segment : entry.segments) {
    REQUIRE(segment.grad_ready_fraction.size() == 2);
    CHECK(segment.grad_ready_fraction[0] > 0.0);
    CHECK(segment.grad_ready_fraction[0] <= segment.grad_ready_fraction[1]);
    CHECK(segment.grad_ready_fraction[1] <= 1.0);
  }
  // fc1 leaves relu's output, 16 x 128 floats; fc2 its own, 16 x 1.
  CHECK(entry.segments[0].saved_bytes == 16 * 128 * 4);
  CHECK(entry.segments[1].saved_bytes == 16 * 4);
}

TEST_CASE("the estimated saved bytes of transformer blocks are those observed") {
  MeasureOptions options;
  options.batches = {2};
  options.steps = 2;
  for (const char* name : {"bert-base:hidden=64,layers=1,sequence=16,vocabulary=50",
                           "bert-base:hidden=64,layers=1,sequence=16,dropout=0",
                           "gpt2-small:heads=4,hidden=64,layers=1,sequence=16,vocabulary=50",
                           "gpt:hidden=64,layers=1,sequence=16,vocabulary=50,flash=0",
                           "gpt:hidden=64,layers=1,sequence=16,heads=2,vocabulary=50,flash=0,tensor=2",
                           "gpt:hidden=64,layers=1,sequence=16,heads=2,vocabulary=50,flash=0,tensor=2,"
                           "sequence_parallel=1"}) {
    INFO(name);
    const Model whole = load_model(name);
    for (const RecomputedPart part : {RecomputedPart::kNothing, RecomputedPart::kCoreAttention}) {
      INFO(to_text(part));
      const Model model = recomputing(whole, part);
      const Trace trace = measure_trace(model, options);
      CHECK(trace.recompute == to_text(part));
      CHECK(trace.entries.front().segments[1].saved_bytes == (2.0 * model.segments[1].saved.size).count());
    }
    CHECK(recomputing(whole, RecomputedPart::kCoreAttention).segments[1].saved.size <
          whole.segments[1].saved.size);
  }
}

TEST_CASE("a stage alone has the layers, bytes and gradients that it has in the whole model", "[stages]") {
  constexpr int kBatch = 2;
  MeasureOptions options;
  options.batches = {kBatch};
  options.steps = 2;
  options.warmup_steps = 1;
  options.accumulating = true;
  for (const char* name :
       {"bert-base:hidden=64,layers=4,sequence=16,vocabulary=50",
        "gpt:hidden=64,layers=4,sequence=16,heads=2,vocabulary=50,flash=0,tied=1",
        "llama:hidden=32,heads=2,layers=4,sequence=16,vocabulary=50,tensor=2,sequence_parallel=1"}) {
    INFO(name);
    const Model model = load_model(name);
    options.segments.clear();
    const Trace whole = measure_trace(model, options);
    std::vector<Trace> parts;
    for (const std::vector<int>& segments : split_model(model, "2-1-1", 3, {})) {
      INFO("segment " << segments.front());
      options.segments = segments;
      const Trace part = parts.emplace_back(measure_trace(model, options));
      CHECK(part.problem().empty());
      REQUIRE(part.entries.size() == whole.entries.size());
      const TraceEntry& entry = part.entries.front();
      CHECK(entry.first_segment == segments.front());
      double resident = 0.0, buffers = 0.0, saved = 0.0, working = entry.loss_peak_bytes;
      for (const Buffer& buffer : model.buffers) buffers += buffer.size.count();
      std::set<int> own;
      for (const int index : segments) {
        const Segment& segment = model.segments[static_cast<std::size_t>(index)];
        own.insert(segment.parameters.begin(), segment.parameters.end());
        own.insert(segment.tied.begin(), segment.tied.end());
      }
      for (const int index : own)
        resident += 16.0 * static_cast<double>(model.parameters[static_cast<std::size_t>(index)].numel());
      for (const SegmentTrace& segment : entry.segments) {
        saved += segment.saved_bytes;
        for (const double bytes :
             {segment.forward_peak_bytes, segment.backward_peak_bytes, segment.optimizer_peak_bytes})
          working = std::max(working, bytes);
      }
      const double boundary = kBatch * 16 * (64 + 64) * 8.0;
      CHECK(entry.peak_bytes >= resident);
      CHECK(entry.peak_bytes <= resident + buffers + saved + working + boundary);
      CHECK(entry.peak_bytes < whole.entries.front().peak_bytes);
    }
    const Trace joined = of_whole_model(merge_launches(parts), model);
    REQUIRE(joined.entries.size() == 3);
    CHECK(joined.problem().empty());
    for (std::size_t k = 0; k < joined.entries.size(); ++k) {
      const TraceEntry &all = whole.entries[k], &of_stages = joined.entries[k];
      CHECK(of_stages.pace == all.pace);
      REQUIRE(of_stages.segments.size() == all.segments.size());
      CHECK(of_stages.exchange_fraction.size() == all.exchange_fraction.size());
      for (std::size_t i = 0; i < all.segments.size(); ++i) {
        const SegmentTrace &one = of_stages.segments[i], &other = all.segments[i];
        INFO(other.name);
        CHECK(one.name == other.name);
        CHECK(one.saved_bytes == other.saved_bytes);
        CHECK(one.forward_peak_bytes == other.forward_peak_bytes);
        CHECK(one.optimizer_peak_bytes == other.optimizer_peak_bytes);
        CHECK(one.half_peak_bytes.size() == (i > 0 ? 2 : 0));
        CHECK(one.half_peak_bytes == other.half_peak_bytes);
        CHECK(one.grad_ready_fraction.size() == other.grad_ready_fraction.size());
        for (const double time : one.forward_s) CHECK(time > 0.0);
        for (const double time : one.backward_s) CHECK(time > 0.0);
      }
      for (std::size_t step = 0; step < of_stages.steps(); ++step) {
        double sum = of_stages.input_s[step] + of_stages.sum(&SegmentTrace::zero_grad_s)[step] +
                     of_stages.loss_s[step] + of_stages.sum(&SegmentTrace::optimizer_s)[step] +
                     of_stages.host_s[step];
        for (const SegmentTrace& segment : of_stages.segments)
          sum += segment.forward_s[step] + segment.backward_s[step];
        CHECK(sum == Approx(of_stages.step_s[step]).epsilon(1e-9));
      }
    }
    for (std::size_t i = 0; i < model.collectives.size(); ++i)
      CHECK(joined.entries.front().exchange_fraction[i] > 0.0);
  }
}

TEST_CASE("collectives of tensor and context parallelism lie inside their phases, in order", "[tensor]") {
  MeasureOptions options;
  options.batches = {2};
  options.steps = 3;
  for (const char* name :
       {"llama:hidden=32,heads=2,layers=2,sequence=16,vocabulary=50,tensor=2,sequence_parallel=1",
        "llama:hidden=32,heads=2,layers=2,sequence=16,vocabulary=50,context=2,ring=1",
        "moe:hidden=32,heads=2,layers=2,sequence=16,vocabulary=50,experts=4,capacity=125,shared=32,expert="
        "2"}) {
    const Model model = load_model(name);
    const TraceEntry entry = measure_trace(model, options).entries.front();
    REQUIRE(entry.exchange_fraction.size() == model.collectives.size());
    for (std::size_t i = 0; i < model.collectives.size(); ++i) {
      const LayerCollective& exchange = model.collectives[i];
      INFO(exchange.name << (exchange.backward ? ", backward" : ""));
      CHECK(entry.exchange_fraction[i] > 0.0);
      CHECK(entry.exchange_fraction[i] <= 1.0);
      if (i == 0 || model.collectives[i - 1].segment != exchange.segment) continue;
      if (model.collectives[i - 1].backward != exchange.backward) continue;
      CHECK(entry.exchange_fraction[i - 1] <= entry.exchange_fraction[i]);
    }
  }
}

TEST_CASE("gradients around all-to-alls of experts become ready in the model's order", "[expert]") {
  MeasureOptions options;
  options.batches = {2};
  options.steps = 5;
  const Model model = load_model(
      "moe:hidden=64,heads=2,layers=2,sequence=32,vocabulary=50,experts=4,capacity=125,shared=64,expert=2");
  const TraceEntry entry = measure_trace(model, options).entries.front();
  for (std::size_t i = 0; i < model.collectives.size(); ++i) {
    const LayerCollective& exchange = model.collectives[i];
    if (!exchange.backward) continue;
    INFO(exchange.name);
    const std::vector<double>& ready =
        entry.segments[static_cast<std::size_t>(exchange.segment)].grad_ready_fraction;
    const auto place = static_cast<std::size_t>(exchange.ready);
    CHECK(ready[place - 1] <= entry.exchange_fraction[i]);
    CHECK(entry.exchange_fraction[i] <= ready[place]);
  }
}

TEST_CASE("merged launches keep every sample with its launch, and are sorted by threads and batch") {
  const Trace merged =
      merge_launches({one_step(2, 8, 1.0, 0.2), one_step(1, 8, 2.0, 0.3), one_step(2, 8, 3.0, 0.4)});
  REQUIRE(merged.entries.size() == 2);
  CHECK(merged.entries[0].threads == 1);
  CHECK(merged.entries[1].step_s == std::vector<double>{1.0, 3.0});
  CHECK(merged.entries[1].segments[0].forward_s == std::vector<double>{1.0, 3.0});
  CHECK(merged.entries[1].launch == std::vector<int>{0, 1});
  CHECK(merged.entries[1].segments[0].grad_ready_fraction[0] == Approx(0.3));
}

}  // namespace stepcast::measure_test

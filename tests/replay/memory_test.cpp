#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/replay/convention.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::memory_test {
using namespace stepcast::worlds;

namespace {

Result predicted(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const Schedule schedule = build_schedule(strategy, model, config);
  const Cluster cluster = star(config.world_size, 1e9, 1e-6);
  ReplayInput input = input_of(schedule, model, cluster);
  input.compute.batch = config.batch;
  return replay(input);
}

/// Samples with distinct saved bytes: every segment takes a second and saves 1,000 B per sample.
TraceEntry trace_of(const Model& model, int samples) {
  TraceEntry trace;
  trace.batch = samples;
  trace.input_s = trace.loss_s = trace.host_s = {0.0};
  trace.step_s = {1.0};
  for (const Segment& segment : model.segments) {
    SegmentTrace entry;
    entry.name = segment.name;
    entry.forward_s = entry.backward_s = {1.0};
    entry.zero_grad_s = entry.optimizer_s = {0.0};
    entry.saved_bytes = entry.forward_peak_bytes = 1000.0 * samples;
    trace.segments.push_back(entry);
  }
  return trace;
}

/// \param halves observed peaks of the halves of a split backward
Result pipeline_of(const std::string& schedule_name, int ranks, int micro_batches,
                   const std::string& checkpoint, const std::vector<double>& halves = {}) {
  Model model = load_model("bert-base:layers=4,hidden=64,sequence=8");
  for (Segment& segment : model.segments) segment.output_size = Bytes(0);  // boundaries count for nothing
  TrainingConfig config;
  config.world_size = ranks;
  config.batch = micro_batches;
  config.micro_batches = micro_batches;
  config.options["schedule"] = schedule_name;
  config.options["checkpoint"] = checkpoint;
  const Schedule schedule = build_schedule("pipeline", model, config);
  TraceEntry trace = trace_of(model, 1);
  for (SegmentTrace& segment : trace.segments) segment.half_peak_bytes = halves;
  const Cluster cluster = star(ranks, 1e9, 1e-9);
  ReplayInput input = input_of(schedule, model, cluster);
  input.compute.batch = config.batch;
  const PhaseCosts costs = traced_costs(model, trace);
  input.compute.phases = &costs;
  return replay(input);
}

double activations(const Result& result, std::size_t rank) {
  return result.memory[rank].at_peak_bytes.at("activations");
}

}  // namespace

TEST_CASE("the terms of every rank's memory add up to its peak, and none is negative") {
  const OptionTexts common{
      {"device", "h100-sxm"}, {"cluster", "h100x8-hgx"}, {"world-size", "8"}, {"batch", "4"},
      {"micro-batches", "4"}, {"precision", "bf16"},     {"steps", "1"},      {"warmup", "0"}};
  const std::string llama = "llama:layers=4,hidden=256,heads=4,sequence=256,vocabulary=1024";
  for (const OptionTexts& own : std::vector<OptionTexts>{
           {{"strategy", "ddp"}, {"mesh", "data=4,tensor=2"}, {"model", llama}},
           {{"strategy", "pipeline"}, {"mesh", "pipeline=4,data=2"}, {"model", llama}},
           {{"strategy", "pipeline"}, {"mesh", "pipeline=2,data=4"}, {"model", llama}, {"recompute", "full"}},
           {{"strategy", "fsdp"}, {"accumulate", "every"}, {"model", llama}},
           {{"strategy", "pipeline"},
            {"mesh", "pipeline=2,data=4,expert=4"},
            {"model", "moe:layers=2,hidden=256"}}})
    for (const char* convention : {"", "megatron"}) {
      OptionTexts options = own;
      options.insert(common.begin(), common.end());
      if (*convention != '\0') options = Convention(convention).added_to(options).options;
      CAPTURE(own.at("strategy"), convention);
      const Result result = predict(prediction_request(options));
      for (const MemoryUse& rank : result.memory) {
        double sum = 0.0;
        for (const auto& [term, bytes] : rank.terms) {
          INFO(term);
          CHECK(bytes > 0.0);
          sum += bytes;
        }
        CHECK(sum == Approx(rank.peak_bytes).epsilon(1e-9));
        CHECK(rank.process_bytes > rank.reserved_bytes);
        for (const auto& [term, bytes] : rank.besides) sum += bytes;
        CHECK(sum == Approx(rank.process_bytes).epsilon(1e-9));
      }
    }
}

TEST_CASE("what the device states of a process is not counted twice") {
  OptionTexts options{{"device", "h100-sxm:process=3GiB"},
                      {"cluster", "h100x8-hgx"},
                      {"world-size", "2"},
                      {"batch", "4"},
                      {"precision", "bf16"},
                      {"strategy", "ddp"},
                      {"model", "gpt2-small:layers=2"}};
  const MemoryUse stated = predict(prediction_request(options)).memory.front();
  CHECK(stated.process_bytes == stated.reserved_bytes);
  options["device"] = "h100-sxm";
  const MemoryUse usual = predict(prediction_request(options)).memory.front();
  options.insert({{"reserved", "118"}, {"communicators", "4"}});
  const MemoryUse fragmented = predict(prediction_request(options)).memory.front();
  CHECK(fragmented.peak_bytes == usual.peak_bytes);
  const double kept = 64.0 * (1 << 20);  // workspaces
  CHECK(fragmented.reserved_bytes - kept == Approx(1.18 / 1.05 * (usual.reserved_bytes - kept)));
  CHECK(fragmented.process_bytes - fragmented.reserved_bytes ==
        Approx(usual.process_bytes - usual.reserved_bytes + 4 * 0.69e9));
  options["precision"] = "bf16,gradients=bf16+fp32";
  const MemoryUse both = predict(prediction_request(options)).memory.front();
  const auto parameters = static_cast<double>(load_model("gpt2-small:layers=2").parameter_count());
  CHECK(both.at_peak_bytes.at("gradients") - usual.at_peak_bytes.at("gradients") ==
        Approx(4.0 * parameters).epsilon(0.01));
  CHECK(stated.peak_bytes - usual.peak_bytes == Approx(3.0 * (1 << 30) - 64.0 * (1 << 20)));
}

TEST_CASE("userbuffers, dispatchers and graphs add to the process what they register") {
  const auto terms = [](OptionTexts options) {
    options.insert({{"device", "h100-sxm"},
                    {"cluster", "h100-fat-tree:nodes=8"},
                    {"world-size", "64"},
                    {"steps", "1"},
                    {"warmup", "0"}});
    options = Convention("nemo@26.08").added_to(options).options;
    const MemoryUse use = predict(prediction_request(options)).memory.front();
    CHECK(use.reserved_bytes - use.peak_bytes == use.besides.at("reserved, not allocated"));
    return use.besides;
  };
  const OptionTexts dense{
      {"precision", "bf16"}, {"strategy", "pipeline"}, {"mesh", "pipeline=4,data=2,context=2,tensor=4"},
      {"batch", "4"},        {"micro-batches", "4"},   {"model", "llama3-70b:sequence=8192,layers=8"}};
  // Sizes of Transformer Engine's initialize_ub: 12 x 2 n h bytes, in 8 bit 8 n h + 4 n h + 2 rings
  const double array = 2.0 * 4096 * 8192;
  CHECK(terms(dense).at("userbuffers of tensor parallelism") == Approx(12.0 * array));
  OptionTexts in_8_bit = dense;
  in_8_bit["precision"] = "fp8-current";
  CHECK(terms(in_8_bit).at("userbuffers of tensor parallelism") == Approx(9.5 * array));
  CHECK_FALSE(terms(dense).contains("pools of CUDA graphs"));
  OptionTexts graphs = dense;
  graphs["graph"] = "full";
  CHECK(terms(graphs).at("pools of CUDA graphs") == 10e9);
  OptionTexts experts{{"precision", "bf16"},         {"strategy", "ddp"},
                      {"mesh", "data=64,expert=16"}, {"batch", "1"},
                      {"dispatch", "flex8"},         {"model", "qwen3-30b-a3b:layers=2,sequence=4096"}};
  CHECK(terms(experts).at("buffers of the dispatcher") == Approx(2.0 * 8.0 * 2.0 * 4096 * 2048));
}

TEST_CASE("FSDP2 reserves two gathered units and an input of a reduce-scatter beside what is handed out") {
  OptionTexts options{{"device", "h100-sxm"},
                      {"cluster", "h100x8-hgx"},
                      {"world-size", "8"},
                      {"batch", "1"},
                      {"precision", "bf16"},
                      {"strategy", "fsdp"},
                      {"model", "llama3-8b:layers=2,sequence=1024"}};
  const MemoryUse views = predict(prediction_request(options)).memory.front();
  const double kept = 64.0 * (1 << 20);  // workspaces
  CHECK(views.reserved_bytes == Approx(1.05 * (views.peak_bytes - kept) + kept));
  options.insert({"gathered", "copied"});
  const MemoryUse copied = predict(prediction_request(options)).memory.front();
  const double root = 2.0 * 128256 * 4096 + 4096, block = 218112000.0;  // parameters
  CHECK(copied.reserved_bytes - 1.05 * (copied.peak_bytes - kept) - kept ==
        Approx(2.0 * (root + block) + 4.0 * root).epsilon(1e-4));
  options.insert({"gradients", "freed"});
  const MemoryUse freed = predict(prediction_request(options)).memory.front();
  CHECK(freed.peak_bytes <= copied.peak_bytes);
}

TEST_CASE("freed logits are gone in the backward of an eager loss, and reserved; a compiled one reads them") {
  const double logits = 2.0 * 1024 * 32768, kept = 64.0 * (1 << 20);  // bytes; workspaces
  const std::string llama = "llama:layers=1,hidden=64,heads=4,sequence=1024,vocabulary=32768";
  for (const bool compiled : {false, true})
    for (const char* micro_batches : {"1", "4"}) {
      OptionTexts options{
          {"device", "h100-sxm"},           {"batch", micro_batches},
          {"micro-batches", micro_batches}, {"precision", "bf16"},
          {"strategy", "single"},           {"model", llama + (compiled ? ",compiled=1" : "")}};
      const MemoryUse with = predict(prediction_request(options)).memory.front();
      options.insert({"logits", "freed"});
      const MemoryUse without = predict(prediction_request(options)).memory.front();
      CHECK(with.peak_bytes - without.peak_bytes == Approx(compiled ? 0.0 : logits).margin(1.0));
      CHECK(without.reserved_bytes ==
            Approx(1.05 * (without.peak_bytes - kept) + kept + (compiled ? 0.0 : logits)));
      CHECK(without.live_bytes.back() == Approx(with.live_bytes.back()));
    }
}

TEST_CASE(
    "what autocast makes of weights exists from their forward to their backward, not in the optimizer") {
  const Model model = in_precision(load_model("llama:layers=2,hidden=64,heads=4,sequence=8,vocabulary=512"),
                                   Precision::parse("fp32,compute=bf16"));
  const double blocks = 2.0 * 2.0 * (4.0 * 64 * 64 + 3.0 * 64 * 256), head = 2.0 * 64 * 512;  // bytes
  for (const bool recomputes : {false, true}) {
    TrainingConfig config;
    config.batch = 1;
    config.recompute.blocks = recomputes ? 1 : 0;
    const Schedule schedule = build_schedule("single", model, config);
    double held = 0.0;
    for (const MemoryChange& change : schedule.programs.front().resident)
      if (change.category == MemoryCategory::kParameters) held += change.size.count();
    CHECK(held == 4.0 * static_cast<double>(model.parameter_count()));
    std::map<Phase, double> cast;
    for (const Op& op : schedule.programs.front().ops)
      for (const MemoryChange& change : op.memory) {
        if (change.category != MemoryCategory::kParameters) continue;
        cast[std::get<Compute>(op.action).phase] += change.size.count();
        CHECK(change.at_end == (change.size < Bytes(0)));
      }
    CHECK(cast[Phase::kForward] == head + blocks);
    CHECK(cast[Phase::kLoss] == (recomputes ? -blocks : 0.0));  // only autocast's cache held them
    CHECK(cast[Phase::kRecompute] == (recomputes ? blocks : 0.0));
    CHECK(cast[Phase::kBackward] == -(head + blocks));
  }
}

TEST_CASE("when a step is over, what is held is what was held before it, whatever the strategy") {
  const auto strategy = GENERATE(from_range(strategies().names()));
  const int micro_batches = GENERATE(1, 4);
  if (!strategies().find(strategy).trains) return;
  CAPTURE(strategy, micro_batches);
  const Model model = load_model("bert-base:layers=4,hidden=64,sequence=8");
  TrainingConfig config;
  config.world_size = strategy == "single" ? 1 : 2;
  config.batch = 4;
  config.micro_batches = micro_batches;
  const Schedule schedule = build_schedule(strategy, model, config);
  const TraceEntry trace = trace_of(model, config.batch / micro_batches);
  const Cluster cluster = star(config.world_size, 1e9, 1e-6);
  ReplayInput input = input_of(schedule, model, cluster);
  input.compute.batch = config.batch;
  const PhaseCosts costs = traced_costs(model, trace);
  input.compute.phases = &costs;
  for (const MemoryUse& rank : replay(input).memory) {
    double parts = 0.0;
    for (const auto& [category, bytes] : rank.at_peak_bytes) parts += bytes;
    CHECK(parts == Approx(rank.peak_bytes));
    double resident = 0.0;
    for (const MemoryChange& change : schedule.program(rank.rank).resident) resident += change.size.count();
    CHECK(rank.live_bytes.back() == Approx(resident));
    for (const double live : rank.live_bytes) CHECK(live <= rank.peak_bytes * (1.0 + 1e-12));
  }
}

TEST_CASE("Adam holds 16 bytes per parameter, SGD with momentum 12: parameter, gradient and state") {
  Model model = fixed_model(2, 1.0, 1.0, 400.0);
  TrainingConfig config;
  for (const auto& [kind, momentum, factor] : std::vector<std::tuple<std::string, double, double>>{
           {"adam", 0.0, 4.0}, {"sgd", 0.9, 3.0}, {"sgd", 0.0, 2.0}}) {
    model.optimizer.kind = kind;
    model.optimizer.momentum = momentum;
    CHECK(predicted("single", model, config).memory[0].live_bytes.front() == factor * 800.0);
  }
}

TEST_CASE("GPipe holds all micro-batches, 1F1B on rank r only min(m, p - r) of them") {
  constexpr int kRanks = 4;
  constexpr int kMicroBatches = 8;
  const Result gpipe = pipeline_of("gpipe", kRanks, kMicroBatches, "never");
  const Result one_f_one_b = pipeline_of("1f1b", kRanks, kMicroBatches, "never");
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const double input = rank == 0 || rank == 3 ? kMicroBatches * 8.0 * 8.0 : 0.0;  // 8 tokens of 8 B
    const double segments = rank == 0 || rank == 3 ? 2.0 : 1.0;                     // embedding, pooler
    CHECK(activations(gpipe, rank) - input == Approx(1000.0 * segments * kMicroBatches));
    CHECK(activations(one_f_one_b, rank) - input ==
          Approx(1000.0 * segments * std::min(kMicroBatches, kRanks - static_cast<int>(rank))));
  }
}

TEST_CASE("ZB-H1 holds min(m, p) micro-batches on every rank, and the output gradients of deferred GEMMs") {
  constexpr int kRanks = 4;
  const Model model = load_model("bert-base:layers=4,hidden=64,sequence=8");
  for (const int micro_batches : {2, 8}) {
    const Result result = pipeline_of("zb-h1", kRanks, micro_batches, "never");
    for (const int rank : {1, 2}) {
      const int live = std::min(micro_batches, kRanks);
      const double outputs =
          8.0 * (4 + 4 + 1) * 64 * 4;  // of query, key, value, output, and both of the MLP, in fp32
      CHECK(activations(result, static_cast<std::size_t>(rank)) ==
            Approx(1000.0 * live + outputs * std::min(rank + 1, live)));
    }
  }
}

TEST_CASE("what the input half of a backward leaves is a part of its observed peak") {
  constexpr double kOutputs = 8.0 * (4 + 4 + 1) * 64 * 4;  // bytes: gradients of the outputs of GEMMs
  const Result without = pipeline_of("zb-h1", 4, 8, "never");
  const Result with = pipeline_of("zb-h1", 4, 8, "never", {kOutputs, 0.0});
  for (const std::size_t rank : {1U, 2U}) CHECK(activations(with, rank) == activations(without, rank));
}

TEST_CASE("checkpointing holds one micro-batch's activations at a time") {
  for (const char* checkpoint : {"except_last", "always"}) {
    const Result result = pipeline_of("gpipe", 2, 8, checkpoint);
    CHECK(activations(result, 0) - 8 * 64.0 == Approx(3000.0));
  }
}

TEST_CASE("full_shard holds 1/n of the model and at most two gathered blocks") {
  const Model model = load_model("bert-base:layers=12,hidden=64,vocabulary=64,positions=64,sequence=8");
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 1;
  const Result sharded = predicted("fsdp", model, config);
  const Result replicated = predicted("ddp", model, config);
  double block = 0.0;
  for (const int index : model.segments[1].parameters)
    block += model.parameters[static_cast<std::size_t>(index)].size.count();
  const double whole = model.parameter_bytes().count();
  const double root = whole - 12 * block;
  const double parameters = sharded.memory[0].at_peak_bytes.at("parameters");
  CHECK(parameters <= whole / 4 + root + 2 * block + 1.0);
  CHECK(parameters >= whole / 4 + block);
  CHECK(sharded.memory[0].live_bytes.back() ==
        Approx(4 * whole / 4 + config.batch * model.input_bytes().count()).epsilon(1e-3));
  CHECK(replicated.memory[0].live_bytes.back() ==
        Approx(5 * whole + config.batch * model.input_bytes().count()));  // with the buckets
}

}  // namespace stepcast::memory_test

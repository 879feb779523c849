#include "sim/strategies/offload.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "sim/replay/prediction_options.hpp"
#include "tests/worlds.hpp"

/// Arrays in memory of the host: bytes that move, memory that is freed, and time that links do not hide.
namespace stepcast::offload_test {
namespace {

using worlds::error_of;
using worlds::training;

constexpr int kBatch = 4, kBlocks = 6;
const std::string kGpt = "gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=64";

/// Bytes of the copies of a program, and of its activations one operation after the other.
struct Moved {
  double out = 0.0, back = 0.0, updated = 0.0;
  double peak = 0.0, left = 0.0;
};
Moved moved(const Schedule& schedule, const Model& model) {
  Moved result;
  const double samples = static_cast<double>(kBatch) / schedule.micro_batches;
  for (const Op& op : schedule.program(0).ops) {
    if (const auto* copy = std::get_if<Copy>(&op.action))
      (copy->from == copy->to ? result.updated
       : copy->to.is_host()   ? result.out
                              : result.back) += copy->message.count();
    for (const bool at_end : {false, true})
      for (const MemoryChange& change : op.memory) {
        if (change.at_end != at_end || change.category != MemoryCategory::kActivations) continue;
        result.left += change.size.count();
        if (change.segment >= 0)
          result.left += change.saved * samples * model.segments[change.segment].saved.size.count();
        result.peak = std::max(result.peak, result.left);
      }
  }
  return result;
}

Moved moved(const Model& model, const std::string& strategy, const std::string& offload, int recompute,
            int ranks = 1, int micro_batches = 1, const OptionTexts& options = {}) {
  TrainingConfig config = training(ranks, kBatch, options, micro_batches);
  config.recompute.blocks = recompute;
  config.offload = parse_offload(offload);
  return moved(build_schedule(strategy, model, config), model);
}

double held(const Schedule& schedule, MemoryCategory category) {
  double sum = 0.0;
  for (const MemoryChange& change : schedule.program(0).resident)
    if (change.category == category) sum += change.size.count();
  return sum;
}

OptionTexts question(const OptionTexts& more) {
  OptionTexts options = more;
  options.insert({{"model", "llama:layers=6,hidden=1024,heads=8,sequence=8192,vocabulary=4096"},
                  {"strategy", "fsdp"},
                  {"world-size", "8"},
                  {"cluster", "h100x8-hgx"},
                  {"device", "h100-sxm:rate_spread=0"},
                  {"precision", "bf16"},
                  {"batch", "1"}});
  return options;
}

Result predicted(const OptionTexts& more) { return predict(prediction_request(question(more))); }
double peak(const Result& result) { return result.memory.front().peak_bytes; }

}  // namespace

TEST_CASE("activations leave once and return once: inputs of units, or all that blocks save") {
  const Model model = load_model(kGpt);
  const double output = kBatch * model.segments[1].output_size.count();
  const double saved = kBatch * model.segments[1].saved.size.count();
  for (const auto& [strategy, ranks] : {std::pair{"single", 1}, {"ddp", 2}, {"fsdp", 2}})
    for (const int micro_batches : {1, 2}) {
      INFO(strategy << " " << micro_batches);
      const auto find = [&](const std::string& offload, int recompute) {
        if (recompute > 1 && strategy == std::string("fsdp")) recompute = 1;
        return moved(model, strategy, offload, recompute, ranks, micro_batches);
      };
      const Moved inputs = find("activations", 1), whole = find("activations", 0);
      CHECK(inputs.out == Approx(kBlocks * output));
      CHECK(whole.out == Approx(kBlocks * saved));
      CHECK(find("activations=2", 0).out == Approx(2 * saved));
      CHECK(find("activations=0.5", 0).out == Approx(kBlocks / 2 * saved));
      for (const Moved& one : {inputs, whole}) {
        CHECK(one.back == one.out);
        CHECK(one.left == Approx(0.0).margin(1e-6));
      }
    }
  CHECK(moved(model, "single", "activations", 2).out == Approx(kBlocks / 2 * output));
  for (const int recompute : {0, 1})
    CHECK(moved(model, "single", "activations", recompute).peak <
          moved(model, "single", "none", recompute).peak);
  for (const int recompute : {0, 1}) {
    const Moved stage = moved(model, "pipeline", "activations", recompute, 2, 2, {{"schedule", "1f1b"}});
    CHECK(stage.out == Approx(kBlocks / 2 * (recompute == 1 ? output : saved)));
    CHECK(stage.back == stage.out);
    CHECK(stage.left == Approx(moved(model, "pipeline", "none", recompute, 2, 2).left).margin(1e-6));
  }
}

TEST_CASE("updates on the host receive gradients, and send parameters back") {
  const Model model = in_precision(load_model(kGpt), Precision::parse("bf16"), true);
  const auto count = static_cast<double>(model.parameter_count());
  for (const double part : {0.25, 1.0})
    for (const auto& [strategy, options] :
         {std::pair{"ddp", OptionTexts{}}, {"ddp", OptionTexts{{"zero", "1"}}}, {"fsdp", OptionTexts{}}}) {
      TrainingConfig config = training(2, kBatch, options);
      const Schedule before = build_schedule(strategy, model, config);
      config.offload.optimizer = part;
      const Schedule after = build_schedule(strategy, model, config);
      const Moved found = moved(after, model);
      const bool shards = !options.empty() || strategy == std::string("fsdp");
      const double own = part * count / (shards ? 2.0 : 1.0);
      INFO(strategy << " " << part);
      CHECK(found.out == Approx(4.0 * own).epsilon(1e-3));
      CHECK(found.back == Approx(2.0 * own).epsilon(1e-3));
      CHECK(found.updated == Approx(30.0 * own).epsilon(1e-3));  // 28 in fp32, and parameters in bf16
      CHECK(held(after, MemoryCategory::kOptimizerState) ==
            Approx((1.0 - part) * held(before, MemoryCategory::kOptimizerState)).margin(1.0));
    }
}

// deepspeed/runtime/zero/{stage_1_and_2,stage3}.py, megatron/core/optimizer/cpu_offloading/,
// torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
TEST_CASE("updates on the host read fp32 gradients, and clip those that their framework clips there") {
  constexpr const char* kEngine = ",transformer_engine=1";
  struct Case {
    const char *strategy, *offload, *precision, *passes, *model;
    OptionTexts options;
    double out, back, updated, held;  // bytes per parameter of a rank
  };
  for (const auto& one : {
           Case{"ddp", "optimizer", "bf16,reduction=bf16", "norm+scale", "", {{"zero", "2"}}, 4, 2, 38, 18},
           Case{"ddp", "optimizer", "bf16,gradients=fp32", "norm", kEngine, {{"zero", "1"}}, 4, 4, 28, 16},
           Case{"fsdp", "parameters", "bf16,reduction=bf16", "norm+scale", "", {}, 4, 8, 40, 16},
           Case{"fsdp", "parameters=compute", "bf16,reduction=bf16", "norm+scale", "", {}, 4, 4, 38, 18},
       }) {
    INFO(one.strategy << " " << one.offload << one.model);
    Model model = in_precision(load_model(kGpt + one.model), Precision::parse(one.precision), true);
    model.execution.gradient_passes = one.passes;
    TrainingConfig config = training(2, kBatch, one.options);
    config.offload = parse_offload(one.offload);
    const Schedule schedule = build_schedule(one.strategy, model, config);
    const Moved found = moved(schedule, model);
    const double own = static_cast<double>(model.parameter_count()) / 2.0;
    double root = 0.0;  // which stays gathered from the forward to the backward
    for (const FsdpUnit& unit : schedule.units)
      if (unit.name == "root") root = static_cast<double>(unit.elements) / unit.shards;
    CHECK(found.out == Approx(one.out * own).epsilon(1e-3));
    CHECK(found.back == Approx(one.back * (own - root / 2.0)).epsilon(1e-3));
    CHECK(found.updated == Approx(one.updated * own).epsilon(1e-3));
    CHECK(schedule.program(0).host_memory.count() == Approx(one.held * own).epsilon(1e-3));
  }
}

// deepspeed/runtime/zero/stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu; stage3.py, partition_grads
TEST_CASE("reduced gradients go to the host at once if all states are there, and return to be added") {
  const Model model = in_precision(load_model(kGpt), Precision::parse("bf16,reduction=bf16"), true);
  const double own = static_cast<double>(model.parameter_count()) / 2.0;
  for (const auto& [strategy, options] :
       {std::pair{"ddp", OptionTexts{{"zero", "2"}, {"bucket-cap", "100000B"}}}, {"fsdp", {}}})
    for (const int micro_batches : {1, 3}) {
      INFO(strategy << " " << micro_batches);
      OptionTexts all = options;
      if (micro_batches > 1) all["accumulate"] = "every";
      TrainingConfig config = training(2, 6, all, micro_batches);
      config.offload = parse_offload("optimizer");
      const Schedule schedule = build_schedule(strategy, model, config);
      CHECK(held(schedule, MemoryCategory::kGradients) == 0.0);
      double left = 0.0;
      std::size_t first_sent = 0, last_backward = 0;
      const std::vector<Op>& ops = schedule.program(0).ops;
      for (std::size_t i = 0; i < ops.size(); ++i) {
        for (const MemoryChange& change : ops[i].memory)
          if (change.category == MemoryCategory::kGradients) left += change.size.count();
        if (first_sent == 0 && ops[i].name.starts_with("offload_shard/")) first_sent = i;
        if (ops[i].name.starts_with("backward/")) last_backward = i;
      }
      CHECK(left == Approx(0.0).margin(1e-6));
      CHECK(first_sent > 0);
      CHECK(first_sent < last_backward);
      const Moved found = moved(schedule, model);
      CHECK(found.out == Approx((2.0 * (micro_batches - 1) + 4.0) * own).epsilon(1e-3));
      CHECK(found.back == Approx((2.0 * (micro_batches - 1) + 2.0) * own).epsilon(1e-3));
      CHECK(found.updated == Approx(30.0 * own).epsilon(1e-3));
      CHECK(schedule.program(0).host_memory.count() ==
            Approx((micro_batches > 1 ? 20.0 : 18.0) * own).epsilon(1e-3));
    }
  TrainingConfig config = training(2, kBatch, {{"zero", "2"}});
  for (const char* part : {"optimizer=0.5", "none"}) {
    config.offload = parse_offload(part);
    CHECK(held(build_schedule("ddp", model, config), MemoryCategory::kGradients) ==
          Approx(2.0 * own).epsilon(1e-3));
  }
}

TEST_CASE("the host holds a sum of gradients only where several micro-batches reduce") {
  const Model model = in_precision(load_model(kGpt), Precision::parse("bf16,reduction=fp32"), true);
  const double own = static_cast<double>(model.parameter_count()) / 2.0;
  const auto held_by_host = [&](const char* accumulate, int micro_batches) {
    OptionTexts options{{"zero", "2"}};
    if (micro_batches > 1) options["accumulate"] = accumulate;
    TrainingConfig config = training(2, kBatch, options, micro_batches);
    config.offload = parse_offload("optimizer");
    return build_schedule("ddp", model, config).program(0).host_memory.count();
  };
  CHECK(held_by_host("last", 2) == held_by_host("last", 1));
  CHECK(held_by_host("every", 2) - held_by_host("last", 1) == Approx(4.0 * own).epsilon(1e-3));
}

TEST_CASE("gradients of tied weights are added to those of the other stage before they go to the host") {
  const Model model = in_precision(load_model(kGpt + ",tied=1"), Precision::parse("bf16"), true);
  TrainingConfig config = training(4, kBatch, {{"split", "3-3"}, {"zero", "2"}}, 2);
  config.mesh = Mesh::parse("pipeline=2,data=2");
  config.offload = parse_offload("optimizer");
  const Schedule schedule = build_schedule("pipeline", model, config);
  for (const int rank : {0, 3}) {
    int sums = 0;
    for (const Op& op : schedule.program(rank).ops) {
      const auto* copy = std::get_if<Copy>(&op.action);
      sums += op.name.starts_with("all_reduce/") ? 1 : 0;
      if (copy != nullptr && copy->to.is_host() && copy->from != copy->to) CHECK(sums == 1);
    }
    CHECK(sums == 1);
  }
}

TEST_CASE("copies and updates of buckets follow one another, as without overlap in Megatron and DeepSpeed") {
  const Model model = in_precision(load_model(kGpt), Precision::parse("bf16"), true);
  TrainingConfig config = training(2, kBatch, {{"zero", "1"}, {"bucket-cap", "100000B"}});
  config.offload = parse_offload("optimizer");
  const Schedule schedule = build_schedule("ddp", model, config);
  const std::vector<Op>& ops = schedule.program(0).ops;
  int before = -1, updates = 0;  // last return of parameters
  for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
    const bool leaves = ops[i].name.starts_with("offload_gradients/");
    if (leaves && before >= 0) CHECK(std::ranges::count(ops[i].after, before) == 1);
    if (leaves) ++updates;
    if (ops[i].name.starts_with("fetch_parameters/")) before = i;
  }
  CHECK(updates > 2);
}

TEST_CASE("shards of parameters on the host leave nothing on the device between steps") {
  const Model model = in_precision(load_model(kGpt), Precision::parse("bf16"), true);
  TrainingConfig config = training(4, kBatch);
  config.offload = parse_offload("parameters");
  const Schedule schedule = build_schedule("fsdp", model, config);
  for (const MemoryCategory each :
       {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizerState})
    CHECK(held(schedule, each) == 0.0);
  double elements = 0.0, root = 0.0;
  for (const FsdpUnit& unit : schedule.units) {
    elements += static_cast<double>(unit.elements) / unit.shards;
    if (unit.name == "root") root = static_cast<double>(unit.elements) / unit.shards;
  }
  const Moved found = moved(schedule, model);
  CHECK(found.out == Approx(4.0 * elements));                  // gradients
  CHECK(found.back == Approx(4.0 * (2.0 * elements - root)));  // shards for the forward and the backward
  const double held = schedule.program(0).host_memory.count();
  CHECK(held == Approx((4.0 + 12.0) * elements));  // gradients, master copy and states
  config.offload = parse_offload("parameters=compute");
  const Schedule half = build_schedule("fsdp", model, config);
  CHECK(moved(half, model).out == Approx(found.out));
  CHECK(moved(half, model).back == Approx(found.back / 2.0));
  CHECK(half.program(0).host_memory.count() == Approx(held + 2.0 * elements));
  config.offload = parse_offload("parameters");
  CHECK(error_of<UsageError>([&] {
          config.world_size = 1;
          return build_schedule("fsdp", model, config);
        }).find("needs shards") != std::string::npos);
  CHECK(error_of<UsageError>([&] { return build_schedule("ddp", model, config); }).find("fsdp") !=
        std::string::npos);
}

TEST_CASE("a step with copies takes no less time, and hides them beside compute as links allow") {
  for (const OptionTexts& way : {OptionTexts{{"recompute", "full"}}, OptionTexts{}}) {
    const Result without = predicted(way);
    const auto with = [&](const std::string& what, const std::string& rate) {
      OptionTexts options = way;
      options.insert({{"offload", what}, {"pcie-rate", rate}});
      return predicted(options);
    };
    double before = 0.0;
    for (const char* rate : {"10TB/s", "50GB/s", "5GB/s"}) {
      const Result found = with("activations", rate);
      const double step = found.median_step_time_s();
      INFO(rate << ": " << step << " after " << before);
      CHECK(step >= std::max(before, without.median_step_time_s()) * (1.0 - 1e-9));
      CHECK(peak(found) < peak(without));
      before = step;
    }
    CHECK(with("activations", "10TB/s").median_step_time_s() ==
          Approx(without.median_step_time_s()).epsilon(0.02));
    for (const char* what : {"optimizer", "optimizer=0.5", "parameters"}) {
      INFO(what);
      CHECK(with(what, "50GB/s").median_step_time_s() > without.median_step_time_s());
      CHECK(peak(with(what, "50GB/s")) < peak(without));
    }
    // Two GPUs share the link of a PCIe switch to its socket.
    const Model model = in_precision(load_model(question({}).at("model")), Precision::parse("bf16"), true);
    const Segment& block = model.segments[1];
    const double bytes = 6.0 * (way.empty() ? block.saved.size : block.output_size).count();
    CHECK(before > 2.0 * bytes / 5e9);
  }
  const OptionTexts exact{{"recompute", "full"}, {"offload", "activations"}, {"exact", "yes"}};
  OptionTexts classes = exact;
  classes.erase("exact");
  CHECK(predicted(exact).median_step_time_s() ==
        Approx(predicted(classes).median_step_time_s()).epsilon(1e-3));
}

TEST_CASE("copies of GPUs beside Grace go over NVLink-C2C") {
  const OptionTexts grace{{"cluster", "gh200x4"}, {"device", "gh200:rate_spread=0"}, {"world-size", "4"}};
  OptionTexts offload = grace;
  offload.insert({{"offload", "activations"}, {"recompute", "full"}, {"pcie-rate", "100MB/s"}});
  OptionTexts none = grace;
  none.insert({"recompute", "full"});
  CHECK(predicted(offload).median_step_time_s() < 1.1 * predicted(none).median_step_time_s());
  CHECK(predicted(offload).notes.at("offload").find("to the host") != std::string::npos);
  CHECK(predicted(offload).notes.at("assumed").find("copies run") != std::string::npos);
}

TEST_CASE("memory of a host holds what its ranks offload, or the step does not fit") {
  const auto with = [](const std::string& model, const std::string& what) {
    return predicted({{"model", model},
                      {"offload", what},
                      {"cluster", "gh200x4"},
                      {"device", "gh200"},
                      {"world-size", "4"}});
  };
  const std::string small = "llama:layers=6,hidden=1024,heads=8,sequence=1024,vocabulary=4096";
  CHECK(with(small, "optimizer").notes.at("offload").find("does not fit") == std::string::npos);
  const std::string large = with("llama3-405b:sequence=1024", "optimizer").notes.at("offload");
  CHECK(large.find("together") != std::string::npos);
  CHECK(large.find("the step does not fit") != std::string::npos);
}

TEST_CASE("--offload prints assumptions of what leaves alone") {
  const auto assumed = [](const std::string& what) {
    return predicted({{"offload", what}}).notes.at("assumed");
  };
  CHECK(assumed("activations").find("two blocks ahead") != std::string::npos);
  CHECK(assumed("activations").find("a socket updates") == std::string::npos);
  CHECK(assumed("optimizer").find("two blocks ahead") == std::string::npos);
  CHECK(assumed("optimizer").find("a socket updates") != std::string::npos);
  CHECK(error_of<UsageError>([&] {
          return predicted({{"offload", "activations"}, {"host-memory-rate", "100GB/s"}});
        }).find("--host-memory-rate has no effect") != std::string::npos);
}

TEST_CASE("--offload names what it cannot do") {
  for (const char* wrong :
       {"weights", "activations=0", "activations=1.5", "optimizer=2.0", "parameters=0.5", ""})
    CHECK(error_of<UsageError>([&] { return parse_offload(wrong); }).find("must be") != std::string::npos);
  for (const char* right : {"activations", "activations=8", "activations=0.5+optimizer=0.5", "parameters",
                            "parameters=compute", "none"})
    CHECK(to_text(parse_offload(right)) == right);
  CHECK(error_of<UsageError>([&] {
          return moved(load_model(kGpt), "single", "activations=7", 0).out;
        }).find("a rank has 6") != std::string::npos);
  CHECK(error_of<UsageError>([&] {
          return moved(load_model(kGpt), "single", "activations=0.05", 0).out;
        }).find("take 1 to 6") != std::string::npos);
  CHECK(error_of<UsageError>([&] {
          return predicted({{"strategy", "broadcast"}, {"offload", "optimizer"}});
        }).find("broadcast") != std::string::npos);
}

}  // namespace stepcast::offload_test

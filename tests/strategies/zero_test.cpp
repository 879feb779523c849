#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "records/phase_costs.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/worlds.hpp"

namespace stepcast::zero_test {
using namespace worlds;

namespace {

constexpr int kRanks = 4;

double held(const Program& program, MemoryCategory category) {
  double total = 0.0;
  for (const MemoryChange& each : program.resident)
    if (each.category == category) total += each.size.count();
  return total;
}

/// At most at once.
double peak(const Program& program, MemoryCategory category) {
  double now = held(program, category), most = now;
  for (const Op& op : program.ops)
    for (const MemoryChange& change : op.memory)
      if (change.category == category) most = std::max(most, now += change.size.count());
  CHECK(now == held(program, category));
  return most;
}

/// Of whole gradients.
double peak_gradients(const Program& program) { return peak(program, MemoryCategory::kGradients); }

/// Padding of the buckets, all of them together.
constexpr double kPadding = 1e-4;

}  // namespace

TEST_CASE(
    "ZeRO 1 and 2 reduce-scatter gradients once and all-gather parameters once: an all-reduce's bytes") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  const Schedule plain = build_schedule("ddp", model, training(kRanks, 8, {{"zero", "0"}}));
  const double all_reduced = messages(plain.program(0)).at(CollectiveKind::kAllReduce);
  CHECK(all_reduced == parameters);
  for (const char* zero : {"1", "2"}) {
    const auto moved =
        messages(build_schedule("ddp", model, training(kRanks, 8, {{"zero", zero}})).program(0));
    CHECK(moved.at(CollectiveKind::kReduceScatter) == Approx(parameters).epsilon(kPadding));
    CHECK(moved.at(CollectiveKind::kAllGather) == Approx(parameters).epsilon(kPadding));
    CHECK_FALSE(moved.contains(CollectiveKind::kAllReduce));
  }
}

TEST_CASE(
    "replicas with ZeRO keep their part of an all-reduce, beside which nothing computes if it is waited "
    "for") {
  const Model model = load_model("bert-base:layers=2");
  for (const char* zero : {"1", "2"})
    for (const char* when : {"ready", "waited"}) {
      CAPTURE(zero, when);
      const Program program =
          build_schedule(
              "ddp", model,
              training(kRanks, 8, {{"zero", zero}, {"reduce-by", "all-reduce"}, {"reduce-when", when}}))
              .program(0);
      const auto moved = messages(program);
      CHECK(moved.at(CollectiveKind::kAllReduce) ==
            Approx(model.parameter_bytes().count()).epsilon(kPadding));
      CHECK(moved.at(CollectiveKind::kAllGather) == moved.at(CollectiveKind::kAllReduce));
      CHECK_FALSE(moved.contains(CollectiveKind::kReduceScatter));
      int beside = 0, calls = 0, reduced = -1;  // latest all-reduce that no operation has waited for
      for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
        const Op& op = program.ops[i];
        if (std::ranges::find(op.after, reduced) != op.after.end()) reduced = -1;
        const bool computes = op.stream == Stream::kCompute && !op.name.starts_with("zero_grad/");
        if (computes && reduced >= 0) ++beside;
        if (op.name.starts_with("all_reduce/")) reduced = i, ++calls;
      }
      CHECK(calls > 2);
      CHECK((beside > 0) == (when == std::string("ready")));
      if (zero == std::string("1") && when == std::string("waited")) {
        const auto first = std::ranges::find_if(
            program.ops, [](const Op& op) { return op.name.starts_with("all_reduce/"); });
        CHECK(std::none_of(first, program.ops.end(),
                           [](const Op& op) { return op.name.starts_with("backward/"); }));
      }
    }
  CHECK_THROWS_WITH(build_schedule("ddp", model, training(kRanks, 8, {{"reduce-by", "all-reduce"}})),
                    Catch::Contains("--reduce-by has no effect without --zero 1 or 2"));
}

TEST_CASE("updates of shards read gradients as they are reduced; all-gathers of FSDP cast the master copy") {
  const auto updates_s = [](const char* precision, const std::string& strategy, const OptionTexts& options) {
    const Model model = in_precision(load_model("bert-base:layers=2"), Precision::parse(precision), true);
    const Schedule schedule = build_schedule(strategy, model, training(kRanks, 8, options));
    PhaseCosts costs(model);
    for (SegmentCosts& segment : costs.segments) segment.optimizer.device_s = 1.0;
    double all = 0.0;
    for (const Op& op : schedule.program(0).ops)
      if (std::holds_alternative<UpdateUnit>(op.action)) all += costs.seconds(schedule, op, -1.0, false);
    return all;
  };
  CHECK(updates_s("bf16", "fsdp", {}) == Approx(updates_s("fp32", "fsdp", {})));
  CHECK(updates_s("bf16", "ddp", {{"zero", "1"}}) ==
        Approx(30.0 / 28.0 * updates_s("fp32", "ddp", {{"zero", "1"}})));
}

TEST_CASE("foreach holds square roots of the second moments that a rank updates, while it does") {
  Model model = in_precision(load_model("bert-base:layers=2"), Precision::parse("bf16"), true);
  for (const auto& [strategy, options] : {std::pair{"single", OptionTexts{}},
                                          {"fsdp", {}},
                                          {"ddp", {{"zero", "1"}}},
                                          {"ddp", {{"zero", "whole"}}}})
    for (const char* update : {"fused", "foreach"}) {
      CAPTURE(strategy, update);
      model.execution.update = update;
      const int ranks = strategy == std::string("single") ? 1 : kRanks;
      const Program program = build_schedule(strategy, model, training(ranks, 8, options)).program(0);
      double now = 0.0, most = 0.0;
      for (const Op& op : program.ops)
        for (const MemoryChange& change : op.memory)
          if (change.category == MemoryCategory::kOptimizerState)
            most = std::max(most, now += change.size.count());
      CHECK(now == Approx(0.0).margin(1e-3));
      const double part = update == std::string("fused") ? 0.0 : 1.0 / 3.0;  // of master and moments
      CHECK(most == Approx(part * held(program, MemoryCategory::kOptimizerState)));
    }
}

TEST_CASE("ZeRO 1 and 2 hold weights as their recipe keeps them") {
  constexpr double kInBlocks = 2.0 * (256 * (256 + 2 * 128 + 256) + 3 * 256 * 1024);
  const Model whole = load_model(
      "llama:layers=2,hidden=256,heads=8,kv_heads=4,feed_forward=1024,sequence=512,vocabulary=2048");
  const double others = static_cast<double>(whole.parameter_count()) - kInBlocks;
  for (const auto& [precision, kept] : {std::pair{"bf16", 2.0},
                                        {"fp8-current", 2.0 + 1.0},
                                        {"fp8-current,gather=fp8", 1.0},
                                        {"fp8,gather=fp8", 2.0},
                                        {"mxfp8,gather=mxfp8", 2.0625},
                                        {"nvfp4,gather=nvfp4", 1.125}}) {
    const Model model = in_precision(whole, Precision::parse(precision), true, false);
    for (const char* zero : {"0", "1", "2"}) {
      const Schedule schedule = build_schedule("ddp", model, training(kRanks, 8, {{"zero", zero}}));
      INFO(precision << ", ZeRO " << zero);
      CHECK(held(schedule.program(0), MemoryCategory::kParameters) ==
            Approx(kept * kInBlocks + 2.0 * others).epsilon(kPadding));
    }
  }
}

TEST_CASE("parameters that the forward gathers begin the step, and each forward waits for its own alone") {
  const Model model = load_model("bert-base");
  OptionTexts options{{"zero", "1"}, {"bucket-cap", "50MB"}};
  const auto after_update = messages(build_schedule("ddp", model, training(kRanks, 8, options)).program(0));
  options["gather-parameters"] = "forward";
  TrainingConfig config = training(kRanks, 8, options, 2);
  const Schedule schedule = build_schedule("ddp", model, config);
  const Program& program = schedule.program(0);
  CHECK(messages(program) == after_update);
  CHECK(schedule.label.ends_with("gather-parameters forward"));
  const int gathers = find(program, "all_gather/"), first = find(program, "forward/embeddings");
  CHECK(gathers < first);
  std::size_t waited = 0, waiting = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.name.starts_with("all_gather/")) CHECK(static_cast<int>(i) < first);
    std::size_t here = 0;
    if (op.name.starts_with("forward/"))
      for (const int before : op.after)
        here += program.ops[static_cast<std::size_t>(before)].name.starts_with("all_gather/") ? 1 : 0;
    waited += here;
    waiting += here > 0 ? 1 : 0;
  }
  CHECK(waited == schedule.units.size());  // by the first micro-batch alone
  CHECK(waiting > 3);
  // The bucket of the embedding, which is the last one, is gathered first.
  CHECK(program.ops[static_cast<std::size_t>(gathers)].name == "all_gather/" + schedule.units.back().name);
  for (const OptionTexts& given : {OptionTexts{{"gather-parameters", "forward"}},
                                   OptionTexts{{"gather-parameters", "forward"}, {"zero", "0"}},
                                   OptionTexts{{"gather-parameters", "forward"}, {"zero", "whole"}}})
    CHECK_THROWS_WITH(build_schedule("ddp", model, training(kRanks, 8, given)),
                      "--gather-parameters has no effect without --zero 1 or 2");
}

TEST_CASE("Megatron updates fp32 parameters in place, and its FSDP keeps shards beside master copies") {
  const std::string gpt = "gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=512,dropout=0";
  const auto parameters = [&](const std::string& engine, const std::string& precision,
                              const std::string& strategy, const OptionTexts& options) {
    const Model model = in_precision(load_model(gpt + engine), Precision::parse(precision), true);
    const Schedule schedule = build_schedule(strategy, model, training(kRanks, 8, options));
    return held(schedule.program(0), MemoryCategory::kParameters) /
           static_cast<double>(model.parameter_count());
  };
  const std::string engine = ",transformer_engine=1";
  CHECK(parameters("", "fp32", "ddp", {{"zero", "1"}}) == Approx(4.0 + 4.0 / kRanks).epsilon(1e-3));
  CHECK(parameters(engine, "fp32", "ddp", {{"zero", "1"}}) == Approx(4.0).epsilon(1e-3));
  CHECK(parameters("", "bf16", "fsdp", {}) == 0.0);
  CHECK(parameters(engine, "bf16", "fsdp", {}) == Approx(2.0 / kRanks).epsilon(1e-3));
}

TEST_CASE("shards of FSDP leave buffers whole") {
  const Model model = load_model("resnet18-cifar");
  const double whole =
      held(build_schedule("single", model, training(1, 8)).program(0), MemoryCategory::kParameters);
  double buffers = 0.0;
  for (const Buffer& buffer : model.buffers) buffers += buffer.size.count();
  CHECK(buffers > 0.0);
  CHECK(held(build_schedule("fsdp", model, training(kRanks, 8)).program(0), MemoryCategory::kParameters) ==
        Approx(buffers + (whole - buffers) / kRanks).epsilon(1e-3));
}

TEST_CASE("a replica keeps all parameters, one part of the optimizer, and the gradients of its stage") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  for (const int ranks : {2, 4, 8}) {
    const double part = parameters / ranks;
    const Schedule one = build_schedule("ddp", model, training(ranks, 8, {{"zero", "1"}}));
    const Schedule two = build_schedule("ddp", model, training(ranks, 8, {{"zero", "2"}}));
    for (const Schedule* each : {&one, &two}) {
      const Program& program = each->program(0);
      CHECK(held(program, MemoryCategory::kOptimizerState) ==
            Approx(model.optimizer_bytes(static_cast<double>(model.parameter_count())).count() / ranks)
                .epsilon(kPadding));
      CHECK(held(program, MemoryCategory::kParameters) == Approx(parameters + part).epsilon(kPadding));
    }
    CHECK(held(one.program(0), MemoryCategory::kGradients) == Approx(parameters + part).epsilon(kPadding));
    CHECK(peak_gradients(one.program(0)) == held(one.program(0), MemoryCategory::kGradients));
    CHECK(held(two.program(0), MemoryCategory::kGradients) == Approx(part).epsilon(kPadding));
    CHECK(peak_gradients(two.program(0)) < 0.6 * parameters + part);
  }
}

TEST_CASE("--zero 2 --accumulate every reduces and frees the gradients of every micro-batch") {
  const Model model = load_model("bert-base");
  const double parameters = model.parameter_bytes().count();
  TrainingConfig config = training(kRanks, 8, {{"zero", "2"}, {"accumulate", "last"}});
  config.micro_batches = 4;
  const auto built = [&](const char* accumulate) {
    config.options["accumulate"] = accumulate;
    return build_schedule("ddp", model, config);
  };
  const auto scattered = [](const Schedule& schedule) {
    return messages(schedule.program(0)).at(CollectiveKind::kReduceScatter);
  };
  const Schedule last = built("last"), every = built("every");
  CHECK(scattered(last) == Approx(parameters).epsilon(kPadding));
  CHECK(scattered(every) == Approx(4 * parameters).epsilon(kPadding));
  CHECK(messages(every.program(0)).at(CollectiveKind::kAllGather) == Approx(parameters).epsilon(kPadding));
  CHECK(peak_gradients(last.program(0)) > parameters);
  CHECK(peak_gradients(every.program(0)) < 0.6 * parameters + 2 * parameters / kRanks);
  CHECK(every.options.at("accumulate") == "every");
  CHECK_THROWS_WITH(built("shard-then-replicas"), Catch::Contains("replicas of shards"));
  config.micro_batches = 1;
  CHECK_FALSE(built("every").options.contains("accumulate"));
  config.options["zero"] = "1";
  CHECK_THROWS_WITH(built("every"), Catch::Contains("--accumulate has no effect without --zero 2"));
}

TEST_CASE("replicas of a stage share its optimizer") {
  const Model model = load_model("bert-base");
  TrainingConfig config = training(4, 8, {{"zero", "0"}});
  config.micro_batches = 4;
  config.mesh = Mesh::parse("pipeline=2,data=2");
  const Schedule plain = build_schedule("pipeline", model, config);
  for (const char* zero : {"1", "2"}) {
    config.options["zero"] = zero;
    const Schedule shared = build_schedule("pipeline", model, config);
    CHECK(shared.options.at("zero") == zero);
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(held(shared.program(rank), MemoryCategory::kOptimizerState) ==
            Approx(held(plain.program(rank), MemoryCategory::kOptimizerState) / 2).epsilon(kPadding));
      const double reduced = messages(plain.program(rank)).at(CollectiveKind::kAllReduce);
      const auto moved = messages(shared.program(rank));
      CHECK(moved.at(CollectiveKind::kReduceScatter) == Approx(reduced).epsilon(kPadding));
      CHECK(moved.at(CollectiveKind::kAllGather) == Approx(reduced).epsilon(kPadding));
    }
  }
}

TEST_CASE(
    "shards of a stage: 1/n of everything between steps, one gather and one reduction of all per step") {
  for (const char* name : {"bert-base", "gpt2-small"})  // the second ties its head to its embedding
    for (const int shards : {2, 4})
      for (const int micro_batches : {2, 8}) {
        INFO(name << " in " << shards << " shards, micro-batches " << micro_batches);
        const Model model = load_model(name);
        TrainingConfig config;
        config.world_size = 2 * shards;
        config.batch = 8;
        config.micro_batches = micro_batches;
        const std::string size = std::to_string(shards);
        config.mesh = Mesh::parse("pipeline=2,data=" + size);
        const Schedule whole = build_schedule("pipeline", model, config);
        config.mesh = Mesh::parse("pipeline=2,shard=" + size);
        const Schedule shared = build_schedule("pipeline", model, config);
        CHECK(shared.options.at("mesh") == "pipeline=2,shard=" + size);
        CHECK(shared.data_parallel == shards);
        for (const int rank : {0, shards}) {
          const Program& program = shared.program(rank);
          const double parameters = held(whole.program(rank), MemoryCategory::kParameters);
          for (const MemoryCategory category :
               {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizerState})
            CHECK(held(program, category) ==
                  Approx(held(whole.program(rank), category) / shards).epsilon(kPadding));
          for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients})
            CHECK(peak(program, category) == Approx(parameters * (1.0 + 1.0 / shards)).epsilon(kPadding));
          const auto moved = messages(program);
          CHECK(moved.at(CollectiveKind::kAllGather) == Approx(parameters).epsilon(kPadding));
          CHECK(moved.at(CollectiveKind::kReduceScatter) == Approx(parameters).epsilon(kPadding));
        }
      }
}

TEST_CASE("parameters of a stage stay gathered from the first forward to the last backward of each unit") {
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 8;
  config.micro_batches = 4;
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    INFO(schedule);
    config.mesh = Mesh::parse("pipeline=2,shard=2");
    config.options = {{"schedule", schedule}};
    if (config.options["schedule"] == "interleaved") config.options["virtual-stages"] = "2";
    const Schedule shared = build_schedule("pipeline", load_model("bert-base"), config);
    for (std::size_t u = 0; u < shared.units.size(); ++u) {
      INFO(shared.units[u].name);
      const Program& program = shared.program(shared.groups[shared.units[u].group].ranks.front());
      std::vector<std::size_t> gathers, frees, uses;
      bool waits = false;
      for (std::size_t i = 0; i < program.ops.size(); ++i) {
        const Op& op = program.ops[i];
        const auto* call = std::get_if<Collective>(&op.action);
        const auto* memory = std::get_if<UnitMemory>(&op.action);
        const auto* compute = std::get_if<Compute>(&op.action);
        const auto* array = call == nullptr ? nullptr : std::get_if<UnitParameters>(&call->payload);
        if (array != nullptr && array->unit == static_cast<int>(u)) gathers.push_back(i);
        if (memory != nullptr && memory->unit == static_cast<int>(u) &&
            memory->what == UnitMemory::What::kFreeParameters)
          frees.push_back(i);
        if (compute == nullptr) continue;
        const std::vector<int>& own = shared.units[u].segments;
        if (std::find(own.begin(), own.end(), compute->segment) == own.end()) continue;
        if (uses.empty())
          waits = !gathers.empty() && std::find(op.after.begin(), op.after.end(),
                                                static_cast<int>(gathers.front())) != op.after.end();
        uses.push_back(i);
      }
      REQUIRE(gathers.size() == 1);
      REQUIRE(frees.size() == 1);
      CHECK(waits);
      CHECK(uses.size() >= 8);
      CHECK(gathers.front() < uses.front());
      CHECK(uses.back() < frees.front());
    }
  }
}

TEST_CASE("shards of a stage are refused with what they do not go with") {
  const Model model = load_model("bert-base");
  TrainingConfig config;
  config.world_size = 8;
  config.batch = 8;
  config.mesh = Mesh::parse("pipeline=4,shard=2");
  const auto check = [&](const OptionTexts& options, const std::string& said) {
    config.options = options;
    CHECK_THROWS_WITH(build_schedule("pipeline", model, config), Catch::Contains(said));
  };
  check({{"forward-only", "yes"}}, "--forward-only is not supported");
  check({{"zero", "1"}}, "--zero has no effect with --mesh shard");
  check({{"bucket-cap", "1MiB"}}, "--bucket-cap has no effect");
}

TEST_CASE("sharing the optimizer is an error if it has no effect, with valid values") {
  const Model model = load_model("bert-base");
  const auto refusal = [&](const std::string& strategy, const TrainingConfig& config) {
    return error_of<UsageError>([&] { return build_schedule(strategy, model, config); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal("ddp", training(kRanks, 8, {{"zero", "3"}})),
             Contains("zero") && Contains("'3'") && Contains("0, 1, 2"));
  for (const char* name : {"zero++", "zeropp", "qwz", "zero_quantized_gradients", "hpZ", "mics"}) {
    for (const auto& [strategy, option] : {std::pair{"ddp", "zero"}, {"fsdp", "sharding"}})
      CHECK_THAT(refusal(strategy, training(kRanks, 8, {{option, name}})),
                 Contains("--" + std::string(option) + ": ") && Contains(name) &&
                     Contains("is not modelled; nearest is --"));
  }
  CHECK_THAT(refusal("fsdp", training(kRanks, 8, {{"mics_shard_size", "8"}})), Contains("MiCS"));
  for (const char* zero : {"1", "2"}) {
    INFO(zero);
    const std::string given = std::string("--zero ") + zero;
    CHECK_THAT(refusal("ddp", training(1, 8, {{"zero", zero}})), Contains(given) && Contains("take 0"));
    CHECK_THAT(refusal("pipeline", training(kRanks, 8, {{"zero", zero}})),
               Contains("--zero") && Contains("--mesh pipeline=P,data=D"));
    for (const char* strategy : {"fsdp", "all_reduce", "gather_scatter"})
      CHECK_THAT(refusal(strategy, training(kRanks, 8, {{"zero", zero}})),
                 Contains("--zero") && Contains("ddp and pipeline"));
    CHECK_THAT(refusal("single", training(1, 8, {{"zero", zero}})),
               Contains("--zero") && Contains("ddp and pipeline"));
    TrainingConfig config = training(kRanks, 8, {{"zero", zero}});
    config.options["compress"] = "fp16";
    CHECK_THAT(refusal("ddp", config), Contains("--compress fp16") && Contains(given));
    CHECK_THROWS_WITH(build_schedule("ddp", load_model("synthetic"), training(kRanks, 8, {{"zero", zero}})),
                      Contains(given) && Contains("no optimizer"));
  }
  CHECK_FALSE(build_schedule("ddp", model, training(kRanks, 8, {{"zero", "0"}})).options.contains("zero"));
}

}  // namespace stepcast::zero_test

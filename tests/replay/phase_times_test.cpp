#include "sim/replay/phase_times.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "models/model.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast::phase_times_test {
namespace {

double sum(const PhaseCosts& costs, PhaseCost SegmentCosts::*phase) {
  double total = 0.0;
  for (const SegmentCosts& segment : costs.segments) total += (segment.*phase).device_s;
  return total;
}

PredictionRequest request(const std::string& device, const std::string& phases) {
  PredictionRequest asked;
  asked.strategy = "single";
  asked.costs.model = "simple-cnn";
  asked.costs.device = device;
  if (device.starts_with("h100")) asked.environment.cluster = "h100x4-nvlink";
  asked.costs.batch = 16;
  asked.costs.phases = parse_phase_times(phases);
  return asked;
}

}  // namespace

TEST_CASE("known phases are shared by flop, and a rank alone takes their sum, in brief too") {
  const Model model = load_model("vgg11-bn-cifar");
  PhaseCosts entry = flop_shares(model, 64);
  apply(parse_phase_times("compute=0.9s,optimizer=30ms,host=70ms"), entry, true);
  CHECK(sum(entry, &SegmentCosts::forward) == Approx(0.3));
  CHECK(sum(entry, &SegmentCosts::backward) == Approx(0.6));
  CHECK(sum(entry, &SegmentCosts::optimizer) == Approx(0.03));
  CHECK(entry.host.device_s == Approx(0.07));
  const double flop = model.segments[0].flop.forward / model.forward_flop();
  CHECK(entry.segments[0].forward.device_s == Approx(0.3 * flop));
  PredictionRequest asked = request("", "forward=10ms,backward=20ms,input=5ms");
  const double step = predict(asked).median_step_time_s();
  CHECK(step == Approx(0.035));
  KnownInputs known;
  asked.known = &known;
  asked.brief = true;
  for (int again = 0; again < 2; ++again) {
    const Result brief = predict(asked);
    CHECK(brief.median_step_time_s() == Approx(step).epsilon(1e-9));
    CHECK(brief.spans.empty());
    CHECK(brief.forecast.baseline_step_time_s.empty());
  }
  CHECK(known.models.contains("simple-cnn"));
}

TEST_CASE("with a device, a phase that is known is scaled and the others are estimated") {
  const double estimated =
      predict(request("h100-sxm:compute_efficiency=0.5", "host=0s")).median_step_time_s();
  const double known = predict(request("h100-sxm", "forward=1s")).median_step_time_s();
  CHECK(known > 1.0);
  CHECK(known < 1.0 + estimated);
}

TEST_CASE("a known time of a phase contains its launches") {
  PredictionRequest asked = request("h100-sxm", "forward=1ms,backward=2ms,optimizer=1ms");
  asked.costs.model = "bert-base";
  asked.costs.batch = 1;
  asked.costs.precision = Precision::parse("bf16");
  CHECK(predict(asked).median_step_time_s() == Approx(4e-3).epsilon(1e-3));
}

TEST_CASE("a stage's own time is added once to the segment that opens it") {
  const Model model = load_model("bert-base");
  TrainingConfig config;
  config.world_size = 3;
  config.batch = 6;
  config.micro_batches = 2;
  PhaseCosts entry = flop_shares(model, 3);
  apply(parse_phase_times("compute=1s"), entry, true);
  add_stage_times(Seconds(0.3), build_schedule("pipeline", model, config), entry);
  CHECK(sum(entry, &SegmentCosts::forward) == Approx(1.0 / 3.0 + 0.3));
  CHECK(sum(entry, &SegmentCosts::backward) == Approx(2.0 / 3.0 + 0.6));
}

TEST_CASE("wrong phase times are refused with the valid names") {
  CHECK(parse_phase_times("").empty());
  CHECK_THROWS_WITH(parse_phase_times("forwards=1s"),
                    Catch::Contains("'forwards'") && Catch::Contains("forward"));
  CHECK_THROWS_WITH(parse_phase_times("forward=-1s"), Catch::Contains("at least 0"));
  CHECK_THROWS_WITH(parse_phase_times("fast"), Catch::Contains("phase=time"));
  CHECK_THROWS_AS(parse_phase_times("forward=1"), InputError);
}

TEST_CASE("settings of a device change the estimate: half the efficiency takes twice as long, memory grows") {
  PredictionRequest asked = request("xeon-gold-6148:compute_efficiency=0.2,memory_efficiency=0.2", "");
  asked.costs.phases = {};
  const Result fast = predict(asked);
  asked.costs.device = "xeon-gold-6148:compute_efficiency=0.1,memory_efficiency=0.1,process=100MiB";
  const Result slow = predict(asked);
  CHECK(slow.median_step_time_s() == Approx(2.0 * fast.median_step_time_s()));
  CHECK(slow.memory[0].peak_bytes == Approx(fast.memory[0].peak_bytes + 100.0 * kMebi));
  CHECK(slow.configuration.device == asked.costs.device);
  asked.costs.device = "xeon-gold-6148:compute_eficiency=0.1";
  CHECK_THROWS_WITH(predict(asked), Catch::Contains("'compute_efficiency'"));
  asked.costs.device = "xeon-gold-6148:compute_efficiency=1.1";
  CHECK_THROWS_WITH(predict(asked), Catch::Contains("'1.1'"));
}

TEST_CASE(
    "gradients that zero_grad frees are taken by the first backward of their segment and given up at the "
    "end") {
  const Model model = load_model("bert-base");
  TrainingConfig config;
  config.world_size = 4;
  config.batch = 8;
  config.micro_batches = 2;
  for (const char* strategy : {"pipeline", "fsdp", "ddp"}) {
    INFO(strategy);
    Schedule schedule = build_schedule(strategy, model, config);
    const auto held_by = [](const std::vector<MemoryChange>& changes) {
      double total = 0.0;
      for (const MemoryChange& change : changes)
        if (change.category == MemoryCategory::kGradients) total += change.size.count();
      return total;
    };
    const auto balance = [&] {
      double total = 0.0;
      for (const Op& op : schedule.programs.front().ops) total += held_by(op.memory);
      return total;
    };
    const double held = held_by(schedule.programs.front().resident);
    CHECK(held > 0.0);
    CHECK(balance() == Approx(0.0).margin(1.0));
    free_gradients(schedule, model);
    CHECK(held_by(schedule.programs.front().resident) == 0.0);
    CHECK(balance() == Approx(0.0).margin(1.0));
    CHECK(schedule.programs.front().ops.back().memory.back().at_end);
    CHECK(schedule.programs.front().ops.back().memory.back().size.count() == Approx(-held));
  }
}

TEST_CASE("a tied weight has the head's gradient from the head's backward on, the embedding's, and their sum",
          "[replay]") {
  const std::string sizes = "llama:layers=2,hidden=64,heads=4,feed_forward=64,vocabulary=2048,sequence=8";
  const double table = 4.0 * 2048 * 64;
  TrainingConfig config;
  config.batch = config.micro_batches = 2;
  const auto gradients = [&](const std::string& tied) {
    const Model model = load_model(sizes + tied);
    Schedule schedule = build_schedule("single", model, config);
    free_gradients(schedule, model);
    std::vector<double> held;  // while each backward runs, and after it
    double live = 0.0;
    for (const Op& op : schedule.programs.front().ops) {
      const auto* compute = std::get_if<Compute>(&op.action);
      for (const bool at_end : {false, true}) {
        for (const MemoryChange& change : op.memory)
          if (change.category == MemoryCategory::kGradients && change.at_end == at_end)
            live += change.size.count();
        if (compute != nullptr && compute->phase == Phase::kBackward) held.push_back(live);
      }
    }
    return held;
  };
  const std::vector<double> own = gradients(""), tied = gradients(",tied=1");
  REQUIRE(own.size() == 16);  // head, two blocks and embedding of two micro-batches
  REQUIRE(tied.size() == own.size());
  const std::vector<double> more{0, 0, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, 0, 0, 2, -1};
  for (std::size_t i = 0; i < own.size(); ++i) {
    INFO(i);
    CHECK(tied[i] - own[i] == Approx(more[i] * table));
  }
}

}  // namespace stepcast::phase_times_test

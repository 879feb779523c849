#include <catch2/catch.hpp>
#include <optional>

#include "runner/engine/torch_engine.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/strategy.hpp"
#include "tests/runner/as_ranks.hpp"

/// Steps of a rank on a stand-in for a device: this host, which computes while it issues, by a clock that is
/// three times as fast.
namespace stepcast::device_steps_test {

namespace {

class SlowDevice final : public DeviceStream {
 public:
  static constexpr int kSlower = 3;

  [[nodiscard]] std::string device() const override { return "a slow device"; }
  [[nodiscard]] std::string torch_name() const override { return "cpu"; }
  [[nodiscard]] std::string bus() const override { return ""; }
  void restart() override {
    marks_.clear();
    origin_ = Clock::now();
  }
  std::size_t record_event() override {
    marks_.push_back(Clock::now());
    return marks_.size() - 1;
  }
  void drain() override { CHECK_FALSE(held_); }
  Clock::time_point time_of(std::size_t mark) override {
    return origin_ + kSlower * (marks_.at(mark) - origin_);
  }
  void hold(std::chrono::milliseconds /*at_most*/) override {
    held_ = true;
    ++holds;
  }
  void release() override { held_ = false; }

  int holds = 0;

 private:
  std::vector<Clock::time_point> marks_;
  Clock::time_point origin_;
  bool held_ = false;
};

}  // namespace

TEST_CASE("on a device a measured step has what it computes and what its host issues, phase by phase") {
  const Model model = load_model("netflix-mlp");
  SlowDevice device;
  MeasureOptions options;
  options.batches = {4096, 8192};  // phases beside which a few us for reading clocks do not count
  options.steps = 7;
  options.warmup_steps = 1;
  options.budget_s = 0.0;
  options.accumulating = true;
  options.device = &device;
  const Trace trace = measure_trace(model, options);
  CHECK(trace.problem().empty());
  CHECK(trace.precision == "fp32");
  REQUIRE(trace.entries.size() == 2);  // one pace
  std::size_t steps = 0;
  for (const auto* entries : {&trace.entries, &trace.rejected})
    for (const TraceEntry& entry : *entries) steps += entry.steps();
  CHECK(steps == 14);
  const int phases = 2 + 4 * static_cast<int>(model.segments.size());
  CHECK(device.holds == phases * 14);
  for (const TraceEntry& entry : trace.entries) {
    REQUIRE(entry.pace == StepContext::kContinuous);
    CHECK(entry.native_step_s.size() == entry.steps());
    for (std::size_t i = 0; i < model.segments.size(); ++i) {
      // As long on the blocked device; the issue is the shorter one of a blocked and a free device's.
      const double issued = SlowDevice::kSlower * median(entry.segments[i].backward_issue_s);
      CHECK(median(entry.segments[i].backward_s) > 0.95 * issued);
      CHECK(entry.segments[i].grad_ready_fraction.size() == model.segments[i].parameters.size());
    }
    // fc1 leaves relu's output.
    CHECK(entry.segments[0].saved_bytes == entry.batch * 128 * 4);
  }
}

TEST_CASE("time that is over ends a measurement after five steps of each batch size") {
  MeasureOptions options;
  options.batches = {4, 8};
  options.steps = 1000;
  options.warmup_steps = 1;
  options.limit_s = 1e-6;
  const Trace trace = measure_trace(load_model("netflix-mlp"), options);
  for (const TraceEntry& entry : trace.entries) CHECK(entry.steps() <= 5);
}

TEST_CASE("a run on a device trains as one without, and its operations are where the device ran them") {
  const Model model = load_model("netflix-mlp");
  TrainingConfig training;
  training.batch = 8;
  const Schedule schedule = build_schedule("single", model, training);
  SlowDevice device;
  RunOptions options;
  options.batch = 8;
  options.steps = 3;
  options.warmup_steps = 1;
  std::optional<Result> plain, on_device;
  as_sessions(1, [&](RankSession& session) { plain = run_schedule(model, schedule, session, options); });
  options.device = &device;
  as_sessions(1, [&](RankSession& session) { on_device = run_schedule(model, schedule, session, options); });
  CHECK(on_device->loss == plain->loss);
  REQUIRE(on_device->spans.size() == schedule.program(0).ops.size());
  for (std::size_t i = 1; i < on_device->spans.size(); ++i)
    CHECK(on_device->spans[i].start_s == Approx(on_device->spans[i - 1].end_s).margin(1e-9));
  const auto parameters = static_cast<double>(model.parameter_count());
  CHECK(on_device->memory.front().at_peak_bytes.at("parameters") == 4.0 * parameters);
  CHECK(on_device->memory.front().peak_bytes >= 8.0 * parameters);
}

}  // namespace stepcast::device_steps_test

#include "runner/execute/rank_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/clocks.hpp"
#include "core/ranges.hpp"
#include "runner/execute/clock_alignment.hpp"
#include "runner/execute/rank_watch.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
namespace {

/// The step whose slowest rank is the median one (the lower of the two middle ones).
std::size_t median_step(const std::vector<std::vector<double>>& step_time_s) {
  std::vector<std::pair<double, std::size_t>> slowest;
  for (std::size_t step = 0; step < step_time_s.front().size(); ++step)
    slowest.emplace_back(largest_of(step_time_s, [&](const auto& rank) { return rank[step]; }), step);
  std::ranges::sort(slowest);
  return slowest[(slowest.size() - 1) / 2].second;
}

/// The records of one rank: a few numbers per step and two times per operation, in memory allocated before
/// the first step.
class RankLog {
 public:
  RankLog(const Schedule& schedule, RankSession& session, const StepLoop& loop)
      : schedule_(schedule),
        program_(schedule.program(session.ranks.rank)),
        rank_(session.ranks.rank),
        shown_steps_(loop.shown_steps) {
    const auto steps = static_cast<std::size_t>(loop.steps);
    warmup_step_time_s_.reserve(loop.warmup_steps);
    start_s_.reserve(steps);
    step_time_s_.reserve(steps);
    loss_.reserve(steps);
    stamps_.reserve(steps * program_.ops.size());
    before_ = compare_with_rank_0(session);
  }

  /// \param computing nothing if the program does not measure it
  void add(int step, const Stamp& whole, const std::vector<Stamp>& stamps, double loss,
           const std::optional<ComputingTime>& computing) {
    const double length = clock_s(whole.end) - clock_s(whole.start);
    if (step < 0) return warmup_step_time_s_.push_back(length);
    start_s_.push_back(clock_s(whole.start));
    step_time_s_.push_back(length);
    loss_.push_back(loss);
    if (computing) computing_.push_back(*computing);
    stamps_.insert(stamps_.end(), stamps.begin(), stamps.end());
  }

  /// Gathers the records of all ranks; every rank calls it. \param bytes_sent by this rank in one measured
  /// step
  [[nodiscard]] Result report(RankSession& session, double bytes_sent, const MemoryBytes& peak) const {
    const std::size_t steps = step_time_s_.size();
    const ClockLine clock(before_, compare_with_rank_0(session));
    std::vector<double> mine = step_time_s_;
    mine.insert(mine.end(), {bytes_sent, clock.error_s});
    mine.insert(mine.end(), start_s_.begin(), start_s_.end());
    const auto all = session.control->all_gather_numbers("step times", mine);

    Result result;
    result.origin = Origin::kMeasured;
    for (const std::vector<double>& theirs : all)
      result.step_time_s.emplace_back(theirs.begin(), theirs.begin() + steps);
    result.bytes_sent_per_rank = largest_of(all, [&](const auto& theirs) { return theirs[steps]; });
    const double error_s = largest_of(all, [&](const auto& theirs) { return theirs[steps + 1]; });
    const std::size_t step = median_step(result.step_time_s);
    const double start_of_rank_0 = all.front()[steps + 2 + step];
    if (error_s > 0.0)
      result.notes["clocks"] = "spans of other hosts are aligned with rank 0's clock to within " +
                               to_text(Seconds(error_s)) + ", half the smallest round trip";
    Result notes;
    notes.spans = spans(step, [&](double own_s) { return clock.on_rank_0(own_s) - start_of_rank_0; });
    notes.breakdown = {median_breakdown()};
    notes.loss = loss_;
    notes.memory = {memory_use(peak)};
    const std::vector<std::string> texts = session.control->gather("results", nlohmann::json(notes).dump());
    result.warmup_step_time_s = warmup_step_time_s_;
    result.loss.assign(texts.empty() ? 0 : steps, 0.0);
    int losses = 0;  // ranks that compute one: the last stages of pipelines
    for (std::size_t r = 0; r < texts.size(); ++r) {
      const auto theirs = nlohmann::json::parse(texts[r]).get<Result>();
      result.spans.insert(result.spans.end(), theirs.spans.begin(), theirs.spans.end());
      result.breakdown.push_back(theirs.breakdown.front());
      result.memory.push_back(theirs.memory.front());
      if (!computes(schedule_.program(static_cast<int>(r)), Phase::kLoss)) continue;
      ++losses;
      for (std::size_t i = 0; i < steps; ++i) result.loss[i] += theirs.loss[i];
    }
    for (double& loss : result.loss) loss /= std::max(1, losses);
    if (!shown_steps_.empty())
      result.shown.spans = shown(session, clock, all.front()[steps + 2 + *shown_steps_.begin()]);
    return result;
  }

  /// Step times without interference; empty if they are unknown on some rank. All ranks call it.
  [[nodiscard]] std::vector<double> steps_without_interference(RankSession& session) const {
    std::vector<double> mine;
    if (computing_.size() == step_time_s_.size())
      for (std::size_t step = 0; step < computing_.size(); ++step)
        mine.insert(mine.end(), {step_time_s_[step], computing_[step].wall_s, computing_[step].lost_s,
                                 computing_[step].queued_s});
    const auto all = session.control->all_gather_numbers("computing times", mine);
    std::vector<std::vector<double>> step_s;
    std::vector<std::vector<ComputingTime>> computing;
    // A busy neighbour delays every step that is longer than its pauses: the least delay seen is limited to
    // this.
    constexpr double kMostOwn = 0.04;
    double own_queued_s = std::numeric_limits<double>::infinity();
    if (std::ranges::any_of(all, [&](const auto& theirs) { return theirs.size() != mine.size(); })) return {};
    for (std::size_t i = 0; i < mine.size(); i += 4) {
      step_s.push_back(transformed(all, [&](const auto& theirs) { return theirs[i]; }));
      computing.push_back(transformed(all, [&](const auto& theirs) {
        return ComputingTime{theirs[i + 1], theirs[i + 2], theirs[i + 3]};
      }));
      const double queued_s = sum_of(computing.back(), &ComputingTime::queued_s);
      const double longest_s = *std::ranges::max_element(step_s.back());
      own_queued_s = std::min({own_queued_s, queued_s, kMostOwn * longest_s});
    }
    return transformed(whole_numbers(0, step_s.size()), [&](int step) {
      return step_without_interference_s(step_s[step], computing[step], own_queued_s);
    });
  }

 private:
  /// Spans of one step. \param time converts seconds of this rank's steady clock
  template <class Time>
  [[nodiscard]] std::vector<Span> spans(std::size_t step, const Time& time) const {
    std::vector<Span> result;
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Stamp& stamp = stamps_[step * program_.ops.size() + i];
      result.push_back(span_of(rank_, program_.ops[i], time(clock_s(stamp.start)), time(clock_s(stamp.end))));
    }
    return result;
  }

  /// Spans of the requested steps, of all ranks, complete at rank 0; every rank calls it.
  [[nodiscard]] std::vector<Span> shown(RankSession& session, const ClockLine& clock, double origin_s) const {
    std::vector<Span> mine;
    for (const int step : shown_steps_)
      for (Span& span : spans(step, [&](double own_s) { return clock.on_rank_0(own_s) - origin_s; })) {
        span.step = step;
        mine.push_back(std::move(span));
      }
    std::vector<Span> all;
    for (const std::string& text : session.control->gather("timeline", nlohmann::json(mine).dump()))
      for (Span& span : nlohmann::json::parse(text).get<std::vector<Span>>()) all.push_back(std::move(span));
    return all;
  }

  [[nodiscard]] Breakdown median_breakdown() const {
    std::vector<Breakdown> steps;
    for (std::size_t step = 0; step < step_time_s_.size(); ++step)
      steps.push_back(make_breakdown(spans(step, [&](double own_s) { return own_s - start_s_[step]; }), rank_,
                                     step_time_s_[step]));
    Breakdown result;
    for (const auto& [name, part] : breakdown_parts()) result.*part = median(transformed(steps, part));
    return result;
  }

  [[nodiscard]] MemoryUse memory_use(const MemoryBytes& peak) const {
    MemoryUse use;
    use.rank = rank_;
    use.peak_bytes = total(peak);
    for (const auto& row : kMemoryCategories) use.at_peak_bytes[row.name] = peak[row.value];
    return use;
  }

  const Schedule& schedule_;
  const Program& program_;
  int rank_;
  std::set<int> shown_steps_;
  ClockOffset before_;  ///< before the first step
  std::vector<double> warmup_step_time_s_;
  std::vector<double> start_s_;           ///< by step, in seconds of the steady clock
  std::vector<double> step_time_s_;       ///< by step
  std::vector<double> loss_;              ///< by step
  std::vector<ComputingTime> computing_;  ///< by step; empty if the program does not measure it
  std::vector<Stamp> stamps_;             ///< step after step
};

/// Watches the machine during the measured steps of a rank.
class StepWatch {
 public:
  StepWatch(RankSession& session, const StepLoop& loop)
      : session_(session), loop_(loop), watch_(session, loop.threads) {}

  /// Called before the first measured step. Rank 0's latest step determines after which steps all ranks look.
  /// \param step_s 0: none yet
  void begin(double step_s) {
    constexpr double kBetweenS = 0.5;
    int block = loop_.steps;
    if (loop_.watches_machine && !watch_.crowded() && step_s > 0.0)
      block = static_cast<int>(std::clamp(std::ceil(kBetweenS / step_s), 1.0, static_cast<double>(block)));
    const bool corrects =
        loop_.watches_machine && !watch_.crowded() && loop_.threads == 1 && step_s >= kLongStepS;
    const auto all = session_.control->all_gather_numbers("steps between looks",
                                                          {static_cast<double>(block), corrects ? 1.0 : 0.0});
    block_ = static_cast<int>(all.front()[0]);
    corrects_steps_ = all.front()[1] != 0.0;
  }
  /// True if step times without interference are computed; equal on all ranks.
  [[nodiscard]] bool corrects_steps() const { return corrects_steps_; }
  void restart() { watch_.begin(); }
  void after(int step) {
    if (step < 0 || ((step + 1) % block_ != 0 && step + 1 != loop_.steps)) return;
    const MachineState state = watch_.end(all_ranks(session_.ranks.world_size));
    own_.insert(own_.end(), {state.probe_per_s, state.lost_fraction});
  }

  /// State of the rank that lost most CPU time. All ranks call it.
  [[nodiscard]] RunMachine report() const {
    RunMachine machine{block_, {}};
    const auto all = session_.control->all_gather_numbers("machine", own_);
    for (std::size_t i = 0; i < own_.size(); i += 2)
      machine.log.add(slowest_probe(transformed(all, [&](const auto& theirs) { return theirs[i]; })),
                      largest_of(all, [&](const auto& theirs) { return theirs[i + 1]; }));
    return machine;
  }

 private:
  RankSession& session_;
  const StepLoop& loop_;
  RankWatch watch_;
  int block_ = 1;
  bool corrects_steps_ = false;
  std::vector<double> own_;  ///< speed probe and lost_fraction of each look
};

}  // namespace

double step_without_interference_s(const std::vector<double>& step_s,
                                   const std::vector<ComputingTime>& computing, double own_queued_s) {
  const double ran_s =
      largest_of(computing, [](const ComputingTime& own) { return own.wall_s - own.lost_s; });
  const double computing_s = largest_of(computing, &ComputingTime::wall_s);
  const double queued_s = sum_of(computing, &ComputingTime::queued_s);
  const double waiting_s = *std::ranges::max_element(step_s) - computing_s;
  return ran_s + std::max(0.0, waiting_s - std::max(0.0, queued_s - own_queued_s));
}

Result run_steps(SteppedProgram& program, const Schedule& schedule, RankSession& session,
                 const StepLoop& loop) {
  Backend& backend = *session.backend;
  RankLog log(schedule, session, loop);
  StepWatch watch(session, loop);
  double latest_s = 0.0;
  std::uint64_t sent_before = 0;
  for (int step = -loop.warmup_steps; step < loop.steps; ++step) {
    if (step == 0) {
      sent_before = backend.bytes_sent();
      watch.begin(latest_s);
      if (watch.corrects_steps()) program.measure_computing();
      backend.barrier();
      program.forget_peak();
      watch.restart();
    }
    program.prepare();
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Stamp>& stamps = program.step();
    const Stamp whole{start, std::chrono::steady_clock::now()};
    program.settle();
    latest_s = clock_s(whole.end) - clock_s(whole.start);
    log.add(step, whole, stamps, program.loss(), program.computing());
    watch.after(step);
    loop.on_step(step, program.loss());
  }
  const double counted = static_cast<double>(backend.bytes_sent() - sent_before) / loop.steps;
  const std::optional<std::uint64_t> known = program.bytes_sent();
  Result result = log.report(session, known ? static_cast<double>(*known) : counted, program.peak());
  result.machine = watch.report();
  if (watch.corrects_steps()) result.machine.without_interference_s = log.steps_without_interference(session);
  return result;
}

std::string bucket_layout(const Model& model, const std::vector<Bucket>& buckets) {
  nlohmann::json layout = nlohmann::json::array();
  for (const Bucket& bucket : buckets) {
    const auto names = transformed(bucket.tensors, [&](int tensor) { return model.parameters[tensor].name; });
    layout.push_back({{"bytes", static_cast<std::int64_t>(bucket.size.count())}, {"tensors", names}});
  }
  return layout.dump();
}

}  // namespace stepcast

#include "runner/execute/rank_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runner/control/clocks.hpp"
#include "sim/schedule/operations.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

double to_seconds(Clock::time_point instant) {
  return std::chrono::duration<double>(instant.time_since_epoch()).count();
}

/// The step whose slowest rank is the median one (the lower of the two middle ones).
std::size_t median_step(const std::vector<std::vector<double>>& step_time_s) {
  std::vector<std::pair<double, std::size_t>> slowest;
  for (std::size_t step = 0; step < step_time_s.front().size(); ++step) {
    double worst = 0.0;
    for (const std::vector<double>& rank : step_time_s) worst = std::max(worst, rank[step]);
    slowest.emplace_back(worst, step);
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[(slowest.size() - 1) / 2].second;
}

}  // namespace

RankLog::RankLog(const Schedule& schedule, int rank, int warmup_steps, int steps)
    : schedule_(schedule), program_(schedule.program(rank)) {
  warmup_step_time_s_.reserve(static_cast<std::size_t>(warmup_steps));
  start_s_.reserve(static_cast<std::size_t>(steps));
  step_time_s_.reserve(static_cast<std::size_t>(steps));
  loss_.reserve(static_cast<std::size_t>(steps));
  stamps_.reserve(static_cast<std::size_t>(steps) * program_.ops.size());
}

void RankLog::add(int step, Clock::time_point start, Clock::time_point end, const std::vector<Stamp>& stamps,
                  double loss) {
  const double length = to_seconds(end) - to_seconds(start);
  if (step < 0) {
    warmup_step_time_s_.push_back(length);
    return;
  }
  start_s_.push_back(to_seconds(start));
  step_time_s_.push_back(length);
  loss_.push_back(loss);
  stamps_.insert(stamps_.end(), stamps.begin(), stamps.end());
}

void RankLog::compare_clocks(RankSession& session) {
  before_ = compare_with_rank_0(session, session.place.hosts, wall_clock_s);
}

std::vector<Span> RankLog::spans(int rank, std::size_t step, double origin_s) const {
  std::vector<Span> result;
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    const Stamp& stamp = stamps_[step * program_.ops.size() + i];
    Span span;
    span.rank = rank;
    span.stream = op.stream;
    span.kind = operation_of(op).span;
    span.name = op.name;
    span.start_s = to_seconds(stamp.start) - origin_s;
    span.end_s = to_seconds(stamp.end) - origin_s;
    result.push_back(std::move(span));
  }
  return result;
}

Breakdown RankLog::median_breakdown(int rank) const {
  constexpr std::array kParts{&Breakdown::compute_s,
                              &Breakdown::exposed_communication_s,
                              &Breakdown::overlapped_communication_s,
                              &Breakdown::input_and_host_s,
                              &Breakdown::optimizer_and_copies_s,
                              &Breakdown::idle_s};
  std::array<std::vector<double>, kParts.size()> samples;
  for (std::size_t step = 0; step < step_time_s_.size(); ++step) {
    const Breakdown breakdown = make_breakdown(spans(rank, step, start_s_[step]), rank, step_time_s_[step]);
    for (std::size_t part = 0; part < kParts.size(); ++part) samples[part].push_back(breakdown.*kParts[part]);
  }
  Breakdown result;
  for (std::size_t part = 0; part < kParts.size(); ++part) result.*kParts[part] = median(samples[part]);
  return result;
}

MemoryUse RankLog::memory_use(int rank) const {
  MemoryUse use;
  use.rank = rank;
  use.peak_bytes = total(memory_);
  for (std::size_t i = 0; i < memory_.size(); ++i)
    use.at_peak_bytes[to_text(static_cast<MemoryCategory>(i))] = memory_[i];
  return use;
}

Result RankLog::report(RankSession& session) const {
  const std::size_t steps = step_time_s_.size();
  const int rank = session.ranks.rank;
  const ClockLine clock(before_, compare_with_rank_0(session, session.place.hosts, wall_clock_s));
  std::vector<double> mine = step_time_s_;
  mine.insert(mine.end(), {bytes_sent_, clock.error_s()});
  mine.insert(mine.end(), start_s_.begin(), start_s_.end());
  const auto all = session.control->all_gather_numbers("step times", mine);

  Result result;
  result.origin = Origin::kMeasured;
  double error_s = 0.0;
  for (const std::vector<double>& theirs : all) {
    const auto end = theirs.begin() + static_cast<std::ptrdiff_t>(steps);
    result.step_time_s.emplace_back(theirs.begin(), end);
    result.bytes_sent_per_rank = std::max(result.bytes_sent_per_rank, end[0]);
    error_s = std::max(error_s, end[1]);
  }
  const std::size_t step = median_step(result.step_time_s);
  const double start_of_rank_0 = all.front()[steps + 2 + step];
  if (error_s > 0.0)
    result.notes["clocks"] = "spans of other hosts are aligned with rank 0's clock to within " +
                             to_text(Seconds(error_s)) + ", half the smallest round trip";
  Result notes;
  notes.spans = spans(rank, step, 0.0);
  for (Span& span : notes.spans) {
    span.start_s = clock.on_rank_0(span.start_s) - start_of_rank_0;
    span.end_s = clock.on_rank_0(span.end_s) - start_of_rank_0;
  }
  notes.breakdown = {median_breakdown(rank)};
  notes.loss = loss_;
  notes.memory.push_back(memory_use(rank));
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
  return result;
}

}  // namespace stepcast

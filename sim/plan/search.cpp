#include "sim/plan/search.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>

#include "core/error.hpp"

namespace stepcast {
namespace {

Breakdown mean_of(const std::vector<Breakdown>& ranks) {
  Breakdown mean;
  for (const Breakdown& rank : ranks)
    for (double Breakdown::*part :
         {&Breakdown::compute_s, &Breakdown::exposed_communication_s, &Breakdown::overlapped_communication_s,
          &Breakdown::input_and_host_s, &Breakdown::optimizer_and_copies_s, &Breakdown::idle_s})
      mean.*part += rank.*part / static_cast<double>(ranks.size());
  return mean;
}

/// Adds how long it lives.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

/// One search: what is known of every plan so far.
class PlanSearch {
 public:
  PlanSearch(PlanModels& models, PlanBounds& bounds, const PlanRequest& request)
      : models_(models), bounds_(bounds), request_(request) {}

  PlanOutcome run() {
    for (PlanRecord own : request_.own) {
      replay(own);
      if (!own.refusal.empty()) throw InputError(own.name + ": " + own.refusal);
      keep(std::move(own));
    }
    gather();
    for (PlanRecord& record : waiting_) {
      if ((request_.everything || promises(record)) && may_fit(record)) replay(record);
      keep(std::move(record));
    }
    if (!request_.everything) improve();
    if (ranked().empty()) replay_smallest();
    return outcome();
  }

 private:
  [[nodiscard]] double score_of(const Plan& plan, double step_s) const {
    return score(models_.problem(), models_.device(), plan, step_s);
  }
  [[nodiscard]] double bound_of(const PlanRecord& record) const {
    return score_of(record.plan, record.bound.step_s);
  }

  /// All plans, best bound of time first; equal ones as they were enumerated.
  void gather() {
    const Timed timed(bounds_s_);
    enumerate_plans(
        models_,
        [this](const Plan& plan) {
          ++counts_.enumerated;
          waiting_.push_back({.plan = plan, .bound = {.step_s = bounds_.step_s(plan)}});
        },
        request_.everything);
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [this](const auto& a, const auto& b) { return bound_of(a) < bound_of(b); });
  }

  /// Whether a plan may be among the best, and may still be replayed.
  bool promises(const PlanRecord& record) {
    if (bound_of(record) >= threshold()) {
      ++counts_.too_slow;
      return false;
    }
    if (counts_.replayed < request_.most_replays) return true;
    open_score_ = std::min(open_score_.value_or(bound_of(record)), bound_of(record));
    return false;
  }

  bool may_fit(PlanRecord& record) {
    record.bound.memory_bytes = bounds_.memory_bytes(record.plan);
    if (record.bound.memory_bytes <= bounds_.memory_limit()) return true;
    ++counts_.too_large;
    return false;
  }

  /// What a bound must be below; infinite while there are fewer of the best than are asked for.
  [[nodiscard]] double threshold() const {
    return best_.size() < request_.best ? std::numeric_limits<double>::infinity()
                                        : (1.0 - kPlanSlack) * *best_.begin();
  }

  /// Asks `predict`.
  void ask(PlanRecord& record) {
    const Timed timed(replays_s_);
    try {
      PredictionRequest question = request_of(models_.problem(), record.plan);
      question.brief = true;
      question.known = &known_;
      record.forecast = forecast_of(record, predict(question));
    } catch (const Error& error) {
      record.refusal = error.what();
      ++counts_.refused;
      return;
    }
    ++counts_.replayed;
    record.fits = record.forecast->memory_bytes <= bounds_.memory_limit();
  }

  void replay(PlanRecord& record) {
    ask(record);
    if (record.fits && record.name.empty()) count_among_best(record);
  }

  void count_among_best(const PlanRecord& record) {
    best_.insert(score_of(record.plan, record.forecast->step_s));
    if (best_.size() > request_.best) best_.erase(std::prev(best_.end()));
  }

  PlanForecast forecast_of(const PlanRecord& record, const Result& result) {
    PlanForecast forecast;
    forecast.step_s = result.median_step_time_s();
    forecast.samples_per_s = models_.problem().samples / forecast.step_s;
    forecast.mean = mean_of(result.breakdown);
    forecast.bubble = result.bubble_fraction();
    // Of a large world, results say the memory of two ranks alone.
    forecast.memory_bytes = record.bound.memory_bytes;
    for (const MemoryUse& use : result.memory)
      forecast.memory_bytes = std::max(forecast.memory_bytes, use.peak_bytes);
    const DeviceModel& device = models_.device();
    if (!device.gpu) return forecast;
    Flop flop;
    for (const Segment& segment : models_.whole().segments) flop += segment.forward + segment.backward;
    forecast.mfu = models_.problem().samples * flop.count() / forecast.step_s /
                   record.plan.number("world-size") /
                   device.peak.at(device_dtype(models_.problem().precision.compute)).count();
    return forecast;
  }

  /// Variants of the best plans, and of what is the best then.
  void improve() {
    std::set<OptionTexts> tried;
    for (bool found = true; found;) {
      found = false;
      for (const PlanRecord& record : ranked())
        if (record.name.empty() && tried.insert(record.plan.values).second)
          found = try_variants(record) || found;
    }
  }

  /// Keeps those that are better than the plan itself, by more than what rounding makes.
  bool try_variants(const PlanRecord& record) {
    constexpr double kWorth = 1e-3;
    const double own = score_of(record.plan, record.forecast->step_s);
    bool found = false;
    for (const Plan& plan : variants_of(models_, record.plan)) {
      if (!variants_.insert(plan.values).second) continue;
      ++counts_.enumerated;
      PlanRecord variant{.plan = plan, .bound = {.step_s = bounds_.step_s(plan)}};
      if (promises(variant) && may_fit(variant)) ask(variant);
      const bool better = variant.fits && score_of(plan, variant.forecast->step_s) < (1.0 - kWorth) * own;
      if (variant.fits && !better) continue;
      if (better) count_among_best(variant);
      found = found || better;
      keep(std::move(variant));
    }
    return found;
  }

  /// Where nothing fits: what does so most nearly.
  void replay_smallest() {
    const auto smallest = std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
      return a.bound.memory_bytes < b.bound.memory_bytes;
    });
    if (smallest != kept_.end() && !smallest->forecast && smallest->refusal.empty()) replay(*smallest);
  }

  void keep(PlanRecord record) { kept_.push_back(std::move(record)); }

  /// The best that fit, best first.
  [[nodiscard]] std::vector<PlanRecord> ranked() const {
    std::vector<PlanRecord> all;
    for (const PlanRecord& record : kept_)
      if (record.fits) all.push_back(record);
    std::stable_sort(all.begin(), all.end(), [this](const PlanRecord& a, const PlanRecord& b) {
      return score_of(a.plan, a.forecast->step_s) < score_of(b.plan, b.forecast->step_s);
    });
    if (all.size() > request_.best) all.resize(request_.best);
    return all;
  }

  PlanOutcome outcome() {
    PlanOutcome outcome{.plans = std::move(kept_),
                        .counts = counts_,
                        .open_score = open_score_,
                        .bounds_s = bounds_s_,
                        .replays_s = replays_s_};
    std::stable_sort(
        outcome.plans.begin(), outcome.plans.end(), [this](const PlanRecord& a, const PlanRecord& b) {
          if (a.fits != b.fits) return a.fits;
          return a.fits && score_of(a.plan, a.forecast->step_s) < score_of(b.plan, b.forecast->step_s);
        });
    outcome.ranked = static_cast<std::size_t>(std::count_if(outcome.plans.begin(), outcome.plans.end(),
                                                            [](const PlanRecord& one) { return one.fits; }));
    return outcome;
  }

  PlanModels& models_;
  PlanBounds& bounds_;
  const PlanRequest& request_;
  KnownInputs known_;
  PlanCounts counts_;
  std::vector<PlanRecord> waiting_, kept_;
  std::multiset<double> best_;  ///< scores
  std::set<OptionTexts> variants_;
  std::optional<double> open_score_;
  double bounds_s_ = 0.0, replays_s_ = 0.0;
};

}  // namespace

double score(const PlanProblem& problem, const DeviceModel& device, const Plan& plan, double step_s) {
  if (problem.objective == PlanObjective::kTime) return step_s;
  const double device_s = step_s * plan.number("world-size");
  return problem.objective == PlanObjective::kCost ? device_s : device_s * device.power.count();
}

PlanOutcome search_plans(PlanModels& models, PlanBounds& bounds, const PlanRequest& request) {
  return PlanSearch(models, bounds, request).run();
}

int ranks_that_fit(const PlanProblem& problem) {
  constexpr int kMost = 65'536;
  for (PlanProblem larger = problem; larger.ranks <= kMost; larger.ranks *= 2) {
    larger.objective = PlanObjective::kTime;
    PlanModels models(larger);
    PlanBounds bounds(models, false);
    bool fits = false;
    enumerate_plans(
        models, [&](const Plan& plan) { fits = fits || bounds.memory_bytes(plan) <= bounds.memory_limit(); });
    if (fits) return larger.ranks;
  }
  return 0;
}

}  // namespace stepcast

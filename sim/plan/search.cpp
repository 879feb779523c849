#include "sim/plan/search.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <queue>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/processes.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kAtOnce = 4;  ///< plans that are replayed before the threshold is updated
constexpr char kReplayed = 'a', kFailed = 'r';

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Numbers as bytes that another process can return.
std::string packed(const std::vector<double>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}
std::vector<double> unpacked(std::string_view bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// Ranks compute while overlapped communication passes.
double own_time_s(const Breakdown& parts) {
  return parts.compute_s + parts.exposed_communication_s + parts.input_and_host_s +
         parts.optimizer_and_copies_s + parts.idle_s;
}

/// Positions in the numbers of a replay: step time, operations, parts of the mean breakdown, peak memory per
/// stage.
constexpr std::size_t kOperations = 1, kFirstPart = 2;

std::vector<double> numbers_of(const Result& result, int stages) {
  Breakdown mean;
  for (const Breakdown& rank : result.breakdown)
    for (const auto& [name, part] : breakdown_parts())
      mean.*part += rank.*part / static_cast<double>(result.breakdown.size());
  // A rank that ends its first step early waits in the next one.
  mean.idle_s += result.median_step_time_s() - own_time_s(mean);
  std::vector<double> numbers{result.median_step_time_s(), result.forecast.operations};
  for (const auto& [name, part] : breakdown_parts()) numbers.push_back(mean.*part);
  const std::size_t memory = numbers.size();
  numbers.resize(memory + static_cast<std::size_t>(stages), 0.0);
  const int ranks_of_stage = result.configuration.world_size / stages;
  for (const MemoryUse& use : result.memory) {
    double& most = numbers[memory + static_cast<std::size_t>(use.rank / ranks_of_stage)];
    most = std::max(most, use.peak_bytes);
  }
  return numbers;
}

PlanForecast forecast_of(const std::vector<double>& numbers) {
  PlanForecast forecast{.step_s = numbers[0], .operations = numbers[kOperations]};
  std::size_t at = kFirstPart;
  for (const auto& [name, part] : breakdown_parts()) forecast.mean.*part = numbers[at++];
  forecast.stage_memory_bytes.assign(numbers.begin() + at, numbers.end());
  return forecast;
}

/// State of one search.
class PlanSearch {
 public:
  PlanSearch(PlanModels& models, PlanBounds& bounds, const PlanRequest& request)
      : models_(models), bounds_(bounds), request_(request) {}

  PlanOutcome run() {
    for (PlanRecord record : request_.user_plans) {
      replay_all({&record});
      if (!record.error.empty()) throw InputError("{}: {}", record.name, record.error);
      kept_.push_back(std::move(record));
    }
    gather();
    if (request_.everything) {
      for (PlanRecord& record : waiting_)
        if (may_fit(record)) replay_all({&record});
    } else {
      search();
    }
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(kept_));
    if (!request_.everything) improve();
    if (ranked().empty()) replay_smallest();
    return outcome();
  }

 private:
  [[nodiscard]] double bound_of(const PlanRecord& record) const {
    return score(models_, record.plan, record.bound.step_s);
  }
  [[nodiscard]] double score_of(const PlanRecord& record) const {
    return score(models_, record.plan, record.forecast->step_s);
  }
  /// Plans that fit come first, by their scores.
  [[nodiscard]] auto order() const {
    return [this](const PlanRecord& a, const PlanRecord& b) {
      return a.fits != b.fits ? a.fits : a.fits && score_of(a) < score_of(b);
    };
  }

  /// Collects all plans in ascending order of their time bounds; equal ones as they were enumerated.
  void gather() {
    const Clock::time_point start = Clock::now();
    enumerate_plans(
        models_, [this](const Plan& plan) { waiting_.push_back({.plan = plan}); }, request_.everything);
    counts_.enumerated = waiting_.size();
    bound_all();
    std::ranges::stable_sort(waiting_,
                             [this](const auto& a, const auto& b) { return bound_of(a) < bound_of(b); });
    bounds_s_ += seconds_since(start);
  }

  /// In several processes if there are many plans.
  void bound_all() {
    constexpr std::size_t kMany = 10'000;
    const auto jobs = static_cast<std::size_t>(waiting_.size() < kMany ? 1 : default_jobs());
    const auto parts = parallel_map(jobs, static_cast<int>(jobs), [&](std::size_t part) {
      std::vector<double> bounds;
      for (std::size_t i = waiting_.size() * part / jobs; i < waiting_.size() * (part + 1) / jobs; ++i)
        bounds.push_back(bounds_.step_s(waiting_[i].plan));
      return packed(bounds);
    });
    std::size_t i = 0;
    for (const std::string& part : parts)
      for (const double bound : unpacked(part)) waiting_[i++].bound.step_s = bound;
  }

  /// Takes the plan with the least bound: tightens the bound, and replays the plan if the bound is still the
  /// least.
  void search() {
    struct Entry {
      double bound = 0.0;
      std::size_t index = 0;
      bool tight = false;
      bool operator<(const Entry& other) const {  // the queue's first entry is the largest
        return std::tie(bound, index) > std::tie(other.bound, other.index);
      }
    };
    std::priority_queue<Entry> queue;
    for (std::size_t i = 0; i < waiting_.size(); ++i) queue.push({bound_of(waiting_[i]), i, false});
    std::vector<PlanRecord*> due;
    while (!queue.empty()) {
      const Entry entry = queue.top();
      queue.pop();
      PlanRecord& record = waiting_[entry.index];
      if (!may_be_best(record, due.size())) continue;
      if (entry.tight) {
        due.push_back(&record);
      } else if (may_fit(record)) {
        tighten(record);
        queue.push({bound_of(record), entry.index, true});
      }
      if (due.size() == kAtOnce) rank(std::exchange(due, {}));
    }
    rank(due);
  }

  void rank(const std::vector<PlanRecord*>& records) {
    replay_all(records);
    for (const PlanRecord* record : records)
      if (record->fits) count_among_best(*record);
  }

  void tighten(PlanRecord& record) {
    const Clock::time_point start = Clock::now();
    record.bound.step_s = bounds_.ordered_step_s(record.plan);
    bounds_s_ += seconds_since(start);
  }

  /// Whether a plan may be among the best and the budget allows its replay.
  /// \param due number of plans that are about to be replayed
  bool may_be_best(const PlanRecord& record, std::size_t due = 0) {
    if (bound_of(record) >= threshold()) {
      ++counts_.too_slow;
      return false;
    }
    const double all = static_cast<double>(counts_.replayed), soon = static_cast<double>(due),
                 most = static_cast<double>(request_.most_replays);
    const double operations = counts_.operations * (all > 0.0 ? 1.0 + soon / all : 1.0);
    if (all + soon < most && operations < kReplayOperations * most) return true;
    open_score_ = std::min(open_score_.value_or(bound_of(record)), bound_of(record));
    return false;
  }

  bool may_fit(PlanRecord& record) {
    record.bound.memory_bytes = bounds_.memory_bytes(record.plan);
    if (record.bound.memory_bytes <= bounds_.memory_limit()) return true;
    ++counts_.too_large;
    return false;
  }

  /// Score that a bound must be below; infinity until enough plans are ranked.
  [[nodiscard]] double threshold() const {
    return best_.size() < request_.best ? std::numeric_limits<double>::infinity()
                                        : (1.0 - kPlanSlack) * *best_.begin();
  }

  /// In child processes if the latest replays were long enough to pay for starting them.
  void replay_all(const std::vector<PlanRecord*>& records) {
    constexpr double kWorthProcess = 0.03;
    const Clock::time_point start = Clock::now();
    const int jobs = each_s_ > kWorthProcess ? default_jobs() : 1;
    const std::vector<std::string> answers =
        parallel_map(records.size(), jobs, [&](std::size_t i) { return answer(*records[i]); });
    for (std::size_t i = 0; i < records.size(); ++i) take(*records[i], answers[i]);
    const double seconds = seconds_since(start);
    if (!records.empty()) each_s_ = seconds / static_cast<double>(records.size());
    replays_s_ += seconds;
  }

  /// Numbers of the replay, or the error of `predict`.
  std::string answer(const PlanRecord& record) {
    try {
      return kReplayed + packed(replayed(record));
    } catch (const Error& error) {
      return kFailed + std::string(error.what());
    }
  }

  void take(PlanRecord& record, const std::string& answer) {
    if (answer.front() == kFailed) {
      record.error = answer.substr(1);
      ++counts_.failed;
      return;
    }
    record.forecast = completed(record, forecast_of(unpacked(std::string_view(answer).substr(1))));
    ++counts_.replayed;
    counts_.operations += record.forecast->operations;
    record.fits = record.forecast->memory_bytes <= bounds_.memory_limit();
  }

  void count_among_best(const PlanRecord& record) {
    best_.insert(score_of(record));
    if (best_.size() > request_.best) best_.erase(std::prev(best_.end()));
  }

  PlanForecast completed(const PlanRecord& record, PlanForecast forecast) {
    // Results of large worlds contain the memory of some ranks alone.
    forecast.memory_bytes = record.bound.memory_bytes;
    for (const double bytes : forecast.stage_memory_bytes)
      forecast.memory_bytes = std::max(forecast.memory_bytes, bytes);
    forecast.samples_per_s = models_.problem().samples / forecast.step_s;
    const DeviceModel& device = models_.device();
    if (!device.gpu) return forecast;
    Flop flop;
    for (const Segment& segment : models_.whole().segments) flop += segment.forward + segment.backward;
    forecast.mfu = forecast.samples_per_s * flop.count() / record.plan.number("world-size") /
                   device.peak.at(device_dtype(models_.problem().precision.compute)).count();
    return forecast;
  }

  std::vector<double> replayed(const PlanRecord& record) {
    constexpr int kFew = 3, kMany = 12;
    const int parts = record.plan.number("micro-batches"), round = record.plan.number("pipeline");
    if (parts <= kMany * round) return replayed(record, parts, 1);
    std::vector<double> numbers = replayed(record, (kFew + 1) * round, 0);
    const std::vector<double> before = replayed(record, kFew * round, 0);
    const double more = static_cast<double>(parts) / round - (kFew + 1);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] += i == kOperations ? before[i] : more * (numbers[i] - before[i]);
    return numbers;
  }

  /// A step with `parts` of its micro-batches, after warm-up steps. With many micro-batches the first step is
  /// like all others.
  std::vector<double> replayed(const PlanRecord& record, int parts, int warmup_steps) {
    PredictionRequest request = request_of(models_.problem(), record.plan);
    request.costs.batch = *request.costs.batch / request.training.micro_batches * parts;
    request.training.micro_batches = parts;
    request.replay.warmup_steps = warmup_steps;
    request.brief = true;
    request.known = &known_;
    return numbers_of(predict(request), record.plan.number("pipeline"));
  }

  /// Replays variants of the best plans until no variant becomes one of the best.
  void improve() {
    std::set<OptionTexts> tried;
    for (bool found = true; found;) {
      found = false;
      for (const PlanRecord& record : ranked())
        if (record.name.empty() && tried.insert(record.plan.values).second)
          found = try_variants(record) || found;
    }
  }

  /// Keeps variants that are better than the plan by more than rounding errors.
  bool try_variants(const PlanRecord& record) {
    constexpr double kWorth = 1e-3;
    std::vector<PlanRecord> all;
    for (const Plan& plan : variants_of(models_, record.plan)) {
      if (!variants_.insert(plan.values).second) continue;
      ++counts_.enumerated;
      all.push_back({.plan = plan, .bound = {.step_s = bounds_.ordered_step_s(plan)}});
    }
    std::vector<PlanRecord*> due;
    for (PlanRecord& variant : all)
      if (may_be_best(variant, due.size()) && may_fit(variant)) due.push_back(&variant);
    replay_all(due);
    bool found = false;
    for (PlanRecord& variant : all) {
      const bool better = variant.fits && score_of(variant) < (1.0 - kWorth) * score_of(record);
      if (variant.fits && !better) continue;
      if (better) count_among_best(variant);
      found = found || better;
      kept_.push_back(std::move(variant));
    }
    return found;
  }

  /// If no plan fits, replays the plan with the least memory.
  void replay_smallest() {
    const auto smallest = std::ranges::min_element(
        kept_, [](const auto& a, const auto& b) { return a.bound.memory_bytes < b.bound.memory_bytes; });
    if (smallest != kept_.end() && !smallest->forecast && smallest->error.empty()) replay_all({&*smallest});
  }

  /// Copies of the best plans that fit, best first.
  [[nodiscard]] std::vector<PlanRecord> ranked() const {
    std::vector<PlanRecord> all;
    std::ranges::copy_if(kept_, std::back_inserter(all),
                         [](const PlanRecord& record) { return record.fits; });
    std::ranges::stable_sort(all, order());
    if (all.size() > request_.best) all.resize(request_.best);
    return all;
  }

  PlanOutcome outcome() {
    std::ranges::stable_sort(kept_, order());
    const auto ranked = std::ranges::count_if(kept_, [](const auto& one) { return one.fits; });
    return {.plans = std::move(kept_),
            .ranked = static_cast<std::size_t>(ranked),
            .counts = counts_,
            .open_score = open_score_,
            .bounds_s = bounds_s_,
            .replays_s = replays_s_};
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
  double each_s_ =
      std::numeric_limits<double>::infinity();  ///< wall-clock time per replay of the latest ones
};

}  // namespace

double PlanForecast::bubble() const { return mean.idle_s / own_time_s(mean); }

double score(const PlanModels& models, const Plan& plan, double step_s) {
  const PlanObjective objective = models.problem().objective;
  if (objective == PlanObjective::kTime) return step_s;
  const double device_s = step_s * plan.number("world-size");
  return objective == PlanObjective::kCost ? device_s : device_s * models.device().power.count();
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

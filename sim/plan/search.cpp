#include "sim/plan/search.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/processes.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kAtOnce = 4;  ///< plans that are replayed before any of them is known
constexpr char kAnswered = 'a', kRefused = 'r';

constexpr std::array kTimeParts{
    &Breakdown::compute_s,        &Breakdown::exposed_communication_s, &Breakdown::overlapped_communication_s,
    &Breakdown::input_and_host_s, &Breakdown::optimizer_and_copies_s,  &Breakdown::idle_s};

Breakdown mean_of(const std::vector<Breakdown>& ranks) {
  Breakdown mean;
  for (const Breakdown& rank : ranks)
    for (double Breakdown::*part : kTimeParts) mean.*part += rank.*part / static_cast<double>(ranks.size());
  return mean;
}

/// Communication that is overlapped passes while a rank computes.
double own_time_s(const Breakdown& parts) {
  return parts.compute_s + parts.exposed_communication_s + parts.input_and_host_s +
         parts.optimizer_and_copies_s + parts.idle_s;
}

/// What a replay says, as numbers that another process can be told: step, operations, mean breakdown, memory of each stage.
class Replayed {
 public:
  Replayed(const Result& result, int stages) {
    Breakdown mean = mean_of(result.breakdown);
    // A rank that ends its first step early waits in the next one.
    mean.idle_s += result.median_step_time_s() - own_time_s(mean);
    numbers_ = {result.median_step_time_s(), result.operations};
    for (double Breakdown::*part : kTimeParts) numbers_.push_back(mean.*part);
    numbers_.resize(kMemory + static_cast<std::size_t>(stages), 0.0);
    const int ranks_of_stage = result.configuration.world_size / stages;
    for (const MemoryUse& use : result.memory) {
      double& most = numbers_[kMemory + static_cast<std::size_t>(use.rank / ranks_of_stage)];
      most = std::max(most, use.peak_bytes);
    }
  }
  explicit Replayed(const std::string& bytes) : numbers_(bytes.size() / sizeof(double)) {
    std::memcpy(numbers_.data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::string bytes() const {
    return {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(double)};
  }

  /// As from `before` to this one, for `more` times that.
  void go_on(const Replayed& before, double more) {
    for (std::size_t i = 0; i < numbers_.size(); ++i)
      numbers_[i] += i == kOperations ? before.numbers_[i] : more * (numbers_[i] - before.numbers_[i]);
  }

  [[nodiscard]] PlanForecast forecast() const {
    PlanForecast result{.step_s = numbers_[0], .operations = numbers_[kOperations]};
    for (std::size_t i = 0; i < kTimeParts.size(); ++i) result.mean.*kTimeParts[i] = numbers_[kMean + i];
    result.stage_memory_bytes.assign(numbers_.begin() + kMemory, numbers_.end());
    return result;
  }

 private:
  static constexpr std::size_t kOperations = 1, kMean = 2, kMemory = kMean + kTimeParts.size();
  std::vector<double> numbers_;
};

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
      replay_all({&own});
      if (!own.refusal.empty()) throw InputError(own.name + ": " + own.refusal);
      keep(std::move(own));
    }
    gather();
    if (request_.everything) {
      for (PlanRecord& record : waiting_)
        if (may_fit(record)) replay_all({&record});
    } else {
      search();
    }
    for (PlanRecord& record : waiting_) keep(std::move(record));
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
          waiting_.push_back({.plan = plan});
        },
        request_.everything);
    bound_all();
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [this](const auto& a, const auto& b) { return bound_of(a) < bound_of(b); });
  }

  /// Of many plans in several processes.
  void bound_all() {
    constexpr std::size_t kMany = 10'000;
    const auto jobs = static_cast<std::size_t>(waiting_.size() < kMany ? 1 : default_jobs());
    const auto answers = parallel_map(jobs, static_cast<int>(jobs), [&](std::size_t part) {
      std::vector<double> bounds;
      for (std::size_t i = waiting_.size() * part / jobs; i < waiting_.size() * (part + 1) / jobs; ++i)
        bounds.push_back(bounds_.step_s(waiting_[i].plan));
      return std::string(reinterpret_cast<const char*>(bounds.data()), bounds.size() * sizeof(double));
    });
    std::size_t i = 0;
    for (const std::string& answer : answers)
      for (std::size_t at = 0; at < answer.size(); at += sizeof(double))
        std::memcpy(&waiting_[i++].bound.step_s, answer.data() + at, sizeof(double));
  }

  /// Plans whose bound promises most first: its bound is made nearer, and if it still promises most it is replayed.
  void search() {
    struct Entry {
      double bound = 0.0;
      std::size_t index = 0;
      bool nearer = false;
      bool operator<(const Entry& other) const {  // of a queue whose first is the largest
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
      if (!promises(record, due.size())) continue;
      if (entry.nearer) {
        due.push_back(&record);
      } else if (may_fit(record)) {
        come_nearer(record);
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

  void come_nearer(PlanRecord& record) {
    const Timed timed(bounds_s_);
    record.bound.step_s = bounds_.ordered_step_s(record.plan);
  }

  /// Whether a plan may be among the best, and may still be replayed.
  /// \param due that are about to be replayed
  bool promises(const PlanRecord& record, std::size_t due = 0) {
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

  /// What a bound must be below; infinite while there are fewer of the best than are asked for.
  [[nodiscard]] double threshold() const {
    return best_.size() < request_.best ? std::numeric_limits<double>::infinity()
                                        : (1.0 - kPlanSlack) * *best_.begin();
  }

  /// In processes of their own where that is worth to start them, which does not change what they say.
  void replay_all(const std::vector<PlanRecord*>& records) {
    constexpr double kWorthProcess = 0.03;
    const Timed timed(replays_s_);
    const auto start = std::chrono::steady_clock::now();
    const int jobs = each_s_ > kWorthProcess ? default_jobs() : 1;
    const std::vector<std::string> answers =
        parallel_map(records.size(), jobs, [&](std::size_t i) { return answer(*records[i]); });
    for (std::size_t i = 0; i < records.size(); ++i) take(*records[i], answers[i]);
    if (!records.empty())
      each_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                static_cast<double>(records.size());
  }

  /// What a replay says, or why there is none.
  std::string answer(const PlanRecord& record) {
    try {
      return kAnswered + replayed(record).bytes();
    } catch (const Error& error) {
      return kRefused + std::string(error.what());
    }
  }

  void take(PlanRecord& record, const std::string& answer) {
    if (answer.front() == kRefused) {
      record.refusal = answer.substr(1);
      ++counts_.refused;
      return;
    }
    record.forecast = forecast_of(record, Replayed(answer.substr(1)));
    ++counts_.replayed;
    counts_.operations += record.forecast->operations;
    record.fits = record.forecast->memory_bytes <= bounds_.memory_limit();
  }

  void count_among_best(const PlanRecord& record) {
    best_.insert(score_of(record.plan, record.forecast->step_s));
    if (best_.size() > request_.best) best_.erase(std::prev(best_.end()));
  }

  PlanForecast forecast_of(const PlanRecord& record, const Replayed& replayed) {
    PlanForecast forecast = replayed.forecast();
    // Of a large world, results say the memory of some ranks alone.
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

  Replayed replayed(const PlanRecord& record) {
    constexpr int kFew = 3, kMany = 12;
    const int parts = record.plan.number("micro-batches"), round = record.plan.number("pipeline");
    if (parts <= kMany * round) return replayed(record, parts, 1);
    Replayed result = replayed(record, (kFew + 1) * round, 0);
    result.go_on(replayed(record, kFew * round, 0), static_cast<double>(parts) / round - (kFew + 1));
    return result;
  }

  /// A step of so many of its micro-batches, after others. The first one of many micro-batches takes what all take.
  Replayed replayed(const PlanRecord& record, int parts, int others) {
    PredictionRequest question = request_of(models_.problem(), record.plan);
    question.batch = *question.batch / question.training.micro_batches * parts;
    question.training.micro_batches = parts;
    question.warmup_steps = others;
    question.brief = true;
    question.known = &known_;
    return {predict(question), record.plan.number("pipeline")};
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
    std::vector<PlanRecord> all;
    for (const Plan& plan : variants_of(models_, record.plan)) {
      if (!variants_.insert(plan.values).second) continue;
      ++counts_.enumerated;
      all.push_back({.plan = plan, .bound = {.step_s = bounds_.ordered_step_s(plan)}});
    }
    std::vector<PlanRecord*> due;
    for (PlanRecord& variant : all)
      if (promises(variant, due.size()) && may_fit(variant)) due.push_back(&variant);
    replay_all(due);
    for (PlanRecord& variant : all) {
      const bool better =
          variant.fits && score_of(variant.plan, variant.forecast->step_s) < (1.0 - kWorth) * own;
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
    if (smallest != kept_.end() && !smallest->forecast && smallest->refusal.empty()) replay_all({&*smallest});
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
  double each_s_ = std::numeric_limits<double>::infinity();  ///< a replay of the last ones
};

}  // namespace

double PlanForecast::bubble() const { return mean.idle_s / own_time_s(mean); }

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

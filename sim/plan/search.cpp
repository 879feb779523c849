#include "sim/plan/search.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <set>

#include "core/error.hpp"
#include "core/processes.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kAtOnce = 8;  ///< plans that are replayed before the threshold is updated
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

/// State of one search.
class PlanSearch {
 public:
  PlanSearch(PlanModels& models, PlanBounds& bounds, const PlanRequest& request)
      : models_(models), bounds_(bounds), request_(request), replays_(models) {}

  PlanOutcome run() {
    for (PlanRecord record : request_.user_plans) {
      models_.settle(record.plan);
      replay_all({&record});
      if (!record.error.empty()) throw InputError("{}: {}", record.name, record.error);
      kept_.push_back(std::move(record));
    }
    gather();
    if (request_.everything) {
      for (PlanRecord& record : waiting_)
        if (may_run(record) && may_fit(record)) replay_all({&record});
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
  /// \pre both plans fit
  [[nodiscard]] auto order() const {
    return [this](const PlanRecord& a, const PlanRecord& b) { return score_of(a) < score_of(b); };
  }

  /// Collects all plans that do not replace others, with their time bounds.
  void gather() {
    const Clock::time_point start = Clock::now();
    enumerate_plans(
        models_, [this](const Plan& plan) { waiting_.push_back({.plan = plan}); }, request_.everything);
    counts_.enumerated = waiting_.size();
    bound_all();
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

  void push(std::size_t index, bool tight) { queue_.push({bound_of(waiting_[index]), index, tight}); }

  /// Takes the plan with the least bound: tightens the bound, and replays the plan if the bound is still the
  /// least. Plans that cannot be taken are replaced by smaller ones.
  void search() {
    for (std::size_t i = 0; i < waiting_.size(); ++i) push(i, false);
    for (std::vector<PlanRecord*> due; !queue_.empty() || !due.empty();) {
      if (queue_.empty() || due.size() == kAtOnce) {
        rank(std::exchange(due, {}));
        continue;
      }
      const Entry entry = queue_.top();
      queue_.pop();
      PlanRecord& record = waiting_[entry.index];
      if (!may_be_best(record)) continue;
      if (entry.tight) {
        if (may_replay(record, due.size())) due.push_back(&record);
      } else if (may_run(record) && may_fit(record)) {
        tighten(record);
        push(entry.index, true);
      } else {
        add_smaller(record.plan);
      }
    }
  }

  void rank(const std::vector<PlanRecord*>& records) {
    std::vector<PlanRecord*> due;
    for (PlanRecord* record : records)
      if (may_replay(*record, due.size())) due.push_back(record);
    replay_all(due);
    for (const PlanRecord* record : due)
      if (record->fits)
        count_among_best(*record);
      else
        add_smaller(record->plan);
  }

  void add_smaller(const Plan& plan) {
    const Clock::time_point start = Clock::now();
    for (Plan& smaller : smaller_plans(models_, plan)) {
      waiting_.push_back({.plan = std::move(smaller)});
      waiting_.back().bound.step_s = bounds_.step_s(waiting_.back().plan);
      push(waiting_.size() - 1, false);
      ++counts_.enumerated;
    }
    bounds_s_ += seconds_since(start);
  }

  void tighten(PlanRecord& record) {
    const Clock::time_point start = Clock::now();
    record.bound.step_s = bounds_.ordered_step_s(record.plan, record.bound.step_s);
    bounds_s_ += seconds_since(start);
  }

  bool may_be_best(const PlanRecord& record) {
    if (bound_of(record) >= threshold()) {
      ++counts_.too_slow;
      return false;
    }
    return !open_score_ || bound_of(record) < *open_score_;
  }

  /// Whether budget and time limit allow a replay. \param due number of plans that are about to be replayed
  bool may_replay(const PlanRecord& record, std::size_t due) {
    const double all = static_cast<double>(counts_.replayed), soon = static_cast<double>(due),
                 most = static_cast<double>(request_.most_replays);
    const double operations = counts_.operations * (all > 0.0 ? 1.0 + soon / all : 1.0);
    const bool late = !best_.empty() && seconds_since(start_) > request_.time_limit_s;
    if (!late && all + soon < most && operations < kReplayOperations * most) return true;
    timed_out_ = timed_out_ || late;
    open_score_ = std::min(open_score_.value_or(bound_of(record)), bound_of(record));
    return false;
  }

  bool may_run(PlanRecord& record) {
    if (request_.only == nullptr) return true;
    const std::vector<std::string> obstacles = request_.only->obstacles(models_, record.plan);
    if (obstacles.empty()) return true;
    record.error = request_.only->program() + " cannot run it: " + joined(obstacles, "; ");
    ++counts_.excluded;
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
      return kReplayed + packed(replays_.numbers(record.plan));
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
    record.forecast = replays_.forecast(record.plan, unpacked(std::string_view(answer).substr(1)),
                                        record.bound.memory_bytes);
    ++counts_.replayed;
    counts_.operations += record.forecast->operations;
    record.fits = record.forecast->memory_bytes <= bounds_.memory_limit();
  }

  void count_among_best(const PlanRecord& record) {
    best_.insert(score_of(record));
    if (best_.size() > request_.best) best_.erase(std::prev(best_.end()));
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
      all.push_back({.plan = plan, .bound = {.step_s = bounds_.ordered_step_s(plan, bounds_.step_s(plan))}});
    }
    std::vector<PlanRecord*> due;
    for (PlanRecord& variant : all) {
      if (may_be_best(variant) && may_run(variant) && may_fit(variant) && may_replay(variant, due.size()))
        due.push_back(&variant);
      if (due.size() == kAtOnce || &variant == &all.back()) replay_all(std::exchange(due, {}));
    }
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
    const auto key = [](const PlanRecord& one) {
      const bool bounded = one.error.empty() && one.bound.memory_bytes > 0.0;
      return std::pair(!bounded, one.bound.memory_bytes);
    };
    const auto smallest = std::ranges::min_element(kept_, {}, key);
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
    const auto others = std::ranges::stable_partition(kept_, &PlanRecord::fits);
    const auto ranked = static_cast<std::size_t>(others.begin() - kept_.begin());
    std::stable_sort(kept_.begin(), others.begin(), order());
    return {.plans = std::move(kept_),
            .ranked = ranked,
            .counts = counts_,
            .open_score = open_score_,
            .timed_out = timed_out_,
            .bounds_s = bounds_s_,
            .replays_s = replays_s_};
  }

  struct Entry {
    double bound = 0.0;
    std::size_t index = 0;  ///< in waiting_
    bool tight = false;
    auto operator<=>(const Entry&) const = default;
  };

  PlanModels& models_;
  PlanBounds& bounds_;
  const PlanRequest& request_;
  const Clock::time_point start_ = Clock::now();
  PlanReplays replays_;
  PlanCounts counts_;
  std::deque<PlanRecord> waiting_;  ///< whose places stay when others are added
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;  ///< the least bound is on top
  std::vector<PlanRecord> kept_;
  std::multiset<double> best_;  ///< scores
  std::set<OptionTexts> variants_;
  std::optional<double> open_score_;
  bool timed_out_ = false;
  double bounds_s_ = 0.0, replays_s_ = 0.0;
  double each_s_ =
      std::numeric_limits<double>::infinity();  ///< wall-clock time per replay of the latest ones
};

/// Whether the plan or a smaller one fits by its bound of memory.
bool may_fit(PlanModels& models, PlanBounds& bounds, const Plan& plan) {
  return bounds.memory_bytes(plan) <= bounds.memory_limit() ||
         std::ranges::any_of(smaller_plans(models, plan),
                             [&](const Plan& smaller) { return may_fit(models, bounds, smaller); });
}

}  // namespace

double score(const PlanModels& models, const Plan& plan, double step_s) {
  const PlanProblem& problem = models.problem();
  const int ranks = plan.number("world-size");
  const double wall_s = problem.whole ? problem.whole->wall_s(ranks, step_s) : step_s;
  if (problem.objective < PlanObjective::kCost) return wall_s;
  if (problem.objective == PlanObjective::kEnergy) return wall_s * ranks * models.device().power.count();
  return wall_s * (problem.whole ? problem.whole->devices(ranks) : ranks);
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
    enumerate_plans(models, [&](const Plan& plan) { fits = fits || may_fit(models, bounds, plan); });
    if (fits) return larger.ranks;
  }
  return 0;
}

}  // namespace stepcast

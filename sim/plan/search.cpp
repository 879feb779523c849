#include "sim/plan/search.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <set>

#include "core/clocks.hpp"
#include "core/error.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kAtOnce = 8;  ///< plans that are replayed before the threshold is updated
constexpr char kReplayed = 'a', kFailed = 'r';

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
struct PlanSearch {
  PlanModels& models;
  PlanBounds& bounds;
  const PlanRequest& request;

  PlanOutcome run() {
    for (PlanRecord record : request.user_plans) {
      models.settle(record.plan);
      replay_all({&record});
      if (!record.error.empty()) throw InputError("{}: {}", record.name, record.error);
      outcome.plans.push_back(std::move(record));
    }
    gather();
    search();
    std::move(waiting.begin(), waiting.end(), std::back_inserter(outcome.plans));
    improve();
    if (ranked().empty()) replay_smallest();
    sort_plans();
    return std::move(outcome);
  }

  [[nodiscard]] double bound_of(const PlanRecord& record) const {
    return score(models, record.plan, record.bound.step_s);
  }
  [[nodiscard]] double score_of(const PlanRecord& record) const {
    return score(models, record.plan, record.forecast.value().step_s);
  }
  /// Scores of plans that fit.
  [[nodiscard]] auto scores() const {
    return [this](const PlanRecord& record) { return score_of(record); };
  }

  /// Collects all plans that do not replace others, with their time bounds.
  void gather() {
    const double start_s = wall_clock_s();
    enumerate_plans(models, [this](const Plan& plan) { waiting.push_back({.plan = plan}); });
    outcome.counts.enumerated = waiting.size();
    bound_all();
    outcome.bounds_s += wall_clock_s() - start_s;
  }

  /// In several processes if there are many plans.
  void bound_all() {
    constexpr std::size_t kMany = 10'000;
    const auto jobs = static_cast<std::size_t>(waiting.size() < kMany ? 1 : default_jobs());
    const auto parts = parallel_map(jobs, static_cast<int>(jobs), [&](std::size_t part) {
      std::vector<double> times;
      for (std::size_t i = waiting.size() * part / jobs; i < waiting.size() * (part + 1) / jobs; ++i)
        times.push_back(bounds.step_s(waiting[i].plan));
      return packed(times);
    });
    std::size_t i = 0;
    for (const std::string& part : parts)
      for (const double bound : unpacked(part)) waiting[i++].bound.step_s = bound;
  }

  void push(std::size_t index, bool tight) { queue.push({bound_of(waiting[index]), index, tight}); }

  /// Takes the plan with the least bound: tightens the bound, and replays the plan if the bound is still the
  /// least. Plans that cannot be taken are replaced by smaller ones.
  void search() {
    for (std::size_t i = 0; i < waiting.size(); ++i) push(i, false);
    for (std::vector<PlanRecord*> due; !queue.empty() || !due.empty();) {
      if (queue.empty() || due.size() == kAtOnce) {
        rank(std::exchange(due, {}));
        continue;
      }
      const Entry entry = queue.top();
      queue.pop();
      PlanRecord& record = waiting[entry.index];
      if (!may_be_best(record)) continue;
      if (entry.tight) {
        if (may_replay(record, due.size())) due.push_back(&record);
      } else if (may_run(record) && may_fit(record)) {
        tighten(record);
        push(entry.index, true);
      } else if (bounds.least_memory_bytes(record.plan) <= bounds.memory_limit()) {
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
    const double start_s = wall_clock_s();
    for (Plan& smaller : smaller_plans(models, plan)) {
      waiting.push_back({.plan = std::move(smaller)});
      waiting.back().bound.step_s = bounds.step_s(waiting.back().plan);
      push(waiting.size() - 1, false);
      ++outcome.counts.enumerated;
    }
    outcome.bounds_s += wall_clock_s() - start_s;
  }

  void tighten(PlanRecord& record) {
    const double start_s = wall_clock_s();
    record.bound.step_s = bounds.ordered_step_s(record.plan, record.bound.step_s);
    outcome.bounds_s += wall_clock_s() - start_s;
  }

  bool may_be_best(const PlanRecord& record) {
    if (bound_of(record) >= threshold()) {
      ++outcome.counts.too_slow;
      return false;
    }
    return !outcome.open_score || bound_of(record) < *outcome.open_score;
  }

  /// Whether budget and time limit allow a replay. \param due number of plans that are about to be replayed
  bool may_replay(const PlanRecord& record, std::size_t due) {
    const double all = static_cast<double>(outcome.counts.replayed), soon = static_cast<double>(due),
                 most = static_cast<double>(request.most_replays);
    const double operations = outcome.counts.operations * (all > 0.0 ? 1.0 + soon / all : 1.0);
    const bool late = !best.empty() && wall_clock_s() - search_start_s > request.time_limit_s;
    if (!late && all + soon < most && operations < kReplayOperations * most) return true;
    outcome.timed_out = outcome.timed_out || late;
    outcome.open_score = std::min(outcome.open_score.value_or(bound_of(record)), bound_of(record));
    return false;
  }

  bool may_run(PlanRecord& record) {
    if (request.only == nullptr) return true;
    const std::vector<std::string> obstacles = request.only->obstacles(models, record.plan);
    if (obstacles.empty()) return true;
    record.error = request.only->program() + " cannot run it: " + joined(obstacles, "; ");
    ++outcome.counts.excluded;
    return false;
  }

  bool may_fit(PlanRecord& record) {
    record.bound.memory_bytes = bounds.least_memory_bytes(record.plan);
    if (record.bound.memory_bytes <= bounds.memory_limit())
      record.bound.memory_bytes = bounds.memory_bytes(record.plan);
    if (record.bound.memory_bytes <= bounds.memory_limit()) return true;
    ++outcome.counts.too_large;
    return false;
  }

  /// Score that a bound must be below; infinity until enough plans are ranked.
  [[nodiscard]] double threshold() const {
    return best.size() < request.best ? std::numeric_limits<double>::infinity()
                                      : (1.0 - kPlanSlack) * *best.begin();
  }

  /// In child processes if the latest replays were long enough to pay for starting them.
  void replay_all(const std::vector<PlanRecord*>& records) {
    constexpr double kWorthProcess = 0.03;
    const double start_s = wall_clock_s();
    const int jobs = each_s > kWorthProcess ? default_jobs() : 1;
    const std::vector<std::string> answers =
        parallel_map(records.size(), jobs, [&](std::size_t i) { return answer(*records[i]); });
    for (std::size_t i = 0; i < records.size(); ++i) take(*records[i], answers[i]);
    const double seconds = wall_clock_s() - start_s;
    if (!records.empty()) each_s = seconds / static_cast<double>(records.size());
    outcome.replays_s += seconds;
  }

  /// Numbers of the replay, or the error of `predict`.
  std::string answer(const PlanRecord& record) {
    try {
      return kReplayed + packed(replayed_numbers(models, record.plan));
    } catch (const Error& error) {
      return kFailed + std::string(error.what());
    }
  }

  void take(PlanRecord& record, const std::string& answer) {
    if (answer.front() == kFailed) {
      record.error = answer.substr(1);
      ++outcome.counts.failed;
      return;
    }
    record.forecast = forecast_of(models, record.plan, unpacked(std::string_view(answer).substr(1)),
                                  record.bound.memory_bytes);
    ++outcome.counts.replayed;
    outcome.counts.operations += record.forecast->operations;
    record.fits = record.forecast->memory_bytes <= bounds.memory_limit();
  }

  void count_among_best(const PlanRecord& record) {
    best.insert(score_of(record));
    if (best.size() > request.best) best.erase(std::prev(best.end()));
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
    for (const Plan& plan : variants_of(models, record.plan)) {
      if (!variants.insert(plan.values).second) continue;
      ++outcome.counts.enumerated;
      all.push_back({.plan = plan, .bound = {.step_s = bounds.ordered_step_s(plan, bounds.step_s(plan))}});
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
      outcome.plans.push_back(std::move(variant));
    }
    return found;
  }

  /// If no plan fits, replays the plan with the least memory.
  void replay_smallest() {
    std::vector<const PlanRecord*> records;
    for (const PlanRecord& record : outcome.plans)
      if (record.error.empty() && record.bound.memory_bytes > 0.0) records.push_back(&record);
    std::ranges::sort(records, {}, [](const PlanRecord* one) { return one->bound.memory_bytes; });
    PlanRecord smallest{.bound = {.memory_bytes = std::numeric_limits<double>::infinity()}};
    for (const PlanRecord* record : records)
      if (record->bound.memory_bytes < smallest.bound.memory_bytes) take_smaller(record->plan, smallest);
    if (smallest.plan.values.empty()) return;
    const auto known = std::ranges::find(outcome.plans, smallest.plan.values,
                                         [](const PlanRecord& one) { return one.plan.values; });
    const bool is_new = known == outcome.plans.end();
    PlanRecord& record = is_new ? outcome.plans.emplace_back(std::move(smallest)) : *known;
    outcome.counts.enumerated += is_new ? 1 : 0;
    if (!record.forecast && record.error.empty()) replay_all({&record});
  }

  /// Takes the plan, or one that replaces it, if it needs less memory than `smallest` and --only permits it.
  void take_smaller(const Plan& plan, PlanRecord& smallest) {
    const double bytes = bounds.memory_bytes(plan);
    if (bytes < smallest.bound.memory_bytes &&
        (request.only == nullptr || request.only->obstacles(models, plan).empty()))
      smallest = {.plan = plan, .bound = {.step_s = bounds.step_s(plan), .memory_bytes = bytes}};
    for (const Plan& smaller : smaller_plans(models, plan)) take_smaller(smaller, smallest);
  }

  /// Copies of the best plans that fit, best first.
  [[nodiscard]] std::vector<PlanRecord> ranked() const {
    std::vector<PlanRecord> all = filtered(outcome.plans, &PlanRecord::fits);
    std::ranges::stable_sort(all, {}, scores());
    if (all.size() > request.best) all.resize(request.best);
    return all;
  }

  /// Sorts plans that fit, best first, before all others.
  void sort_plans() {
    const auto others = std::ranges::stable_partition(outcome.plans, &PlanRecord::fits);
    outcome.ranked = static_cast<std::size_t>(others.begin() - outcome.plans.begin());
    std::ranges::stable_sort(outcome.plans.begin(), others.begin(), {}, scores());
  }

  struct Entry {
    double bound = 0.0;
    std::size_t index = 0;  ///< in waiting
    bool tight = false;
    auto operator<=>(const Entry&) const = default;
  };

  const double search_start_s = wall_clock_s();
  PlanOutcome outcome{};             ///< with the plans that are no longer in waiting
  std::deque<PlanRecord> waiting{};  ///< whose places stay when others are added
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue{};  ///< the least bound is on top
  std::multiset<double> best{};                                            ///< scores
  std::set<OptionTexts> variants{};
  double each_s = std::numeric_limits<double>::infinity();  ///< wall-clock time per replay of the latest ones
};

/// Whether the plan or a smaller one fits by its bound of memory.
bool may_fit(PlanModels& models, PlanBounds& bounds, const Plan& plan) {
  if (bounds.least_memory_bytes(plan) > bounds.memory_limit()) return false;
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
  return PlanSearch{models, bounds, request}.run();
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

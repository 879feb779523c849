#include "sim/plan/report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "sim/replay/memory.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Parts that take longer or less long than in the best plan, if by at least a tenth of the largest
/// difference.
std::string differences(const PlanForecast& best, const PlanForecast& other) {
  constexpr double kSmall = 0.1;
  std::vector<std::pair<double, std::string>> parts;
  double largest = 0.0;
  for (const auto& [name, part] : breakdown_parts()) {
    if (part == &Breakdown::overlapped_communication_s) continue;
    parts.emplace_back(other.mean.*part - best.mean.*part, name == "idle" ? "bubble" : spaced(name));
    largest = std::max(largest, std::abs(parts.back().first));
  }
  std::ranges::stable_sort(parts, std::greater(), &std::pair<double, std::string>::first);
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : parts)
    if (largest > 0.0 && std::abs(seconds) >= kSmall * largest)
      texts.push_back((seconds < 0.0 ? "-" : "+") + to_text(Seconds(std::abs(seconds))) + " " + name);
  return joined(texts);
}

std::string per_second(double samples_per_s, double tokens) {
  return tokens > 0.0 ? std::to_string(std::lround(samples_per_s * tokens)) : short_number(samples_per_s);
}

double score_of(const PlanModels& models, const PlanRecord& record) {
  return score(models, record.plan, record.forecast->step_s);
}

/// Device-hours or kWh per million tokens (or samples).
std::string cost_of(PlanModels& models, const PlanRecord& record) {
  constexpr double kMillion = 1e6, kHour = 3600.0, kKilowattHour = 3.6e6;
  const PlanProblem& problem = models.problem();
  const double tokens = models.whole().tokens_per_sample();
  const double each = score_of(models, record) / (problem.samples * (tokens > 0.0 ? tokens : 1.0)) * kMillion;
  return short_number(each / (problem.objective == PlanObjective::kCost ? kHour : kKilowattHour));
}

std::vector<std::string> cells_of(PlanModels& models, const PlanRecord& record, std::size_t number) {
  const PlanForecast& forecast = *record.forecast;
  const double barely = kBarelyReserved * models.device().memory.count();
  const double tokens = models.whole().tokens_per_sample();
  const int ranks = record.plan.number("world-size");
  std::vector<std::string> cells{record.fits ? std::to_string(number) : "-",
                                 (record.name.empty() ? "" : record.name + ": ") + describe(record.plan) +
                                     (!record.fits                                       ? " (does not fit)"
                                      : barely > 0.0 && forecast.reserved_bytes > barely ? " (fits barely)"
                                                                                         : ""),
                                 std::to_string(ranks),
                                 to_text(Seconds(forecast.step_s)),
                                 per_second(forecast.samples_per_s, tokens),
                                 per_second(forecast.samples_per_s / ranks, tokens),
                                 forecast.mfu > 0.0 ? percent_text(forecast.mfu) : "",
                                 to_text(Bytes(forecast.memory_bytes)),
                                 percent_text(forecast.bubble()),
                                 to_text(Seconds(forecast.mean.exposed_communication_s))};
  if (models.problem().objective >= PlanObjective::kCost) cells.push_back(cost_of(models, record));
  if (const auto& whole = models.problem().whole) {
    const double wall_s = whole->wall_s(ranks, forecast.step_s);
    append(cells, {short_number(whole->steps() * wall_s / kDay), percent_text(forecast.step_s / wall_s),
                   whole->checkpoints(ranks, forecast.step_s)});
  }
  return cells;
}

}  // namespace

std::string ranking_text(PlanModels& models, const PlanOutcome& outcome, std::size_t lines) {
  const PlanProblem& problem = models.problem();
  const bool tokens = models.whole().tokens_per_sample() > 0.0;
  std::vector<std::string> columns{"",         "plan", "ranks",  "step",   tokens ? "tokens/s" : "samples/s",
                                   "per rank", "mfu",  "memory", "bubble", "exposed"};
  if (problem.objective >= PlanObjective::kCost)
    columns.push_back(std::string(problem.objective == PlanObjective::kCost ? "device-hours" : "kWh") +
                      " per million");
  if (problem.whole) append(columns, {"days", "effective", "checkpoints"});
  Table table(columns);
  std::string reasons;
  for (const auto [i, record] : enumerated(outcome.plans)) {
    if (!record.forecast || (record.name.empty() && (i >= lines || !record.fits))) continue;
    table.add(cells_of(models, record, i + 1));
    if (i == 0 || !record.fits) continue;
    const PlanRecord& best = outcome.plans.front();
    reasons += std::to_string(i + 1) + " is " +
               percent_text(score_of(models, record) / score_of(models, best) - 1.0) +
               " behind 1: " + differences(*best.forecast, *record.forecast) + "\n";
  }
  std::string memory;
  if (outcome.ranked > 0 && outcome.plans.front().forecast->stage_memory_bytes.size() > 1)
    memory = "\nmemory of 1 by stage: " +
             joined(transformed(outcome.plans.front().forecast->stage_memory_bytes,
                                [](double bytes) { return to_text(Bytes(bytes)); })) +
             "\n";
  return table.text() + memory + (reasons.empty() ? "" : "\n" + reasons);
}

std::string nothing_fits_text(PlanModels& models, const PlanBounds& bounds, const PlanOutcome& outcome) {
  const PlanRecord* smallest = nullptr;
  const auto needs = [](const PlanRecord& record) {
    return std::pair(!record.forecast,
                     record.forecast ? record.forecast->memory_bytes : record.bound.memory_bytes);
  };
  for (const PlanRecord& record : outcome.plans)
    if (record.error.empty() && (smallest == nullptr || needs(record) < needs(*smallest))) smallest = &record;
  if (smallest == nullptr && outcome.counts.excluded == 0)
    return "no plan divides " + counted(models.problem().samples, "sequence") + " among " +
           counted(models.problem().ranks, "rank") + "\n";
  if (smallest == nullptr) {
    const auto reasons = grouped(outcome.plans, &PlanRecord::error);
    return fmt::format(
        "no plan can be run by the program of --only or --like; most often: {}\n",
        std::ranges::max_element(reasons, {}, [](const auto& one) { return one.second.size(); })->first);
  }
  const double limit = bounds.memory_limit();
  if (std::ranges::any_of(outcome.plans, [&](const PlanRecord& record) {
        return record.error.empty() && !record.forecast && record.bound.memory_bytes <= limit;
      }))
    return "no plan that fits was found before the search ended; others may: raise --time-limit or "
           "--replays\n";
  std::string text = "nothing fits: of " + to_text(models.device().memory) + " of " + models.device().name +
                     ", " + to_text(Bytes(limit)) + " may be used (--memory-reserve " +
                     percent_text(models.problem().reserve, 0) + "). Least of all needs " +
                     describe(smallest->plan) + ": " + to_text(Bytes(needs(*smallest).second)) + ", " +
                     to_text(Bytes(needs(*smallest).second - limit)) + " too much.\n";
  const int ranks = ranks_that_fit(models.problem());
  return text + (ranks > models.problem().ranks
                     ? fmt::format("By the lower bound of memory a plan may fit on {0} of these devices: "
                                   "--world-size {0}, on a cluster that has them.\n",
                                   ranks)
                 : ranks == 0
                     ? "More of these devices do not help: take a shorter sequence, or a smaller batch.\n"
                     : "");
}

std::string counts_text(PlanModels& models, const PlanOutcome& outcome) {
  const PlanCounts& counts = outcome.counts;
  std::string text = counted(counts.enumerated, "plan") + ": " + std::to_string(counts.too_large) +
                     " do not fit by their bound of memory, " + std::to_string(counts.too_slow) +
                     " cannot be among the best by their bound of time, " + std::to_string(counts.replayed) +
                     " were replayed";
  if (counts.excluded > 0)
    text += ", " + std::to_string(counts.excluded) + " cannot be run by the program of --only or --like";
  if (counts.failed > 0) text += ", " + std::to_string(counts.failed) + " cannot be predicted";
  text += "\n";
  if (outcome.ranked == 0 || !outcome.open_score) return text;
  const double gap = std::max(0.0, 1.0 - *outcome.open_score / score_of(models, outcome.plans.front()));
  constexpr double kProven = 0.005;  // of a search that ends by itself
  if (gap <= kProven)
    return text + "No other plan is more than " + percent_text(gap) + " better than the best found\n";
  return text +
         (outcome.timed_out
              ? "Not proven: --time-limit ended the search, so that a faster machine may find more"
              : "Not proven: --replays ended the search") +
         "; by its bound a plan that was not replayed may be up to " + percent_text(gap) +
         " better than the best found\n";
}

std::string plans_csv(const PlanOutcome& outcome) {
  std::string text = "rank";
  for (const PlanDimension& dimension : plan_dimensions()) text += "," + dimension.name;
  text +=
      ",name,bound_step_s,bound_memory_bytes,step_s,samples_per_s,mfu,memory_bytes,bubble,compute_s,"
      "exposed_communication_s,fits,status\n";
  for (const auto [i, record] : enumerated(outcome.plans)) {
    text += record.fits ? std::to_string(i + 1) : "";
    for (const PlanDimension& dimension : plan_dimensions()) text += "," + record.plan.text(dimension.name);
    text += "," + record.name + fmt::format(",{:.9g},{:.0f}", record.bound.step_s, record.bound.memory_bytes);
    if (const auto& forecast = record.forecast)
      text +=
          fmt::format(",{:.9g},{:.9g},{:.6g},{:.0f},{:.6g},{:.9g},{:.9g},{},replayed", forecast->step_s,
                      forecast->samples_per_s, forecast->mfu, forecast->memory_bytes, forecast->bubble(),
                      forecast->mean.compute_s, forecast->mean.exposed_communication_s, record.fits ? 1 : 0);
    else
      text += std::string(",,,,,,,,,") + (record.error.empty() ? "pruned" : "refused");
    text += "\n";
  }
  return text;
}

std::string plans_json_lines(const PlanProblem& problem, const PlanOutcome& outcome) {
  std::string text;
  for (const auto [i, record] : enumerated(outcome.plans)) {
    nlohmann::ordered_json json{
        {"options", predict_options(problem, record.plan)},
        {"bound", {{"step_s", record.bound.step_s}, {"memory_bytes", record.bound.memory_bytes}}}};
    if (record.fits) json["rank"] = i + 1;
    if (!record.name.empty()) json["name"] = record.name;
    if (!record.error.empty()) json["refusal"] = record.error;
    if (const auto& forecast = record.forecast) {
      nlohmann::ordered_json times{{"step_s", forecast->step_s}, {"samples_per_s", forecast->samples_per_s},
                                   {"mfu", forecast->mfu},       {"memory_bytes", forecast->memory_bytes},
                                   {"fits", record.fits},        {"bubble", forecast->bubble()}};
      for (const auto& [name, part] : breakdown_parts()) times[name + "_s"] = forecast->mean.*part;
      json["forecast"] = std::move(times);
    }
    text += json.dump() + "\n";
  }
  return text;
}

}  // namespace stepcast

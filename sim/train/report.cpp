#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/train/training.hpp"

namespace stepcast {
namespace {

constexpr std::array<double, 3> kQuantiles{0.1, 0.5, 0.9};

/// Of a training that takes `wall` seconds; 0: unknown.
struct TrainingQuantity {
  const char *name, *key;
  std::function<double(const TrainingOutcome& outcome, double wall)> value;
};
const std::array<TrainingQuantity, 4> kQuantities{
    {{"days", "days", [](const TrainingOutcome&, double wall) { return wall / kDay; }},
     {"device-hours", "device_hours", &TrainingOutcome::device_hours},
     {"cost", "cost",
      [](const TrainingOutcome& outcome, double wall) {
        return outcome.request.per_device_hour * outcome.device_hours(wall);
      }},
     {"energy (kWh)", "energy_kwh", &TrainingOutcome::energy_kwh}}};

/// `1.00 s`, `12.30 min`, `4.500 h`, `12.00 days`
std::string long_time(double seconds) {
  if (seconds < 180.0) return to_text(Seconds(seconds));
  if (seconds < 3.0 * kHour) return short_number(seconds / 60.0) + " min";
  return seconds < 2.0 * kDay ? short_number(seconds / kHour) + " h" : short_number(seconds / kDay) + " days";
}

/// `14.90T`, `120.0k`
std::string amount_text(double amount) {
  for (const auto& [factor, unit] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e4, "k"}})
    if (amount >= factor) return short_number(amount / (factor == 1e4 ? 1e3 : factor)) + unit;
  return short_number(amount);
}

double tokens_of(const TrainingOutcome& outcome) {
  return outcome.plan.training.steps * outcome.facts.samples_per_step * outcome.facts.tokens_per_sample;
}

std::string tables(const TrainingOutcome& outcome) {
  Table all({"training", "10 %", "50 %", "90 %"}), parts({"mean of the trainings", "days", "share"});
  for (const TrainingQuantity& quantity : kQuantities) {
    std::vector<std::string> cells{quantity.name};
    for (const double q : kQuantiles)
      cells.push_back(amount_text(quantity.value(outcome, outcome.wall_s(q))));
    if (quantity.value(outcome, 1.0) > 0.0) all.add(cells);
  }
  for (const auto& row : kTrainingParts)
    if (const double part = outcome.part_s(row.value) / outcome.mean_wall_s();
        part > 1e-9)  // no rounding error
      parts.add({row.name, short_number(part * outcome.mean_wall_s() / kDay), percent_text(part, 2)});
  return all.text() + "\n" + parts.text();
}

std::string failures_text(const TrainingOutcome& outcome) {
  const FailureSet& failures = outcome.plan.failures;
  std::string text = "failures " + failures.name + ": ";
  text += short_number(outcome.mean(&TrainingRun::failures)) + " per training";
  if (const double per_day = outcome.failures_per_day(); per_day > 0.0)
    text += ", one in " + long_time(kDay / per_day) + " of work and recovery";
  if (const double planned = outcome.mean(&TrainingRun::planned); planned > 0.0)
    text += "; " + short_number(planned) + " planned stops";
  text += failures.source.empty() ? "\n" : " (" + failures.source + ")\n";
  if (!failures.name.ends_with(".csv")) return text;
  for (const auto [i, one] : enumerated(failures.components)) {
    if (one.count <= 0.0) continue;
    const auto [low, high] = count_interval(one.count);
    const double rate = outcome.plan.events_per_day[i];
    text += fmt::format("  {}: {} per day, 90 % interval {} to {}\n", one.name, short_number(rate),
                        short_number(low * rate), short_number(high * rate));
  }
  return text;
}

/// Why the best interval is not Young's.
std::string difference_text(const TrainingCase& training) {
  const double best = training.interval * training.step_s, write = training.checkpoint.write_s;
  if (training.checkpoint.storage_every == 1) return "as often as into the storage";
  if (std::abs(best - young_interval_s(training)) < 0.51 * training.step_s)
    return "equal but for whole steps";
  if (0.99 * best <= (1.0 - training.checkpoint.slowdown) * write + training.step_s)
    return "a write ends before the next checkpoint begins";
  return std::string(write > 0.0 ? "a checkpoint counts from the end of its write on; " : "") +
         "Young's first order leaves out failures within an interval, and planned stops";
}

std::string checkpoints_text(const TrainingOutcome& outcome) {
  const CheckpointRequest& checkpoint = outcome.plan.checkpoint;
  const TrainingCase& training = outcome.plan.training;
  const CheckpointCost& cost = training.checkpoint;
  if (!cost.exists) return "checkpoints: none\n";
  std::string text = fmt::format("checkpoints: {} to {}, {}, stop {}", checkpoint.method, checkpoint.target,
                                 to_text(checkpoint.size), to_text(Seconds(cost.stall_s)));
  if (cost.write_s > 0.0) text += ", write " + long_time(cost.write_s);
  text += fmt::format("; every {:.0f} steps, {}", training.interval,
                      long_time(training.interval * training.step_s));
  if (outcome.plan.best_interval) text += ", the best interval";
  if (cost.storage_every > 0 && cost.storage_every * training.interval < training.steps)
    text += fmt::format("; every {} of them also to the storage in {}", cost.storage_every,
                        long_time(cost.storage_write_s));
  if (outcome.failures_per_day() <= 0.0) return text + "\n";
  return text + fmt::format("\n  Young {}, Daly {}{}\n", long_time(young_interval_s(training)),
                            long_time(daly_interval_s(training)),
                            outcome.plan.best_interval ? ": " + difference_text(training) : "");
}

}  // namespace

std::string training_text(const TrainingOutcome& outcome) {
  const TrainingCase& training = outcome.plan.training;
  const double tokens = tokens_of(outcome);
  std::string text =
      fmt::format("{}\n{:.0f} steps of {}{} on {} devices", outcome.facts.text, training.steps,
                  to_text(Seconds(training.step_s)),
                  tokens > 0.0 ? ", " + amount_text(tokens) + " tokens," : "", outcome.facts.ranks);
  if (outcome.request.spares > 0) text += " and " + counted(outcome.request.spares, "spare host");
  text += fmt::format(
      "\n\n{}\neffective training time {}\n{}{}{} simulated trainings (seed {}); closed form: {}\n",
      tables(outcome), percent_text(outcome.effective(), 2), failures_text(outcome),
      checkpoints_text(outcome), outcome.runs.size(), outcome.request.seed,
      outcome.renewal.obstacle.empty()
          ? fmt::format("{}, {} of their mean", long_time(outcome.renewal.wall_s),
                        signed_percent_text(outcome.renewal.wall_s / outcome.mean_wall_s() - 1.0))
          : "none, " + outcome.renewal.obstacle);
  for (const std::string& line : outcome.facts.warnings) text += line + "\n";
  for (const std::string& line : outcome.plan.assumed) text += "assumed: " + line + "\n";
  return text;
}

nlohmann::json training_json(const TrainingOutcome& outcome) {
  const TrainingCase& training = outcome.plan.training;
  nlohmann::json json{{"training", outcome.facts.text},
                      {"steps", training.steps},
                      {"tokens", tokens_of(outcome)},
                      {"step_time_s", training.step_s},
                      {"devices", outcome.facts.ranks},
                      {"effective_training_time", outcome.effective()},
                      {"failures", outcome.mean(&TrainingRun::failures)},
                      {"planned_stops", outcome.mean(&TrainingRun::planned)},
                      {"failures_per_day", outcome.failures_per_day()},
                      {"trainings", outcome.runs.size()},
                      {"seed", outcome.request.seed},
                      {"assumed", outcome.plan.assumed},
                      {"warnings", outcome.facts.warnings}};
  for (const TrainingQuantity& quantity : kQuantities)
    for (const double q : kQuantiles)
      if (const double value = quantity.value(outcome, outcome.wall_s(q)); value > 0.0)
        json[quantity.key][fmt::format("p{:.0f}", 100.0 * q)] = value;
  json["days"]["mean"] = outcome.mean_wall_s() / kDay;
  for (const auto& row : kTrainingParts) json["parts_days"][row.name] = outcome.part_s(row.value) / kDay;
  if (training.checkpoint.exists)
    json["checkpoints"] = {{"method", outcome.plan.checkpoint.method},
                           {"target", outcome.plan.checkpoint.target},
                           {"bytes", outcome.plan.checkpoint.size.count()},
                           {"interval_steps", training.interval},
                           {"interval_s", training.interval * training.step_s},
                           {"stop_s", training.checkpoint.stall_s},
                           {"write_s", training.checkpoint.write_s}};
  if (outcome.failures_per_day() > 0.0 && training.checkpoint.exists)
    json["intervals_s"] = {{"young", young_interval_s(training)}, {"daly", daly_interval_s(training)}};
  if (outcome.renewal.obstacle.empty()) json["closed_form_days"] = outcome.renewal.wall_s / kDay;
  return json;
}

}  // namespace stepcast

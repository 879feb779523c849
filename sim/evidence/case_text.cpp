#include <cmath>
#include <functional>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "sim/evidence/compare.hpp"

namespace stepcast {
namespace {

std::string better_text(const Case& one) {
  return joined(transformed(better_trivial_predictors(one), [](const auto& better) {
    return better.first + " " + signed_percent_text(better.second);
  }));
}

std::string measured_text(const Case& one, double Estimate::*part) {
  return one.measured ? to_text(Seconds((*one.measured).*part)) : "-";
}

using Cell = std::function<std::string(const Case&)>;

const std::map<std::string, Cell>& known_columns() {
  static const std::map<std::string, Cell> columns{
      {"model", [](const Case& one) { return one.configuration.model; }},
      {"strategy", [](const Case& one) { return one.name; }},
      {"ranks", [](const Case& one) { return std::to_string(one.configuration.world_size); }},
      {"batch", [](const Case& one) { return std::to_string(one.configuration.batch); }},
      {"threads", [](const Case& one) { return std::to_string(one.configuration.threads); }},
      {"measured", [](const Case& one) { return measured_text(one, &Estimate::value); }},
      {"launches", [](const Case& one) { return std::to_string(one.launches.size()); }},
      {"low", [](const Case& one) { return measured_text(one, &Estimate::low); }},
      {"high", [](const Case& one) { return measured_text(one, &Estimate::high); }},
      {"predicted",
       [](const Case& one) { return one.predicted ? to_text(Seconds(*one.predicted)) : std::string("-"); }},
      {"error",
       [](const Case& one) { return one.has_error() ? signed_percent_text(one.relative_error()) : "-"; }},
      {"at equal speed", [](const Case& one) { return error_text(one.error_at_equal_speed()); }},
      {"over exposed", [](const Case& one) { return error_text(one.error_over_exposed()); }},
      {"in range",
       [](const Case& one) { return one.has_error() && one.inside_launch_range() ? "yes" : "no"; }},
      {"better trivial predictors", better_text}};
  return columns;
}

std::string median_and_worst(const Errors& errors) {
  return fmt::format("median absolute error {}, worst {}, over {}", percent_text(errors.relative.median),
                     percent_text(errors.relative.worst), counted(errors.count, "case"));
}

std::string accuracy_text(const Accuracy& accuracy) {
  std::string text = median_and_worst(accuracy.errors) + "\n";
  for (const auto& [name, trivial] : accuracy.trivial) {
    const double error = trivial.errors.relative.median;
    text += fmt::format("trivial predictor {}: median absolute error {}{}\n", name, percent_text(error),
                        error < accuracy.errors.relative.median ? "  (better than the prediction)" : "");
  }
  return text;
}

std::string equal_speed_text(const std::vector<Case>& cases) {
  const Errors errors = errors_by(cases, &Case::error_at_equal_speed);
  if (errors.count == 0) return "";
  return fmt::format("at equal machine speed: {}\n{}\n", median_and_worst(errors), machine_verdict(cases));
}

std::string exposed_text(const std::vector<Case>& cases) {
  const Errors errors = errors_by(cases, &Case::error_over_exposed);
  if (errors.count == 0) return "";
  return fmt::format("over exposed communication: {}; {} with less than {} of the step exposed, or unknown\n",
                     median_and_worst(errors), accuracy_of(cases).errors.count - errors.count,
                     percent_text(Case::kMinExposedFraction, 0));
}

std::string memory_text(const std::vector<Case>& cases) {
  const MemoryError* worst = nullptr;
  const Case* where = nullptr;
  std::size_t ranks = 0;
  for (const Case& one : cases)
    for (const MemoryError& error : one.memory) {
      ++ranks;
      if (worst != nullptr && std::abs(error.relative_error()) < std::abs(worst->relative_error())) continue;
      worst = &error;
      where = &one;
    }
  if (worst == nullptr) return "";
  return fmt::format("peak memory: worst error {} over {} (rank {} of {} with {})\n",
                     signed_percent_text(worst->relative_error()), counted(ranks, "rank"), worst->rank,
                     describe(where->configuration), to_text(Bytes(worst->measured_bytes)));
}

std::string phases_text(const std::vector<Case>& cases) {
  Table table({"model", "strategy", "ranks", "phase", "measured", "predicted", "error over step"});
  for (const Case& one : cases)
    for (const auto& [name, measured_s, predicted_s] : one.phases)
      if (measured_s != 0.0 || predicted_s != 0.0)
        table.add({one.configuration.model, one.name, std::to_string(one.configuration.world_size), name,
                   to_text(Seconds(measured_s)), to_text(Seconds(predicted_s)),
                   signed_percent_text((predicted_s - measured_s) / one.measured->value)});
  return "\nWhere the step goes (mean over the ranks):\n\n" + table.text();
}

std::string engines_text(const std::vector<EnginePair>& pairs) {
  Table table({"model", "strategy", "ranks", "batch", "schedule", "launches", "low", "high", "reference",
               "launches", "low", "high", "difference", "buckets"});
  for (const EnginePair& pair : pairs) {
    std::vector<std::string> row;
    const auto add = [&](const Case& engine, const std::vector<std::string>& columns) {
      for (const std::string& column : columns) row.push_back(known_columns().at(column)(engine));
    };
    add(*pair.schedule, {"model", "strategy", "ranks", "batch", "measured", "launches", "low", "high"});
    add(*pair.reference, {"measured", "launches", "low", "high"});
    row.push_back(signed_percent_text(pair.relative_difference()));
    const std::optional<bool> same = pair.same_buckets();
    row.emplace_back(!same ? "" : *same ? "same" : "different");
    table.add(std::move(row));
  }
  return "\nThe Schedule against PyTorch's own parts (reference engine):\n\n" + table.text();
}

std::string speedups_text(const std::vector<Speedup>& all) {
  Table table(
      {"model", "strategy", "ranks", "threads", "scaling", "measured", "predicted", "error", "baseline"});
  for (const Speedup& speedup : all) {
    const Configuration& c = speedup.scaled->configuration;
    const bool both = speedup.measured && speedup.predicted;
    table.add({c.model, speedup.scaled->name, std::to_string(c.world_size), std::to_string(c.threads),
               speedup.strong ? "strong" : "weak",
               speedup.measured ? fmt::format("{:.2f}", speedup.measured->value) : "-",
               speedup.predicted ? fmt::format("{:.2f}", *speedup.predicted) : "-",
               both ? signed_percent_text(speedup.relative_error()) : "", describe(speedup.baseline)});
  }
  return "\nSpeed-up, throughput over throughput:\n\n" + table.text();
}

/// The columns that these cases have values for.
std::vector<std::string> compared_columns(const std::vector<Case>& cases) {
  std::vector<std::string> columns{"model",    "strategy", "ranks", "batch",     "threads", "measured",
                                   "launches", "low",      "high",  "predicted", "error"};
  if (errors_by(cases, &Case::error_at_equal_speed).count > 0) columns.emplace_back("at equal speed");
  if (errors_by(cases, &Case::error_over_exposed).count > 0) columns.emplace_back("over exposed");
  columns.insert(columns.end(), {"in range", "better trivial predictors"});
  return columns;
}

}  // namespace

std::string cases_text(const std::vector<Case>& cases, const std::vector<std::string>& columns) {
  Table table(columns);
  for (const Case& one : cases)
    table.add(transformed(columns, [&](const auto& column) { return known_columns().at(column)(one); }));
  return table.text();
}

std::string errors_text(const std::vector<Case>& cases) {
  return accuracy_text(accuracy_of(cases)) + equal_speed_text(cases) + exposed_text(cases);
}

std::string comparison_text(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                            const std::vector<EnginePair>& pairs) {
  std::string text;
  if (!cases.empty())
    text = cases_text(worst_first(cases), compared_columns(cases)) + "\n" + errors_text(cases) +
           memory_text(cases) + phases_text(cases);
  if (!pairs.empty()) text += engines_text(pairs);
  if (!speedups.empty()) text += speedups_text(speedups);
  return text;
}

}  // namespace stepcast

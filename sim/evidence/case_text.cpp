#include <cmath>

#include "core/table.hpp"
#include "core/units.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/evidence/trivial.hpp"

namespace stepcast {
namespace {

/// A training's time with its unit; of a published row the number as sources print it.
std::string value_text(const Case& one, double value) {
  return one.source.empty() ? to_text(Seconds(value)) : short_number(value);
}

std::string estimate_text(const Case& one, const std::optional<Estimate>& estimate) {
  if (!estimate) return "-";
  const std::string low = value_text(one, estimate->low), high = value_text(one, estimate->high);
  const std::string value = value_text(one, estimate->value);
  return low == high && low == value ? value : value + "  (" + low + " to " + high + ")";
}

/// `1.264  (0.799 to 1.506), -9.9 %`
std::string blind_text(const Case& one) {
  const std::string text = estimate_text(one, one.blind);
  if (!one.blind || !one.measured || one.measured->value <= 0.0) return text;
  return text + ", " + signed_percent_text(one.trivial_error(one.blind->value));
}

std::string better_text(const Case& one) {
  std::vector<std::string> words;
  for (const auto& [name, error] : better_trivial_predictors(one))
    words.push_back(name + " " + signed_percent_text(error));
  return joined(words);
}

/// `1.745 (+15.9 %)`
std::string trivial_text(const Case& one, const char* predictor) {
  const auto found = one.trivial.find(predictor);
  if (found == one.trivial.end()) return "-";
  const std::string value = value_text(one, found->second);
  if (!one.measured || one.measured->value <= 0.0) return value;
  return value + " (" + signed_percent_text(one.trivial_error(found->second)) + ")";
}

/// Shortens names that are whole sentences.
std::string shortened_name(const std::string& name) {
  constexpr std::size_t kMost = 44;
  return name.size() <= kMost ? name : name.substr(0, kMost - 3) + "...";
}

using Cell = std::function<std::string(const Case&)>;

const std::map<std::string, Cell>& known_columns() {
  static const std::map<std::string, Cell> columns = [] {
    std::map<std::string, Cell> all{
        {"case", [](const Case& one) { return one.source; }},
        {"row", [](const Case& one) { return shortened_name(one.name); }},
        {"model", [](const Case& one) { return one.configuration.model; }},
        {"strategy", [](const Case& one) { return one.name; }},
        {"ranks", [](const Case& one) { return std::to_string(one.configuration.world_size); }},
        {"batch", [](const Case& one) { return std::to_string(one.configuration.batch); }},
        {"threads", [](const Case& one) { return std::to_string(one.configuration.threads); }},
        {"compute", [](const Case& one) { return one.configuration.compute; }},
        {"cluster", [](const Case& one) { return one.configuration.cluster; }},
        {"distance", [](const Case& one) { return one.distance; }},
        {"quantity", [](const Case& one) { return one.quantity; }},
        {"measured",
         [](const Case& one) { return one.measured ? value_text(one, one.measured->value) : "-"; }},
        {"launches", [](const Case& one) { return std::to_string(one.launches.size()); }},
        {"low", [](const Case& one) { return one.measured ? value_text(one, one.measured->low) : "-"; }},
        {"high", [](const Case& one) { return one.measured ? value_text(one, one.measured->high) : "-"; }},
        {"predicted", [](const Case& one) { return estimate_text(one, one.predicted); }},
        {"blind forecast", blind_text},
        {"error",
         [](const Case& one) { return one.has_error() ? signed_percent_text(one.relative_error()) : "-"; }},
        {"at equal speed",
         [](const Case& one) {
           return one.has_error_at_equal_speed() ? signed_percent_text(one.error_at_equal_speed()) : "-";
         }},
        {"over exposed",
         [](const Case& one) {
           const std::optional<double> error = one.error_over_exposed();
           return error ? signed_percent_text(*error) : "-";
         }},
        {"in range",
         [](const Case& one) { return one.has_error() && one.inside_launch_range() ? "yes" : "no"; }},
        {"better trivial predictors", better_text},
        {"counts as", [](const Case& one) { return to_text(one.role); }}};
    for (const TrivialPredictor& predictor : kTrivialPredictors)
      all.emplace(predictor.title,
                  [name = predictor.name](const Case& one) { return trivial_text(one, name); });
    return all;
  }();
  return columns;
}

}  // namespace

std::string cases_text(const std::vector<Case>& cases, const std::vector<std::string>& columns) {
  Table table(columns);
  std::string last;
  for (const Case& one : cases) {
    std::vector<std::string> row;
    for (const std::string& column : columns)
      row.push_back(column == "case" && one.source == last ? "" : known_columns().at(column)(one));
    last = one.source;
    table.add(std::move(row));
  }
  return table.text();
}

namespace {

std::string accuracy_text(const Accuracy& accuracy) {
  std::string text = "median absolute error " + percent_text(accuracy.errors.relative.median) + ", worst " +
                     percent_text(accuracy.errors.relative.worst) + ", over " +
                     counted(accuracy.errors.count, "case") + "\n";
  for (const auto& [name, trivial] : accuracy.trivial)
    text +=
        "trivial predictor " + name + ": median absolute error " +
        percent_text(trivial.errors.relative.median) +
        (trivial.errors.relative.median < accuracy.errors.relative.median ? "  (better than the prediction)\n"
                                                                          : "\n");
  return text;
}

std::string equal_speed_text(const std::vector<Case>& cases) {
  const Errors errors = errors_at_equal_speed(cases);
  if (errors.count == 0) return "";
  return "at equal machine speed: median absolute error " + percent_text(errors.relative.median) +
         ", worst " + percent_text(errors.relative.worst) + ", over " + counted(errors.count, "case") + "\n" +
         machine_verdict(cases) + "\n";
}

std::string exposed_text(const std::vector<Case>& cases) {
  const Errors errors = errors_over_exposed(cases);
  if (errors.count == 0) return "";
  const std::size_t others = accuracy_of(cases).errors.count - errors.count;
  return "over exposed communication: median absolute error " + percent_text(errors.relative.median) +
         ", worst " + percent_text(errors.relative.worst) + ", over " + counted(errors.count, "case") + "; " +
         std::to_string(others) + " with less than " + percent_text(Case::kMinExposedFraction, 0) +
         " of the step exposed, or unknown\n";
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
  return "peak memory: worst error " + signed_percent_text(worst->relative_error()) + " over " +
         counted(ranks, "rank") + " (rank " + std::to_string(worst->rank) + " of " + describe(*where) +
         " with " + to_text(Bytes(worst->measured_bytes)) + ")\n";
}

std::string phases_text(const std::vector<Case>& cases) {
  Table table({"model", "strategy", "ranks", "phase", "measured", "predicted", "error over step"});
  for (const Case& one : cases)
    for (const PhaseError& phase : one.phases) {
      if (phase.measured_s == 0.0 && phase.predicted_s == 0.0) continue;
      table.add({one.configuration.model, one.name, std::to_string(one.configuration.world_size), phase.name,
                 to_text(Seconds(phase.measured_s)), to_text(Seconds(phase.predicted_s)),
                 signed_percent_text((phase.predicted_s - phase.measured_s) / one.measured->value)});
    }
  return "\nWhere the step goes (mean over the ranks):\n\n" + table.text();
}

std::string engines_text(const std::vector<EnginePair>& pairs) {
  Table table({"model", "strategy", "ranks", "batch", "schedule", "launches", "low", "high", "reference",
               "launches", "low", "high", "difference", "buckets"});
  for (const EnginePair& pair : pairs) {
    std::vector<std::string> row;
    for (const char* column : {"model", "strategy", "ranks", "batch"})
      row.push_back(known_columns().at(column)(*pair.schedule));
    for (const Case* engine : {pair.schedule, pair.reference})
      for (const char* column : {"measured", "launches", "low", "high"})
        row.push_back(known_columns().at(column)(*engine));
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
               speedup.measured ? formatted("%.2f", speedup.measured->value) : "-",
               speedup.predicted ? formatted("%.2f", *speedup.predicted) : "-",
               both ? signed_percent_text(speedup.relative_error()) : "", describe(speedup.baseline)});
  }
  return "\nSpeed-up, throughput over throughput:\n\n" + table.text();
}

}  // namespace

std::vector<std::string> error_columns(const std::vector<Case>& cases) {
  std::vector<std::string> columns{"predicted", "error"};
  if (errors_at_equal_speed(cases).count > 0) columns.emplace_back("at equal speed");
  if (errors_over_exposed(cases).count > 0) columns.emplace_back("over exposed");
  columns.insert(columns.end(), {"in range", "better trivial predictors"});
  return columns;
}

std::string errors_text(const std::vector<Case>& cases) {
  return accuracy_text(accuracy_of(cases)) + equal_speed_text(cases) + exposed_text(cases);
}

std::string comparison_text(const std::vector<Case>& cases, const std::vector<Speedup>& speedups,
                            const std::vector<EnginePair>& pairs) {
  std::string text;
  std::vector<std::string> columns{"model",    "strategy", "ranks", "batch", "threads",
                                   "measured", "launches", "low",   "high"};
  const std::vector<std::string> errors = error_columns(cases);
  columns.insert(columns.end(), errors.begin(), errors.end());
  if (!cases.empty())
    text = cases_text(worst_first(cases), columns) + "\n" + errors_text(cases) + memory_text(cases) +
           phases_text(cases);
  if (!pairs.empty()) text += engines_text(pairs);
  if (!speedups.empty()) text += speedups_text(speedups);
  return text;
}

}  // namespace stepcast

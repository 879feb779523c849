#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/measured_output.hpp"
#include "sim/commands/predict.hpp"
#include "sim/evidence/measured_collectives.hpp"
#include "sim/evidence/row_comparison.hpp"
#include "sim/evidence/row_forecast.hpp"

namespace stepcast {
namespace {

constexpr const char* kValidationSchema = "stepcast.validation/1";
constexpr const char* kMeasuredSchema = "stepcast.measured/1";
constexpr const char* kCollectives = "nccl_collectives";

/// Help text of --case.
std::string describe_cases() {
  std::string text;
  for (const RowSet& one : load_published("")) text += fmt::format("\n{}: {}", one.id(), one.title);
  return text;
}

void declare(po::options_description& options) {
  declare_options(
      options, "validate",
      {{"cases", describe_cases()}, {"sets", joined(measured_ids(), "\n") + "\n" + kCollectives}});
}

std::vector<RowSet> chosen_cases(const po::variables_map& values) {
  std::vector<RowSet> cases = load_published(text_option(values, "cases"));
  if (values.count("case") == 0) return cases;
  const std::string id = text_option(values, "case");
  const auto found = std::ranges::find(cases, id, &RowSet::id);
  if (found != cases.end()) return {std::move(*found)};
  throw UsageError("--case: {}", unknown_name("case", id, transformed(cases, &RowSet::id)));
}

/// `8529 | 4210 | 4210 | 4399`: one value per rank.
std::string listed(const std::vector<double>& numbers) { return range_text({numbers, numbers, numbers}); }

/// `753.8  (747.7 to 753.8)`
std::string with_range(const PredictedValue& value) {
  const std::string ranges = range_text(value), central = listed(value.central);
  return ranges == central ? central : fmt::format("{}  ({})", central, ranges);
}

/// A measured quantity, or its blind forecast.
std::string text_of(const nlohmann::json& values, const std::string& quantity) {
  if (!values.contains(quantity)) return "-";
  return listed(values[quantity].is_array() ? values[quantity].get<std::vector<double>>()
                                            : std::vector{values[quantity].get<double>()});
}

/// Whether `--details` prints a quantity: a row contains it, or it is the step.
bool shown(const RowSet& set, const std::string& quantity) {
  return quantity == "step_time_s" || std::ranges::any_of(set.rows, [&](const Row& row) {
           return row.measured.contains(quantity) || row.blind.contains(quantity);
         });
}

void print_quantities(const RowSet& set, const SetForecast& forecast, const std::vector<Case>& comparisons) {
  Table table({"row", "quantity", "measured", "predicted", "error", "blind forecast"});
  for (const auto [i, row] : enumerated(set.rows)) {
    std::string name = row.name + (row.role == RowRole::kFit ? " [fitted]" : "");
    for (const RowQuantity& quantity : kRowQuantities) {
      const auto found = forecast.rows[i].values.find(quantity.name);
      if (found == forecast.rows[i].values.end() || !shown(set, quantity.name)) continue;
      table.add({std::exchange(name, ""), quantity.name, text_of(json_of(row.measured), quantity.name),
                 with_range(found->second), error_text(relative_error(row, quantity.name, found->second)),
                 text_of(row.blind, quantity.name)});
    }
    if (const auto all = error_of_all_ranks(row, comparisons[i]))
      table.add({"", "  of all ranks' mean", "", "", error_text(all), ""});
  }
  std::cout << table.text() << '\n';
}

void print_details(const RowSet& set, const SetForecast& forecast, const std::vector<Case>& comparisons) {
  std::cout << fmt::format("{}\n{} ({})\n\n", set.id(), set.title, set.source);
  print_quantities(set, forecast, comparisons);
  for (const std::string& line : assumptions(set, forecast)) std::cout << "assumed: " << line << '\n';
  for (const std::string& line : forecast.unidentified)  // one line per value of what stays open
    std::cout << std::regex_replace(line, std::regex("; with "), "\n    with ") << '\n';
  for (const std::string& line : verdict(comparisons, set.limits)) std::cout << line << '\n';
  std::cout << '\n';
}

/// Every row of every case, by the quantity that it is judged by.
void print_all(const std::vector<Case>& rows) {
  std::cout << cases_text(rows,
                          {"case", "row", "quantity", "measured", "predicted", "error", "blind forecast",
                           "copy fit row", "ideal scaling", "alpha-beta", "counts as"})
            << '\n'
            << to_text(summarize(rows)) << '\n';
}

std::string evidence_file(const std::string& name) {
  return (home_folder() / "studies" / "measured" / (name + ".yaml")).string();
}

/// Whether a single set was requested, whose rows are printed.
bool is_single(const po::variables_map& values) { return text_option(values, "measured") != "all"; }

/// Everything that is printed and written of one set, as JSON with keys `text`, `accuracy` and `set` or
/// `collectives`.
nlohmann::json validated_set(const std::string& id, const po::variables_map& values, int jobs) {
  const std::string table = text_option(values, "rows");
  if (id == kCollectives) {
    const auto rows = measured_collectives(
        table.empty() ? find_resource("studies/measured", kCollectives, ".csv").string() : table);
    nlohmann::json json{{"text", id + "\n" + measured_collectives_text(rows) + "\n"},
                        {"accuracy", accuracy_of(id, rows)}};
    for (const CollectiveErrors& one : collective_errors(rows))
      json["collectives"].push_back({{"group", one.group},
                                     {"rows", one.forecast.count},
                                     {"error", one.forecast.geometric_mean()},
                                     {"worst", std::expm1(one.forecast.log.worst)},
                                     {"fitted_line", one.fitted.geometric_mean()},
                                     {"data_sheet", one.sheet.geometric_mean()}});
    return json;
  }
  SetResult result{read_rows(measured_path(id), table), {}};
  result.forecast = forecast(result.set, asked_here(), {.jobs = jobs, .seed = values["seed"].as<unsigned>()});
  return {{"text", set_text(result, is_single(values), flag_option(values, "every-row"))},
          {"accuracy", accuracy_of(result.set, result.forecast)},
          {"set", json_of(result.set, result.forecast)}};
}

/// Validates sets concurrently in child processes, those with the most rows first: they take the longest.
std::vector<nlohmann::json> validated_sets(std::vector<std::string> ids, const po::variables_map& values,
                                           int jobs) {
  if (ids.size() == 1) return {validated_set(ids.front(), values, jobs)};
  std::map<std::string, std::size_t> rows;
  for (const std::string& id : ids)
    rows[id] = id == kCollectives ? 0 : read_rows(measured_path(id)).rows.size();
  std::ranges::stable_sort(ids, std::greater<>(), [&](const std::string& id) { return rows[id]; });
  const auto count = static_cast<int>(ids.size());
  const auto texts = parallel_map(ids.size(), std::min(jobs, count), [&](std::size_t i) {
    return validated_set(ids[i], values, std::max(1, jobs / count)).dump();
  });
  auto results = transformed(texts, [](const std::string& text) { return nlohmann::json::parse(text); });
  std::ranges::sort(results, {},
                    [](const nlohmann::json& one) { return one["accuracy"]["set"].get<std::string>(); });
  return results;
}

/// Compares with the accuracy file, or writes it. A command that validates one set compares that one.
ExitCode check_accuracy(const std::vector<SetAccuracy>& sets, const po::variables_map& values) {
  const std::string path = evidence_file("accuracy");
  if (flag_option(values, "accept")) {
    if (is_single(values))
      throw UsageError("--accept requires --measured with all sets, because the file contains all");
    write_file(path, accuracy_yaml(sets), true);
    std::cerr << "wrote " << path << '\n';
  }
  if (!flag_option(values, "check")) return ExitCode::kDone;
  const std::vector<std::string> all = differences(sets, read_accuracy(path));
  for (const std::string& line : all) std::cerr << line << '\n';
  if (!all.empty())
    std::cerr << fmt::format("{}: {}; 'stepcast validate --measured --accept' writes the file anew\n", path,
                             counted(all.size(), "difference"));
  return all.empty() ? ExitCode::kDone : ExitCode::kOutOfTolerance;
}

ExitCode run_measured(const po::variables_map& values) {
  const std::string requested = text_option(values, "measured");
  const bool json = flag_option(values, "json"), single = is_single(values);
  const int jobs = jobs_option(values);
  if (!single && !text_option(values, "rows").empty())
    throw UsageError("--rows requires --measured ID, one set");
  std::vector<std::string> ids = measured_ids();
  ids.emplace_back(kCollectives);
  if (single && std::ranges::find(ids, requested) == ids.end())
    throw UsageError("--measured: {}", unknown_name("set", requested, ids));
  if (single) ids = {requested};
  nlohmann::json all{{"sets", nlohmann::json::array()}, {"lineage", nlohmann::json::array()}};
  std::vector<SetAccuracy> accuracy;
  for (nlohmann::json& one : validated_sets(ids, values, jobs)) {
    if (!json) std::cout << one["text"].get<std::string>();
    accuracy.push_back(one["accuracy"]);
    all["accuracy"].push_back(std::move(one["accuracy"]));
    if (one.contains("collectives")) {
      all["collectives"] = std::move(one["collectives"]);
      continue;
    }
    all["sets"].push_back(std::move(one["set"]));
    all["lineage"].push_back(make_ancestor("measured rows", measured_path(accuracy.back().set)));
  }
  if (!json && !single) std::cout << accuracy_text(accuracy);
  write_json_output(values, kMeasuredSchema, std::move(all));
  return check_accuracy(accuracy, values);
}

/// Writes the generated tables of documents anew, or with --check compares them.
ExitCode run_tables(const po::variables_map& values) {
  const std::vector<SetAccuracy> sets = read_accuracy(evidence_file("accuracy"));
  ExitCode code = ExitCode::kDone;
  for (const std::string& path : texts_option(values, "tables")) {
    const std::string before = read_file(path),
                      after = with_tables(before, path, sets, evidence_file("blind"));
    if (before == after) continue;
    if (!flag_option(values, "check")) {
      write_file(path, after, true);
      std::cout << "wrote " << path << '\n';
      continue;
    }
    std::cerr << fmt::format(
        "{0}: its tables differ from studies/measured/accuracy.yaml; 'stepcast validate --tables {0}' "
        "writes them anew\n",
        path);
    code = ExitCode::kOutOfTolerance;
  }
  return code;
}

/// Refuses options that this mode does not read.
void refuse_others(const po::variables_map& values) {
  const bool tables = values.count("tables") != 0, measured = !tables && values.count("measured") != 0;
  std::set<std::string> used{"cases", "case", "details", "output", "json", "force"};
  if (measured)
    used = {"measured", "rows", "every-row", "jobs", "seed", "check", "accept", "output", "json", "force"};
  if (tables) used = {"tables", "check"};
  for (const auto& [name, value] : values)
    if (!value.empty() && !value.defaulted() && !used.contains(name))
      throw UsageError("--{} has no effect {}", name,
                       tables     ? "with --tables"
                       : measured ? "with --measured"
                                  : "without --measured or --tables");
}

ExitCode run(const po::variables_map& values) {
  refuse_others(values);
  check_output(values);
  if (values.count("tables") != 0) return run_tables(values);
  if (values.count("measured") != 0) return run_measured(values);
  const bool json = flag_option(values, "json");
  const std::vector<RowSet> cases = chosen_cases(values);
  nlohmann::json all{{"cases", nlohmann::json::array()}, {"lineage", nlohmann::json::array()}};
  std::vector<Case> rows;
  const AskPrediction ask = asked_here();
  for (const RowSet& one : cases) {
    const SetForecast found = forecast(one, ask);
    const std::vector<Case> comparisons = compare_rows(one, found);
    all["cases"].push_back(case_json(one, found, comparisons));
    all["lineage"].push_back(make_ancestor("published case", one.path));
    if (flag_option(values, "details") && !json) print_details(one, found, comparisons);
    rows.insert(rows.end(), comparisons.begin(), comparisons.end());
  }
  if (!json) print_all(rows);
  all["summary"] = summary_json(summarize(rows));
  write_json_output(values, kValidationSchema, std::move(all));
  return ExitCode::kDone;
}

const Registration<Command> kValidate{commands(), "validate", {.declare = declare, .run = run}, 22};

}  // namespace
}  // namespace stepcast

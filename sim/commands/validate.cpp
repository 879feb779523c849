#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/file.hpp"
#include "core/processes.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/measured_output.hpp"
#include "sim/commands/predict.hpp"
#include "sim/validation/case_prediction.hpp"
#include "sim/validation/measured_collectives.hpp"
#include "sim/validation/row_comparison.hpp"

namespace stepcast {
namespace {

constexpr const char* kValidationSchema = "stepcast.validation/1";
constexpr const char* kMeasuredSchema = "stepcast.measured/1";
constexpr const char* kCollectives = "nccl_collectives";

/// What --help says of --case.
std::string describe_cases() {
  std::string text = "only this one; shipped are";
  for (const PublishedCase& one : load_published("")) text += "\n" + one.id + ": " + one.title;
  return text;
}

std::string describe_measured() {
  std::string text = "instead: steps and collectives on GPUs that others measured, all sets or this one";
  for (const std::string& id : measured_ids()) text += "\n" + id;
  return text + "\n" + kCollectives;
}

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("cases", po::value<std::string>(),
       "a further case, a file in the form of those in studies/published; one named as a shipped case takes its place")
      ("case", po::value<std::string>(), describe_cases().c_str())
      ("measured", po::value<std::string>()->implicit_value("all"), describe_measured().c_str())
      ("rows", text_value("", "its own"), "with --measured ID: another part of the same table, a CSV file with the same columns")
      ("every-row", po::bool_switch(), "with --measured: print every row")
      ("jobs", po::value<int>()->default_value(0, "one per core"), "with --measured: processes that forecast at once")
      ("seed", po::value<unsigned>()->default_value(1), "with --measured: of the folds of cross-validations");
  // clang-format on
  declare_output(options, "the predictions");
}

std::vector<PublishedCase> chosen_cases(const po::variables_map& values) {
  std::vector<PublishedCase> cases =
      load_published(values.count("cases") != 0 ? values["cases"].as<std::string>() : "");
  if (values.count("case") == 0) return cases;
  const auto id = values["case"].as<std::string>();
  std::vector<std::string> known;
  for (PublishedCase& one : cases) {
    if (one.id == id) return {std::move(one)};
    known.push_back(one.id);
  }
  throw UsageError("--case: " + unknown_name("case", id, known));
}

/// `8529 | 4210 | 4210 | 4399`: one value per rank.
std::string listed(const std::vector<double>& numbers) {
  std::string text;
  for (const double number : numbers) text += (text.empty() ? "" : " | ") + short_number(number);
  return text;
}

/// `753.8  (747.7 to 753.8)`
std::string with_range(const PredictedValue& value) {
  const std::string ranges = range_text(value);
  const std::string central = listed(value.central);
  return ranges == central ? central : central + "  (" + ranges + ")";
}

/// What was measured, or forecast blind, of a quantity.
std::string text_of(const nlohmann::json& values, const std::string& quantity) {
  if (!values.contains(quantity)) return "-";
  return listed(values[quantity].is_array() ? values[quantity].get<std::vector<double>>()
                                            : std::vector{values[quantity].get<double>()});
}

/// Whether people ask for it here: a row knows it, or it is the step.
bool shown(const PublishedCase& published, const std::string& quantity) {
  return quantity == "step_time_s" ||
         std::any_of(published.rows.begin(), published.rows.end(), [&](const PublishedRow& row) {
           return row.measured.contains(quantity) || row.blind.contains(quantity);
         });
}

std::string percent_of(const std::optional<double>& error) {
  return error ? signed_percent_text(*error) : "-";
}

std::string marked(const Case& row) {
  return row.name + (row.standing == Standing::kFitted ? " [fitted]" : "");
}

/// One line per value of what stays open.
std::string in_lines(std::string text) {
  constexpr std::string_view kMark = "; with ";
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at))
    text.replace(at, kMark.size(), "\n    with ");
  return text;
}

void print_quantities(const PublishedCase& published, const CasePrediction& prediction,
                      const std::vector<Case>& comparisons) {
  Table table({"row", "what", "measured", "predicted", "error", "blind forecast"});
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    const PublishedRow& row = published.rows[i];
    std::string name = marked(comparisons[i]);
    for (const RowQuantity& quantity : row_quantities()) {
      const auto found = prediction.rows[i].find(quantity.name);
      if (found == prediction.rows[i].end() || !shown(published, quantity.name)) continue;
      table.add({std::exchange(name, ""), quantity.name, text_of(row.measured, quantity.name),
                 with_range(found->second), percent_of(relative_error(row, quantity.name, found->second)),
                 text_of(row.blind, quantity.name)});
    }
    if (const auto all = error_of_all_ranks(row, comparisons[i]))
      table.add({"", "  of all ranks' mean", "", "", percent_of(all), ""});
  }
  std::cout << table.text() << '\n';
}

void print_case(const PublishedCase& published, const CasePrediction& prediction,
                const std::vector<Case>& comparisons) {
  std::cout << published.id << "\n" << published.title << " (" << published.source << ")\n\n";
  print_quantities(published, prediction, comparisons);
  for (const std::string& line : prediction.assumed) std::cout << "assumed: " << line << '\n';
  for (const std::string& line : prediction.unidentified) std::cout << in_lines(line) << '\n';
  for (const std::string& line : verdict(comparisons, published.limits)) std::cout << line << '\n';
  std::cout << '\n';
}

/// Every row of every case, by the quantity that it is judged by.
void print_all(const std::vector<Case>& rows) {
  std::cout << cases_text(rows, {"case", "row", "what", "measured", "predicted", "error", "blind forecast",
                                 "copy fit row", "ideal scaling", "alpha-beta", "counts as"})
            << '\n'
            << to_text(summarize(rows)) << '\n';
}

ExitCode run_measured(const po::variables_map& values) {
  const auto asked = values["measured"].as<std::string>();
  const auto rows = values["rows"].as<std::string>();
  if (asked == "all" && !rows.empty()) throw UsageError("--rows goes with --measured ID, one of its tables");
  const int jobs =
      values["jobs"].as<int>() == 0 ? default_jobs() : int_option(values, "jobs", 1, kMostThreads);
  nlohmann::json all{{"sets", nlohmann::json::array()}};
  std::vector<SetResult> results;
  const std::vector<std::string> sets = asked == "all"          ? measured_ids()
                                        : asked == kCollectives ? std::vector<std::string>{}
                                                                : std::vector{asked};
  for (const std::string& id : sets) {
    SetResult one{read_measured(measured_path(id), rows), {}};
    one.forecast = forecast(one.set, asked_here(), {.jobs = jobs, .seed = values["seed"].as<unsigned>()});
    if (!values["json"].as<bool>())
      std::cout << set_text(one, asked != "all", values["every-row"].as<bool>()) << std::flush;
    all["sets"].push_back(json_of(one.set, one.forecast));
    results.push_back(std::move(one));
  }
  if (asked == "all" || asked == kCollectives) {
    const std::string path =
        rows.empty() ? find_resource("studies/measured", kCollectives, ".csv").string() : rows;
    const std::vector<MeasuredCollective> collectives = measured_collectives(path);
    if (!values["json"].as<bool>())
      std::cout << kCollectives << '\n' << measured_collectives_text(collectives) << std::flush;
    for (const CollectiveError& one : collective_errors(collectives))
      all["collectives"].push_back({{"device", one.device},
                                    {"collective", to_text(one.kind)},
                                    {"gpus", one.gpus},
                                    {"rows", one.rows},
                                    {"error", one.forecast},
                                    {"worst", one.worst},
                                    {"fitted_line", one.fitted},
                                    {"data_sheet", one.sheet}});
  }
  if (!values["json"].as<bool>() && asked == "all") std::cout << '\n' << sets_text(results);
  all["context"] = make_run_context(kMeasuredSchema, command_line());
  all["lineage"] = nlohmann::json::array();
  for (const SetResult& one : results) all["lineage"].push_back(make_ancestor("measured rows", one.set.path));
  write_output(values, [&] { return to_file_text(all); });
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  check_output(values);
  if (values.count("measured") != 0) return run_measured(values);
  const std::vector<PublishedCase> cases = chosen_cases(values);
  nlohmann::json all{{"cases", nlohmann::json::array()}};
  std::vector<Case> rows;
  const AskPrediction ask = asked_here();
  for (const PublishedCase& one : cases) {
    const CasePrediction prediction = predict_case(one, ask);
    const std::vector<Case> comparisons = compare_rows(one, prediction);
    all["cases"].push_back(case_json(one, prediction, comparisons));
    if (!values["json"].as<bool>()) print_case(one, prediction, comparisons);
    rows.insert(rows.end(), comparisons.begin(), comparisons.end());
  }
  if (!values["json"].as<bool>()) print_all(rows);
  all["summary"] = summary_json(summarize(rows));
  all["context"] = make_run_context(kValidationSchema, command_line());
  all["lineage"] = nlohmann::json::array();
  for (const PublishedCase& one : cases) all["lineage"].push_back(make_ancestor("published case", one.path));
  write_output(values, [&] { return to_file_text(all); });
  return ExitCode::kDone;
}

const Registration<Command> kValidate{
    commands(),
    {.name = "validate",
     .description =
         "Predicts what others have published, from the rows that may be used, and shows every error.",
     .value = {.declare = declare,
               .run = run,
               .positional = "",
               .usage = "stepcast validate [--cases FILE] [--case ID] [options]\n       stepcast validate "
                        "--measured [ID] [options]",
               .group = "Predict and compare"},
     .order = 22}};

}  // namespace
}  // namespace stepcast

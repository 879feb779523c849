#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/file.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/validation/case_prediction.hpp"
#include "sim/validation/published.hpp"
#include "sim/validation/row_comparison.hpp"

namespace stepcast {
namespace {

constexpr const char* kValidationSchema = "stepcast.validation/1";

/// What --help says of --case.
std::string describe_cases() {
  std::string text = "only this one; predicted are";
  for (const auto& entry : case_predictors().entries()) text += "\n" + entry.name + ": " + entry.description;
  return text;
}

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("cases", po::value<std::string>(),
       "file of further cases, in the form of calibration/data/published.json; one with the id of a shipped "
       "case takes its place, others name one by 'like'")
      ("case", po::value<std::string>(), describe_cases().c_str());
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

/// What the row says of a quantity.
std::string measured_text(const PublishedRow& row, const std::string& key) {
  if (!row.facts.contains(key)) return "-";
  if (row.facts[key].is_null()) return "no measurement here";
  if (!row.facts[key].is_array()) return short_number(row.facts[key].get<double>());
  return listed(row.facts[key].get<std::vector<double>>());
}

/// In the order in which people ask.
constexpr std::array kQuantities{"throughput_samples_per_s",
                                 "total_time_s",
                                 "epoch_time_s",
                                 "mean_iteration_s",
                                 "time_s",
                                 "step_time_s",
                                 "compute_time_s",
                                 "communication_time_s",
                                 "speedup",
                                 "efficiency",
                                 "peak_memory_mb_per_rank",
                                 "mean_peak_memory_mb",
                                 "stage_time_cv",
                                 "memory_cv",
                                 "bubble_fraction"};

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
  Table table({"row", "what", "measured", "predicted", "error"});
  for (std::size_t i = 0; i < published.rows.size(); ++i) {
    const PublishedRow& row = published.rows[i];
    std::string name = marked(comparisons[i]);
    if (prediction.rows[i].empty()) {
      const std::string what = leading_quantity(row);
      table.add({name, what, measured_text(row, what), "not predicted yet", "-"});
      continue;
    }
    for (const char* key : kQuantities) {
      if (!prediction.rows[i].contains(key)) continue;
      const PredictedValue& value = prediction.rows[i].at(key);
      table.add({std::exchange(name, ""), key, measured_text(row, key), with_range(value),
                 percent_of(relative_error(row, key, value))});
    }
    if (const auto all = error_of_all_ranks(row, comparisons[i]))
      table.add({"", "  of all ranks' mean", "", "", percent_of(all)});
  }
  std::cout << table.text() << '\n';
}

void print_case(const PublishedCase& published, const CasePrediction& prediction,
                const std::vector<Case>& comparisons) {
  std::cout << published.id << "\n" << published.text("source", "") << "\n\n";
  print_quantities(published, prediction, comparisons);
  if (!prediction.not_predicted.empty()) std::cout << prediction.not_predicted << '\n';
  for (const std::string& line : prediction.assumed) std::cout << "assumed: " << line << '\n';
  for (const std::string& line : prediction.unidentified) std::cout << in_lines(line) << '\n';
  for (const std::string& line : verdict(comparisons, prediction.limits)) std::cout << line << '\n';
  std::cout << '\n';
}

/// Every row of every case, by the quantity that it is judged by.
void print_all(const std::vector<Case>& rows) {
  std::cout << cases_text(rows, {"case", "row", "what", "measured", "predicted", "error", "copy fit row",
                                 "ideal scaling", "alpha-beta", "counts as"})
            << '\n'
            << to_text(summarize(rows)) << '\n';
}

ExitCode run(const po::variables_map& values) {
  check_output(values);
  const std::vector<PublishedCase> cases = chosen_cases(values);
  nlohmann::json all{{"cases", nlohmann::json::array()}};
  std::vector<Case> rows;
  for (const PublishedCase& one : cases) {
    const CasePrediction prediction = predict_case(one);
    const std::vector<Case> comparisons = compare_rows(one, prediction);
    all["cases"].push_back(case_json(one, prediction, comparisons));
    if (!values["json"].as<bool>()) print_case(one, prediction, comparisons);
    rows.insert(rows.end(), comparisons.begin(), comparisons.end());
  }
  if (!values["json"].as<bool>()) print_all(rows);
  all["summary"] = summary_json(summarize(rows));
  all["context"] = make_run_context(kValidationSchema, command_line());
  all["lineage"] = nlohmann::json::array({make_ancestor("published cases", published_path())});
  if (values.count("cases") != 0)
    all["lineage"].push_back(make_ancestor("cases", values["cases"].as<std::string>()));
  write_output(values, [&] { return to_file_text(all); });
  return ExitCode::kDone;
}

const Registration<Command> kValidate{
    commands(),
    {.name = "validate",
     .description =
         "Predicts what others have published, from the rows that may be used, and shows every error.",
     .thing = {.declare = declare,
               .run = run,
               .positional = "",
               .usage = "stepcast validate [--cases FILE] [--case ID] [options]",
               .group = "Predict and compare"},
     .order = 22}};

}  // namespace
}  // namespace stepcast

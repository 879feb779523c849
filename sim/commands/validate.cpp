#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/measured_output.hpp"
#include "sim/commands/predict.hpp"
#include "sim/evidence/measured_collectives.hpp"
#include "sim/evidence/row_forecast.hpp"

namespace stepcast::validate_command {
namespace {

constexpr const char* kValidationSchema = "stepcast.validation/2";
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
  const ShownRows shown = !is_single(values)                 ? ShownRows::kNone
                          : flag_option(values, "every-row") ? ShownRows::kEvery
                                                             : ShownRows::kWorst;
  return {{"text", set_text(result, shown)},
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
  if (single && !contains(ids, requested))
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
  write_json_output(values, kValidationSchema, std::move(all));
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

/// Validates the published sets; their rows are summarised together.
ExitCode run_published(const po::variables_map& values) {
  const bool json = flag_option(values, "json"), details = flag_option(values, "details");
  nlohmann::json output{{"sets", nlohmann::json::array()}, {"lineage", nlohmann::json::array()}};
  SetResult all{{.path = "published", .title = "published runs"}, {}};
  const AskPrediction ask = asked_here();
  for (RowSet& set : chosen_cases(values)) {
    const SetResult one{set, forecast(set, ask)};
    if (details && !json) std::cout << set_text(one, ShownRows::kDetailed);
    output["sets"].push_back(json_of(one.set, one.forecast));
    output["lineage"].push_back(make_ancestor("published rows", set.path));
    for (Row& row : set.rows) row.parts = {set.id()};
    append(all.set.rows, set.rows);
    append(all.forecast.rows, one.forecast.rows);
  }
  if (!json) std::cout << rows_text(all, ShownRows::kEvery) << '\n' << summary_text(all);
  output["accuracy"].push_back(accuracy_of(all.set, all.forecast));
  write_json_output(values, kValidationSchema, std::move(output));
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  refuse_others(values);
  check_output(values);
  if (values.count("tables") != 0) return run_tables(values);
  return values.count("measured") != 0 ? run_measured(values) : run_published(values);
}

const Registration<Command> kValidate{commands(), "validate", {.declare = declare, .run = run}, 22};

}  // namespace
}  // namespace stepcast::validate_command

#include "sim/study/rows.hpp"

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "sim/evidence/case.hpp"
#include "sim/evidence/quantities.hpp"

namespace stepcast {
namespace {

/// `1e6 / tokens_per_s * ranks`, from left to right. No value where a name has none, nor for a quotient by 0.
decltype(StudyColumn::derived) formula_of(const YamlNode& node, const YamlNode& columns) {
  struct Factor {
    bool divides;
    std::string name;
    std::optional<double> number;
  };
  std::vector<Factor> factors;
  std::istringstream words(node.text());
  std::string sign = "*";
  for (std::string word; words >> word; words >> sign) {
    const auto number = number_in<double>(word);
    if (sign != "*" && sign != "/") node.fail("expected * or /, found '{}'", sign);
    if (!number && !columns.has(word) && word != "per_device_hour" && word != "epoch_samples")
      node.fail("unknown name '{}'; known are columns, per_device_hour and epoch_samples", word);
    factors.push_back({sign == "/", word, number});
  }
  return [factors](const ColumnValues& values, const StudyCost& cost) -> std::optional<double> {
    double product = 1.0;
    for (const auto& [divides, name, number] : factors) {
      const auto value = number                      ? number
                         : name == "per_device_hour" ? cost.per_device_hour
                         : name == "epoch_samples"   ? cost.epoch_samples
                                                     : optional_at(values, name);
      if (!value || (divides && !(*value > 0.0))) return std::nullopt;
      product = divides ? product / *value : product * *value;
    }
    return product;
  };
}

std::vector<StudyColumn> read_columns() {
  static const std::map<std::string, Better> kBetter{{"more", Better::kMore}, {"less", Better::kLess}};
  const YamlNode file = YamlNode::shipped("studies/columns/columns.yaml");
  std::vector<StudyColumn> columns;
  for (const auto& [name, node] : entries_of(file)) {
    node.allow_only({"label", "better", "formula", "measured", "meaning"});
    StudyColumn column{.name = name,
                       .label = node.at("label").text(),
                       .meaning = node.at("meaning").text(),
                       .measured = node.flag("measured")};
    if (node.has("better")) column.better = node.at("better").named("better", kBetter);
    if (node.has("formula")) column.derived = formula_of(node.at("formula"), file);
    columns.push_back(std::move(column));
  }
  return columns;
}

/// `"a, ""b"""` if a text contains a separator, a quote or a line break.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return "\"" + boost::replace_all_copy(text, "\"", "\"\"") + "\"";
}

}  // namespace

const std::vector<StudyColumn>& study_columns() {
  static const std::vector<StudyColumn> kColumns = read_columns();
  return kColumns;
}

std::optional<double> StudyRow::value(std::string_view column) const { return optional_at(values, column); }

void StudyRow::set(const std::string& column, double value) { values[study_column(column).name] = value; }

const StudyColumn& study_column(const std::string& name) {
  return named(study_columns(), &StudyColumn::name, "column", name);
}

std::string column_text(const StudyRow& row, const std::string& column, const std::string& missing) {
  const auto found = row.value(column);
  if (!found) return missing;
  const double value = *found;
  if (column == "efficiency" || column == "bubble_fraction" || column == "effective_training_time")
    return percent_text(value);
  if (column == "fits") return value > 0.0 ? "yes" : "no";
  if (column.ends_with("_s") && !column.ends_with("per_s")) return to_text(Seconds(value));
  return column.ends_with("_bytes") ? to_text(Bytes(value)) : short_number(value);
}

std::vector<std::string> study_column_names() { return transformed(study_columns(), &StudyColumn::name); }

StudyRow row_of(const StudyPoint& point, const Result& result, const PointFacts& facts) {
  StudyRow row{.key = point.key};
  const int ranks = result.configuration.world_size;
  const double step_s = result.median_step_time_s(), peak = highest_peak_bytes(result);
  row.set("ranks", ranks);
  row.set("step_time_s", step_s);
  row.set("bubble_fraction", result.bubble_fraction());
  row.set("bytes_sent_per_rank", result.bytes_sent_per_rank);
  if (const auto ideal = optional_at(result.forecast.baseline_step_time_s, "ideal_scaling")) {
    row.set("efficiency", *ideal / step_s);
    row.set("speed_up", *ideal / step_s * ranks);
  }
  if (result.configuration.data_parallel > 0) {
    const double samples_per_s = result.throughput_samples_per_s();
    row.set("throughput_samples_per_s", samples_per_s);
    if (facts.tokens_per_sample > 0.0) row.set("tokens_per_s", samples_per_s * facts.tokens_per_sample);
  }
  for (const auto& [name, part] : breakdown_parts())
    if (const auto mean = mean_part(result, part)) row.set(name + "_s", *mean);
  const double communication_s = row.value("exposed_communication_s").value_or(0.0) +
                                 row.value("overlapped_communication_s").value_or(0.0);
  if (communication_s > 0.0)
    row.set("compute_communication_ratio", row.values.at("compute_s") * (1.0 / communication_s));
  if (peak > 0.0) row.set("peak_memory_bytes", peak);
  if (peak > 0.0 && facts.memory > Bytes(0) && !result.notes.contains("activations")) {
    const bool host_fits = !value_or(result.notes, "offload", "").ends_with("does not fit");
    const double needed = largest_of(result.memory, &MemoryUse::needed_bytes);
    row.set("fits", needed <= facts.memory.count() && host_fits ? 1.0 : 0.0);
  }
  if (facts.power > Watts(0)) row.set("power_w", ranks * facts.power.count());
  return row;
}

void derive_columns(StudyRows& rows, const StudyCost& cost) {
  for (auto& [key, row] : rows)
    for (const StudyColumn& column : study_columns())
      if (const auto value = column.derived ? column.derived(row.values, cost) : std::nullopt)
        row.values[column.name] = *value;
}

void add_measured(StudyRow& row, const Case& one, const std::vector<double>& slowdowns) {
  const double error = one.relative_error();
  row.set("measured_s", one.measured->value);
  row.set("measured_low_s", one.measured->low);
  row.set("measured_high_s", one.measured->high);
  row.set("relative_error", error);
  row.set("absolute_error", std::abs(error));
  row.set("error_outside_launches", one.inside_launch_range() ? 0.0 : std::abs(error));
  if (const auto speed_up = row.values.find("speed_up"); speed_up != row.values.end())
    row.set("measured_speed_up", speed_up->second * (1.0 + error));
  for (const char* predictor : {"ideal_scaling", "alpha_beta", "overlap", "bubble_formula"})
    if (const auto found = one.trivial.find(predictor); found != one.trivial.end())
      row.set(std::string(predictor) + "_error", std::abs(*one.error_of(found->second)));
  if (!slowdowns.empty()) row.set("reference_slowdown", median(slowdowns));
  const auto at_equal_speed = one.error_at_equal_speed();
  if (!at_equal_speed) return;
  row.set("error_at_equal_speed", *at_equal_speed);
  row.set("absolute_error_at_equal_speed", std::abs(*at_equal_speed));
}

std::string line_of(const StudyRow& row) {
  nlohmann::ordered_json json;
  json["point"] = row.key;
  if (!row.error.empty()) json["error"] = row.error;
  if (row.lost) json["lost"] = true;
  for (const auto& [name, value] : row.values) json[std::string(name)] = value;
  return json.dump() + "\n";
}

std::optional<StudyRow> row_of_line(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("point")) return std::nullopt;
  static const std::set<std::string, std::less<>> kNames = [] {
    const std::vector<std::string> names = study_column_names();
    return std::set<std::string, std::less<>>(names.begin(), names.end());
  }();
  StudyRow row;
  row.values.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    if (name == "point" && value.is_string())
      row.key = value.get<std::string>();
    else if (name == "error" && value.is_string())
      row.error = value.get<std::string>();
    else if (name == "lost" && value.is_boolean())
      row.lost = value.get<bool>();
    else if (const auto known = kNames.find(name); known != kNames.end() && value.is_number())
      row.values[*known] = value.get<double>();
    else
      return std::nullopt;
  }
  return row;
}

std::string csv_of(const Study& study, const StudyRows& rows) {
  constexpr std::size_t kSample = 1000;  // lines from whose length the length of all is estimated
  std::string text;
  for (const std::string& name : study.names) text += csv_cell(name) + ",";
  for (const StudyColumn& column : study_columns()) text += column.name + ",";
  text += "error\n";
  std::size_t lines = 0;
  for (const StudyPoint& point : study.points) {
    if (++lines == kSample) text.reserve(text.size() / kSample * (study.points.size() + kSample));
    const auto found = rows.find(point.key);
    if (found == rows.end()) continue;
    for (const std::string& cell : name_cells(study, point, "")) text += csv_cell(cell) + ",";
    for (const StudyColumn& column : study_columns()) {
      if (const auto value = found->second.value(column.name)) text += nlohmann::json(*value).dump();
      text += ",";
    }
    text += csv_cell(found->second.error) + "\n";
  }
  return text;
}

std::vector<const StudyPoint*> fastest_points(const Study& study, const StudyRows& rows, std::size_t count) {
  using Order = std::tuple<double, double, std::size_t>;
  std::map<Order, const StudyPoint*> fastest;
  std::unordered_set<std::string_view> keys;
  for (const StudyPoint& point : study.points) {
    const auto row = rows.find(point.key);
    if (row == rows.end() || !row->second.error.empty() || !keys.insert(point.key).second) continue;
    fastest.emplace(Order(-row->second.value("throughput_samples_per_s").value_or(0.0),
                          row->second.value("step_time_s").value_or(0.0), keys.size()),
                    &point);
    if (fastest.size() > count) fastest.erase(std::prev(fastest.end()));
  }
  return transformed(fastest, [](const auto& one) { return one.second; });
}

std::vector<std::string> name_cells(const Study& study, const StudyPoint& point, const std::string& missing) {
  return transformed(study.names,
                     [&](const std::string& name) { return point.assigned.value_or(name, missing); });
}

}  // namespace stepcast

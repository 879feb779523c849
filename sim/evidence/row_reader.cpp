#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <regex>
#include <set>
#include <utility>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/units.hpp"
#include "sim/evidence/rows.hpp"

namespace stepcast {
namespace {

/// Quantity that `memory` with this `of` means. Without `of`, it is kPeakMemory.
const std::map<std::string, const char*> kMemoryKinds{
    {"last", kLastRankMemory}, {"reserved", kReservedMemory}, {"process", kProcessMemory}};

double positive(const YamlNode& node) {
  const double value = node.number();
  if (value <= 0.0) node.fail("found {}, expected a number above 0", node.text());
  return value;
}

/// By quantity a number above 0, or a list of them.
RowValues quantities_of(const YamlNode& map, const std::vector<std::string>& others = {}) {
  RowValues result;
  for (const auto& [key, value] : entries_of(map)) {
    if (std::ranges::find(others, key) != others.end()) continue;
    static_cast<void>(map.placed([&name = key] { return quantity_named(name); }));
    if (!value.is_sequence()) {
      result[key] = {positive(value)};
      continue;
    }
    for (const YamlNode& one : value.items()) result[key].push_back(positive(one));
    if (result[key].empty()) value.fail("found an empty list, expected a number per rank");
  }
  return result;
}

nlohmann::json blind_of(const YamlNode& map) {
  nlohmann::json result = json_of(quantities_of(map, {"revision", "recorded", "range"}));
  for (const char* key : {"revision", "recorded"})
    if (map.has(key)) result[key] = map.at(key).text();
  for (const YamlNode& one : map.items("range")) result["range"].push_back(positive(one));
  return result;
}

/// `{value: 1%, because: two runs differ by as much}`
Uncertainty uncertainty_of(const YamlNode& node) {
  node.allow_only({"value", "because"});
  const std::string part = node.at("value").text();
  const double sigma = percentage_in(part).value_or(0.0);
  if (sigma <= 0.0) node.at("value").fail("found '{}', expected a part of the measurement, such as 1%", part);
  return {sigma, node.at("because").text()};
}

OpenChoice open_choice(const std::string& name, const YamlNode& node) {
  constexpr long long kMostValues = 10'000;
  node.allow_only({"to", "values", "source"});
  if (node.has("to") == node.has("values")) node.fail("expected either 'to' or 'values'");
  OpenChoice result{name, {}, node.has("to"), node.at("source").text()};
  if (node.has("to")) {
    const long long most = node.at("to").integer();
    if (most < 1 || most > kMostValues) node.at("to").fail("expected 1 to {}", kMostValues);
    for (long long value = 1; value <= most; ++value) result.values.push_back(std::to_string(value));
    return result;
  }
  result.values = transformed(node.at("values").items(), &YamlNode::text);
  if (result.values.empty()) node.at("values").fail("found an empty list, expected at least one value");
  return result;
}

/// The value of an expression. \throws InputError unless it is above 0
double number_of(const YamlNode& node, const Assignment& values) {
  const auto number = evaluate(node.text(), values);
  if (!number || !(*number > 0.0)) node.fail("'{}' is no number above 0 in a row", node.text());
  return *number;
}

/// Leaves the values that options contain: the rest of a table may reveal the measured value.
void keep_named(const Assignment& predict, Assignment& values) {
  std::set<std::string> named;
  const auto add = [&](const std::string& text) { named.merge(names_in(text)); };
  for (const auto& [option, text] : predict.values()) add(text);
  for (const auto& [name, value] : values.values())
    if (named.contains(name)) add(value);
  for (const std::string& name : values.names())
    if (!named.contains(name)) values.erase(name);
}

/// Conditions may contain names of columns that are empty in this row; they do not hold then.
bool holds_in(const YamlNode& when, const Row& row) {
  for (const std::string& key : when.keys())
    if (row.values.find(key) == nullptr) return false;
  return Condition(when, row.values.names()).holds(row.values);
}

/// Sets what a regular expression finds in a cell: its group, or all of it without one.
void add_patterns(const YamlNode& patterns, Assignment& values) {
  for (const auto& [name, pattern] : entries_of(patterns)) {
    pattern.allow_only({"in", "find", "else"});
    const std::string* cell = values.find(pattern.at("in").text());
    std::smatch found;
    try {
      const bool fits =
          cell != nullptr && std::regex_search(*cell, found, std::regex(pattern.at("find").text()));
      values.set(name, fits ? found.str(found.size() > 1 ? 1 : 0) : pattern.at("else").text());
    } catch (const std::regex_error& error) {
      pattern.at("find").fail("is no regular expression: {}", error.what());
    }
  }
}

/// A measured step with a unit. \throws InputError unless it is above 0 s
double step_of(const std::string& text, const std::string& where) {
  const double step = parse_seconds(text, where + ": step").count();
  if (!(step > 0.0)) throw InputError("{}: step: found '{}', expected more than 0s", where, text);
  return step;
}

/// A row of a table with the values of its cells; empty cells have none. \param name_of a column
Row table_row(const std::string& path, const CsvTable& table, std::size_t line, const auto& name_of) {
  Row row;
  row.name = row.where =
      fmt::format("{}:{}", std::filesystem::path(path).filename().string(), table.lines[line]);
  for (std::size_t j = 0; j < table.columns.size(); ++j)
    if (!table.rows[line][j].empty()) row.values.set(name_of(table.columns[j]), table.rows[line][j]);
  return row;
}

/// Reads a YAML file with rows, or with the name of a table.
class RowReader {
 public:
  /// \param rows path of a table that replaces the file's own; may be empty
  RowReader(const std::string& path, const std::string& rows)
      : file_(YamlNode::load(path)), set_{.path = path}, rows_(rows) {
    file_.allow_only({"study",   "source",   "rows",  "columns", "patterns",     "values",    "classes",
                      "predict", "measured", "work",  "group",   "parts",        "leave out", "free",
                      "open",    "fit",      "sigma", "epoch",   "global_batch", "assumed",   "limits"});
  }

  RowSet read() {
    set_.title = file_.at("study").text();
    set_.source = file_.at("source").text();
    set_.limits = file_.text_or("limits", "");
    if (file_.has("predict")) set_.predict = assignment_of(file_.at("predict"));
    set_.assumed = transformed(file_.items("assumed"), &YamlNode::text);
    read_parameters();
    set_.table = file_.at("rows").is_scalar();
    set_.table ? read_table() : read_inline_rows();
    return std::move(set_);
  }

 private:
  void read_parameters() {
    for (const auto& [name, node] : entries_of(file_, "free"))
      set_.free.push_back(free_parameter(name, node));
    for (const auto& [name, node] : entries_of(file_, "open")) set_.open.push_back(open_choice(name, node));
    if (file_.has("sigma")) set_.uncertainty = uncertainty_of(file_.at("sigma"));
    set_.global_batch = file_.flag("global_batch");
    if (!file_.has("epoch")) return;
    const YamlNode epoch = file_.at("epoch").allow_only({"samples", "epochs"});
    set_.epoch.samples = positive(epoch.at("samples"));
    if (epoch.has("epochs")) set_.epoch.epochs = positive(epoch.at("epochs"));
  }

  void read_table() {
    static_cast<void>(file_.at("predict"));
    read_fit();
    check_measured();
    const auto beside = std::filesystem::path(set_.path).parent_path() / file_.at("rows").text();
    const std::string path = rows_.empty() ? beside.string() : rows_;
    const CsvTable table = read_csv(path);
    set_.sha1 = sha1(read_file(path));
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      set_.rows.push_back(table_row(path, table, i, [&](const auto& column) { return name_of(column); }));
      complete(set_.rows.back());
    }
  }

  void read_fit() {
    if (!file_.has("fit") && !set_.free.empty())
      file_.at("free").fail("needs 'fit', which names the rows that parameters are fitted to");
    if (!file_.has("fit")) return;
    const YamlNode fit = file_.at("fit").allow_only({"folds", "when"});
    if (fit.has("folds") == fit.has("when")) fit.fail("expected either 'folds' or 'when'");
    if (!fit.has("folds")) return;
    constexpr long long kMostFolds = 100;
    set_.folds = static_cast<int>(std::clamp(fit.at("folds").integer(), 0LL, kMostFolds));
    if (set_.folds < 2) fit.at("folds").fail("expected 2 to {}", kMostFolds);
  }

  void check_measured() const {
    const YamlNode measured = file_.at("measured").allow_only({"step", "work", "rate", "memory", "of"});
    const bool by_rate = measured.has("work") && measured.has("rate");
    if ((measured.has("step") && by_rate) || (!measured.has("step") && !by_rate && !measured.has("memory")))
      measured.fail("expected either 'step', or 'work' and 'rate', or 'memory' alone");
    if (measured.has("of")) static_cast<void>(measured.at("of").named("memory", kMemoryKinds));
  }

  [[nodiscard]] std::string name_of(const std::string& column) const {
    for (const auto& [name, of] : entries_of(file_, "columns"))
      if (of.text() == column) return name;
    return column;
  }

  void complete(Row& row) const {
    if (file_.has("patterns")) add_patterns(file_.at("patterns"), row.values);
    if (is_left_out(row)) return;
    if (file_.has("values")) add_values(file_.at("values"), row.values);
    if (is_left_out(row)) return;
    if (file_.has("classes")) add_classes(file_.at("classes"), row.values);
    read_measured_values(row);
    if (file_.has("work")) row.work = number_of(file_.at("work"), row.values);
    row.group = expand(file_.text_or("group", ""), row.values).text;
    for (const YamlNode& part : file_.items("parts"))
      row.parts.push_back(expand(part.text(), row.values).text);
    if (file_.has("fit") && file_.at("fit").has("when") && !holds_in(file_.at("fit").at("when"), row))
      row.role = RowRole::kPredict;
    row.fitted_by = {row.leading()};
    keep_named(set_.predict, row.values);
  }

  [[nodiscard]] bool is_left_out(Row& row) const {
    for (const YamlNode& rule : file_.items("leave out")) {
      rule.allow_only({"when", "because"});
      if (row.left_out.empty() && holds_in(rule.at("when"), row)) row.left_out = rule.at("because").text();
    }
    return !row.left_out.empty();
  }

  void read_measured_values(Row& row) const {
    const YamlNode measured = file_.at("measured");
    if (measured.has("step"))
      row.measured[kStepTime] = {step_of(expand(measured.at("step").text(), row.values).text, row.name)};
    else if (measured.has("rate"))
      row.measured[kStepTime] = {number_of(measured.at("work"), row.values) /
                                 number_of(measured.at("rate"), row.values)};
    if (!measured.has("memory")) return;
    const std::string text = measured.at("memory").text();
    for (const std::string& name : names_in(text))
      if (row.values.find(name) == nullptr) return;  // an empty cell
    row.measured[measured.has("of") ? kMemoryKinds.at(measured.at("of").text()) : kPeakMemory] = {
        parse_bytes(expand(text, row.values).text, row.name + ": memory").count()};
  }

  void read_inline_rows() {
    static_cast<void>(file_.at("sigma"));
    set_.sha1 = sha1(read_file(set_.path));
    for (const YamlNode& node : file_.at("rows").items()) set_.rows.push_back(inline_row(node));
    if (std::ranges::find(set_.rows, RowRole::kFit, &Row::role) == set_.rows.end())
      file_.at("rows").fail("found no row to fit, expected at least one");
  }

  [[nodiscard]] Row inline_row(const YamlNode& node) const {
    node.allow_only(
        {"name", "use", "options", "with", "measured", "fit", "sigma", "steps", "blind", "comment"});
    Row row;
    row.name = node.at("name").text();
    row.where = fmt::format("{}: row '{}'", set_.path, row.name);
    row.role = node.placed([&] { return value_of(kRowRoles, "use", node.at("use").text()); });
    const bool fit = row.role == RowRole::kFit;
    if (node.has("options")) row.options = assignment_of(node.at("options"));
    if (node.has("with")) row.values = assignment_of(node.at("with"));
    if (node.has("measured")) row.measured = quantities_of(node.at("measured"));
    if (node.has("blind")) row.blind = blind_of(node.at("blind"));
    if (node.has("steps")) row.steps = positive(node.at("steps"));
    row.comment = node.text_or("comment", "");
    for (const char* key : {"sigma", "fit"})
      if (node.has(key) && !fit) node.at(key).fail("found in a row to predict; valid in rows to fit alone");
    if (node.has("sigma")) row.uncertainty = uncertainty_of(node.at("sigma"));
    if (fit && row.measured.empty()) node.fail("expected a measured quantity in a row to fit");
    if (fit && !row.blind.empty()) node.fail("a row to fit has no blind forecast");
    if (fit) row.fitted_by = {row.leading()};
    if (node.has("fit")) row.fitted_by.clear();
    for (const YamlNode& quantity : node.items("fit"))
      row.fitted_by.push_back(quantity.one_of("measured quantity", names_of(row.measured)));
    if (set_.option(row, "strategy") == nullptr)
      node.fail("option 'strategy' is missing, here or under 'predict'");
    if (!row.steps && !set_.epoch.samples && quantity_named(row.leading()).of_epoch)
      node.fail("'{}' needs 'epoch' of the file, or 'steps' here", row.leading());
    return row;
  }

  YamlNode file_;
  RowSet set_;
  std::string rows_;
};

/// Reads a CSV file with columns named like options.
RowSet read_option_table(const std::string& path) {
  RowSet set{.path = path, .table = true};
  set.title = set.source = path;
  const CsvTable table = read_csv(path);
  set.sha1 = sha1(read_file(path));
  const std::vector<std::string> own{"step", "memory", "group", "work"};
  for (const std::string& column : table.columns)
    if (std::ranges::find(own, column) == own.end()) set.predict.set(column, "{" + column + "}");
  if (std::ranges::find(table.columns, "step") == table.columns.end())
    throw InputError(
        "{}: column 'step' is missing; columns are options of 'stepcast predict', 'step' with a unit, "
        "and, if known, 'memory', 'group' and 'work'",
        path);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    Row row = table_row(path, table, i, std::identity());
    const auto cell = [&](const char* name) { return row.values.value_or(name, ""); };
    row.measured[kStepTime] = {step_of(cell("step"), row.name)};
    if (!cell("memory").empty())
      row.measured[kPeakMemory] = {parse_bytes(cell("memory"), row.name + ": memory").count()};
    if (std::ranges::find(table.columns, "work") != table.columns.end()) {
      const double work = number_in<double>(cell("work")).value_or(0.0);
      if (!(work > 0.0 && std::isfinite(work)))
        throw InputError("{}: work: found '{}', expected a number above 0", row.name, cell("work"));
      row.work = work;
    }
    row.group = cell("group");
    row.fitted_by = {kStepTime};
    keep_named(set.predict, row.values);
    set.rows.push_back(std::move(row));
  }
  return set;
}

}  // namespace

FreeParameter free_parameter(const std::string& name, const YamlNode& node) {
  node.allow_only({"range", "scale", "limits", "source"});
  FreeParameter parameter{.name = name};
  const auto bounds = [&](const YamlNode& list, double& low, double& high) {
    const std::vector<YamlNode> ends = list.items();
    if (ends.size() != 2) list.fail("expected [low, high]");
    const auto from = number_with_unit(ends[0].text()), to = number_with_unit(ends[1].text());
    if (!from || !to || from->unit != to->unit || !(from->number < to->number))
      list.fail("found [{}, {}], expected two ascending numbers of one unit, such as [1GB/s, 12GB/s]",
                ends[0].text(), ends[1].text());
    low = from->number;
    high = to->number;
    return from->unit;
  };
  parameter.unit = bounds(node.at("range"), parameter.low, parameter.high);
  parameter.linear = node.has("scale") && node.at("scale").one_of("scale", {"linear", "log"}) == "linear";
  if (!parameter.linear && parameter.low <= 0.0)
    node.at("range").fail("found 0 or less on a logarithmic scale; expected more, or scale: linear");
  if (node.has("limits") && bounds(node.at("limits"), parameter.least, parameter.most) != parameter.unit)
    node.at("limits").fail("expected the unit of the range, '{}'", parameter.unit);
  parameter.source = node.at("source").text();
  return parameter;
}

RowSet read_rows(const std::string& path, const std::string& rows) {
  return path.ends_with(".csv") ? read_option_table(path) : RowReader(path, rows).read();
}

}  // namespace stepcast

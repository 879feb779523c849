#include "sim/validation/measured_rows.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

constexpr const char* kFolder = "studies/measured";

/// A product of numbers and of values by name: `layers*hidden/8`. Nothing where a value is missing.
std::optional<double> product_of(const std::string& text, const Assignment& values) {
  double result = 1.0;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t sign = std::min(text.find_first_of("*/", from), text.size());
    std::string word = text.substr(from, sign - from);
    if (const std::string* value = values.find(word)) word = *value;
    const bool stands_for = word.starts_with('{') && word.ends_with('}');
    const auto number =
        stands_for ? product_of(word.substr(1, word.size() - 2), values) : number_in<double>(word);
    if (!number) return std::nullopt;
    result = from > 0 && text[from - 1] == '/' ? result / *number : result * *number;
    from = sign + 1;
  }
  return result;
}

/// What stands between braces in `text` as a number.
double number_of(const YamlNode& node, const Assignment& values) {
  std::string text = node.text();
  if (text.starts_with('{') && text.ends_with('}')) text = text.substr(1, text.size() - 2);
  const auto number = product_of(text, values);
  if (!number || !(*number > 0.0)) node.fail("'" + node.text() + "' is no number above 0 in a row");
  return *number;
}

void add_names(const std::string& text, std::set<std::string>& names) {
  for (std::size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
    std::string word;
    for (std::size_t i = open + 1; i < text.size(); ++i) {
      const bool ends = text[i] == '}';
      if (!ends && text[i] != '*' && text[i] != '/') {
        word += text[i];
        continue;
      }
      names.insert(std::exchange(word, ""));
      if (ends) break;
    }
  }
}

/// Leaves what options of `predict` name: the rest of a table may give the measured value away.
void keep_named(const Texts& predict, Assignment& values) {
  std::set<std::string> named;
  for (const auto& [option, text] : predict) add_names(text, named);
  for (const auto& [name, value] : values.values())
    if (named.contains(name)) add_names(value, named);
  std::vector<std::string> others;
  for (const auto& [name, value] : values.values())
    if (!named.contains(name)) others.push_back(name);
  for (const std::string& name : others) values.erase(name);
}

/// Reads what is said of all rows and applies it to each.
class SetReader {
 public:
  SetReader(const std::string& path, const std::string& rows)
      : file_(YamlNode::load(path)), set_{.path = path}, rows_(rows) {
    file_.allow_only({"study", "source", "rows", "columns", "patterns", "values", "classes", "predict",
                      "measured", "work", "group", "parts", "leave out", "free", "fit", "assumed"});
  }

  MeasuredSet read() {
    set_.id = std::filesystem::path(set_.path).stem().string();
    set_.title = file_.at("study").text();
    set_.source = file_.at("source").text();
    const YamlNode predict = file_.at("predict");
    for (const std::string& key : predict.keys()) set_.predict.emplace_back(key, predict.at(key).text());
    if (file_.has("free"))
      for (const std::string& name : file_.at("free").keys())
        set_.free.push_back(parameter_of(name, file_.at("free").at(name)));
    if (file_.has("assumed"))
      for (const YamlNode& one : file_.at("assumed").items()) set_.assumed.push_back(one.text());
    read_fit();
    if (const YamlNode measured = file_.at("measured"); measured.has("of")) {
      if (measured.at("of").text() != "last") measured.at("of").fail("expected 'last', or no such key");
      set_.memory_of_last = true;
    }
    const auto beside = std::filesystem::path(set_.path).parent_path() / file_.at("rows").text();
    const std::string table_path = rows_.empty() ? beside.string() : rows_;
    const CsvTable table = read_csv(table_path);
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      MeasuredRow row;
      row.name = std::filesystem::path(table_path).filename().string() + ":" + std::to_string(table.lines[i]);
      for (std::size_t j = 0; j < table.columns.size(); ++j)
        if (!table.rows[i][j].empty()) row.values.set(name_of(table.columns[j]), table.rows[i][j]);
      complete(row);
      set_.rows.push_back(std::move(row));
    }
    return std::move(set_);
  }

 private:
  void read_fit() {
    if (!file_.has("fit")) {
      if (!set_.free.empty()) file_.at("free").fail("needs 'fit', which says to which rows");
      return;
    }
    const YamlNode fit = file_.at("fit");
    fit.allow_only({"folds", "when"});
    if (fit.has("folds") == fit.has("when")) fit.fail("expected either 'folds' or 'when'");
    if (!fit.has("folds")) return;
    constexpr long long kMostFolds = 100;
    set_.folds = static_cast<int>(std::clamp(fit.at("folds").integer(), 0LL, kMostFolds));
    if (set_.folds < 2) fit.at("folds").fail("expected 2 to " + std::to_string(kMostFolds));
  }

  [[nodiscard]] std::string name_of(const std::string& column) const {
    if (file_.has("columns"))
      for (const std::string& name : file_.at("columns").keys())
        if (file_.at("columns").at(name).text() == column) return name;
    return column;
  }

  void complete(MeasuredRow& row) const {
    if (file_.has("patterns")) add_patterns(file_.at("patterns"), row.values);
    leave_out(row);
    if (!row.left_out.empty()) return;
    if (file_.has("values")) add_values(file_.at("values"), row.values);
    leave_out(row);
    if (!row.left_out.empty()) return;
    if (file_.has("classes")) add_classes(file_.at("classes"), row.values);
    read_measured_values(row);
    if (file_.has("work")) row.work = number_of(file_.at("work"), row.values);
    if (file_.has("group")) row.group = expand(file_.at("group").text(), row.values).text;
    if (file_.has("parts")) row.part = expand(file_.at("parts").text(), row.values).text;
    if (file_.has("fit") && file_.at("fit").has("when")) row.known = holds(file_.at("fit").at("when"), row);
    keep_named(set_.predict, row.values);
  }

  /// What a regular expression finds in a cell: its group, or all where it has none.
  static void add_patterns(const YamlNode& patterns, Assignment& values) {
    for (const std::string& name : patterns.keys()) {
      const YamlNode pattern = patterns.at(name);
      pattern.allow_only({"in", "find", "else"});
      const std::string* cell = values.find(pattern.at("in").text());
      std::smatch found;
      try {
        if (cell != nullptr && std::regex_search(*cell, found, std::regex(pattern.at("find").text())))
          values.set(name, found.str(found.size() > 1 ? 1 : 0));
        else
          values.set(name, pattern.at("else").text());
      } catch (const std::regex_error& error) {
        pattern.at("find").fail(std::string("is no regular expression: ") + error.what());
      }
    }
  }

  void leave_out(MeasuredRow& row) const {
    if (!file_.has("leave out")) return;
    for (const YamlNode& rule : file_.at("leave out").items()) {
      rule.allow_only({"when", "because"});
      if (row.left_out.empty() && holds(rule.at("when"), row)) row.left_out = rule.at("because").text();
    }
  }

  void read_measured_values(MeasuredRow& row) const {
    const YamlNode measured = file_.at("measured");
    measured.allow_only({"step", "work", "rate", "memory", "of"});
    if (measured.has("step") == (measured.has("work") && measured.has("rate")))
      measured.fail("expected either 'step', or 'work' and 'rate'");
    row.step_s =
        measured.has("step")
            ? parse_seconds(expand(measured.at("step").text(), row.values).text, row.name + ": step").count()
            : number_of(measured.at("work"), row.values) / number_of(measured.at("rate"), row.values);
    if (!(row.step_s > 0.0)) measured.fail(row.name + ": the step is not above 0 s");
    if (!measured.has("memory")) return;
    const std::string text = measured.at("memory").text();
    std::string column = text.substr(0, text.find('}'));
    if (column.starts_with('{') && row.values.find(column.substr(1)) != nullptr)
      row.memory = parse_bytes(expand(text, row.values).text, row.name + ": memory").count();
  }

  [[nodiscard]] static bool holds(const YamlNode& when, const MeasuredRow& row) {
    std::vector<std::string> names;
    for (const auto& [name, value] : row.values.values()) names.push_back(name);
    for (const std::string& key : when.keys())
      if (row.values.find(key) == nullptr) return false;  // an empty cell says nothing
    return Condition(when, names).holds(row.values);
  }

  YamlNode file_;
  MeasuredSet set_;
  std::string rows_;
};

/// A CSV file whose columns are called as options.
MeasuredSet read_table(const std::string& path) {
  MeasuredSet set{.id = std::filesystem::path(path).stem().string(), .path = path};
  set.title = set.source = path;
  const CsvTable table = read_csv(path);
  const std::vector<std::string> own{"step", "memory", "group", "work"};
  bool has_step = false;
  for (const std::string& column : table.columns) {
    has_step = has_step || column == "step";
    if (std::ranges::find(own, column) == own.end()) set.predict.emplace_back(column, "{" + column + "}");
  }
  if (!has_step)
    throw InputError(path +
                     ": column 'step' is missing; columns are options of 'stepcast predict', 'step' with "
                     "a unit, and, if known, 'memory', 'group' and 'work'");
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    MeasuredRow row;
    row.name = std::filesystem::path(path).filename().string() + ":" + std::to_string(table.lines[i]);
    for (std::size_t j = 0; j < table.columns.size(); ++j)
      if (!table.rows[i][j].empty()) row.values.set(table.columns[j], table.rows[i][j]);
    const auto said = [&](const char* name) {
      const std::string* value = row.values.find(name);
      return value == nullptr ? std::string() : *value;
    };
    row.step_s = parse_seconds(said("step"), row.name + ": step").count();
    if (!(row.step_s > 0.0))
      throw InputError(row.name + ": step: found '" + said("step") + "', expected more than 0s");
    if (!said("memory").empty()) row.memory = parse_bytes(said("memory"), row.name + ": memory").count();
    row.group = said("group");
    keep_named(set.predict, row.values);
    set.rows.push_back(std::move(row));
  }
  return set;
}

}  // namespace

MeasuredSet read_measured(const std::string& path, const std::string& rows) {
  if (path.ends_with(".csv")) return read_table(path);
  return SetReader(path, rows).read();
}

std::vector<std::string> measured_ids() { return resource_names(kFolder, ".yaml"); }

std::string measured_path(const std::string& id) { return find_resource(kFolder, id, ".yaml").string(); }

std::vector<std::string> words_of(const MeasuredSet& set, const MeasuredRow& row,
                                  const std::map<std::string, double>& parameters) {
  Assignment values = row.values;
  for (const auto& [name, value] : parameters) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value);
    values.set(name, std::string(text, end.ptr));
  }
  std::vector<std::string> words;
  for (const auto& [option, text] : set.predict) {
    // A column that is empty in this row leaves the option out.
    if (text.starts_with('{') && text.find('}') == text.size() - 1 &&
        text.find_first_of("*/") == std::string::npos &&
        values.find(text.substr(1, text.size() - 2)) == nullptr)
      continue;
    Expansion filled = expand(text, values);
    if (filled.problem.empty() && filled.text.find('{') != std::string::npos)  // what a class stands for
      filled = expand(filled.text, values);
    if (!filled.problem.empty()) throw InputError(row.name + ": " + option + ": " + filled.problem);
    if (filled.text.empty()) continue;
    const auto beside = std::filesystem::path(set.path).parent_path() / filled.text;
    words.push_back("--" + option);
    words.push_back(option == "trace" && std::filesystem::exists(beside) ? beside.string() : filled.text);
  }
  return words;
}

}  // namespace stepcast

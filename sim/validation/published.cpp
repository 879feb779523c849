#include "sim/validation/published.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "sim/validation/quantities.hpp"

namespace stepcast {
namespace {

Texts texts_of(const YamlNode& map) {
  Texts result;
  for (const std::string& key : map.keys()) result.emplace_back(key, map.at(key).text());
  return result;
}

const std::string* find_text(const Texts& texts, const std::string& name) {
  const auto found =
      std::find_if(texts.begin(), texts.end(), [&](const auto& one) { return one.first == name; });
  return found == texts.end() ? nullptr : &found->second;
}

std::string text_or(const YamlNode& map, const std::string& key, const std::string& standard) {
  return map.has(key) ? map.at(key).text() : standard;
}

double positive(const YamlNode& node) {
  const double value = node.number();
  if (value <= 0.0) node.fail("found " + node.text() + ", expected a number above 0");
  return value;
}

/// By quantity a number above 0, or a list of them. \param others keys that are no quantities
nlohmann::json quantities_of(const YamlNode& map, const std::vector<std::string>& others) {
  nlohmann::json result = nlohmann::json::object();
  for (const std::string& key : map.keys()) {
    const YamlNode value = map.at(key);
    if (std::find(others.begin(), others.end(), key) == others.end())
      static_cast<void>(map.placed([&] { return quantity_named(key); }));
    else if (key != "range") {
      result[key] = value.text();
      continue;
    }
    if (!value.is_sequence()) {
      result[key] = positive(value);
      continue;
    }
    for (const YamlNode& one : value.items()) result[key].push_back(positive(one));
    if (result[key].empty()) value.fail("found an empty list, expected a number per rank");
  }
  return result;
}

PublishedChoice choice_of(const std::string& name, const YamlNode& node) {
  constexpr long long kMostValues = 10'000;
  node.allow_only({"to", "values", "source"});
  if (node.has("to") == node.has("values")) node.fail("expected either 'to' or 'values'");
  PublishedChoice result{{name, {}, node.has("to")}, node.at("source").text()};
  if (node.has("to")) {
    const long long most = node.at("to").integer();
    if (most < 1 || most > kMostValues) node.at("to").fail("expected 1 to " + std::to_string(kMostValues));
    for (long long value = 1; value <= most; ++value) result.choice.values.push_back(std::to_string(value));
  } else {
    for (const YamlNode& value : node.at("values").items()) result.choice.values.push_back(value.text());
    if (result.choice.values.empty())
      node.at("values").fail("found an empty list, expected a value at least");
  }
  return result;
}

/// `{value: 1%, because: two runs differ by as much}`
double sigma_of(const YamlNode& sigma, std::string& because) {
  sigma.allow_only({"value", "because"});
  const std::string part = sigma.at("value").text();
  const auto percent = number_in<double>(std::string_view(part).substr(0, part.size() - 1));
  if (!part.ends_with('%') || !percent || *percent <= 0.0)
    sigma.at("value").fail("found '" + part + "', expected a part of what was measured, as 1%");
  because = sigma.at("because").text();
  return *percent / 100.0;
}

PublishedRow row_of(const YamlNode& node, const PublishedCase& whole) {
  node.allow_only(
      {"name", "use", "options", "with", "measured", "fit", "sigma", "steps", "blind", "comment"});
  PublishedRow row;
  row.name = node.at("name").text();
  row.where = whole.path + ": row '" + row.name + "'";
  row.fit = node.at("use").one_of("use", {"fit", "predict"}) == "fit";
  if (node.has("options")) row.options = texts_of(node.at("options"));
  if (node.has("with")) row.with = texts_of(node.at("with"));
  row.measured = node.has("measured") ? quantities_of(node.at("measured"), {}) : nlohmann::json::object();
  if (node.has("blind")) row.blind = quantities_of(node.at("blind"), {"revision", "recorded", "range"});
  if (node.has("sigma")) {
    if (!row.fit) node.at("sigma").fail("found in a row to predict, expected in rows to fit alone");
    row.sigma = sigma_of(node.at("sigma"), row.sigma_because);
  }
  if (node.has("steps")) row.steps = positive(node.at("steps"));
  row.comment = text_or(node, "comment", "");
  if (row.fit && row.measured.empty()) node.fail("expected a measured quantity in a row to fit");
  if (!row.blind.empty() && row.fit) node.fail("a row to fit has no blind forecast");
  if (row.fit) row.on = {row.leading()};
  if (node.has("fit")) {
    if (!row.fit) node.at("fit").fail("found in a row to predict, expected in rows to fit alone");
    row.on.clear();
    for (const YamlNode& quantity : node.at("fit").items())
      row.on.push_back(quantity.one_of("measured quantity", [&] {
        std::vector<std::string> known;
        for (const auto& [key, value] : row.measured.items()) known.push_back(key);
        return known;
      }()));
  }
  const auto option = [&](const std::string& name) {
    const std::string* own = find_text(row.options, name);
    return own != nullptr ? own : find_text(whole.predict, name);
  };
  if (const std::string* strategy = option("strategy")) row.strategy = *strategy;
  if (row.strategy.empty()) node.fail("option 'strategy' is missing, here or under 'predict'");
  if (const std::string* ranks = option("world-size")) row.world_size = number_in<int>(*ranks).value_or(0);
  if (!row.steps && !whole.samples && quantity_named(row.leading()).of_epoch)
    node.fail("'" + row.leading() + "' needs 'epoch' of the case, or 'steps' here");
  return row;
}

/// Products of a sum.
NamedValue product(const std::string& text, const std::map<std::string, NamedValue>& names) {
  NamedValue result{1.0, "", ""};
  char sign = '*';
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find_first_of("*/", start), text.size());
    std::string word = text.substr(start, end - start);
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    NamedValue value;
    if (const auto number = number_in<double>(word)) {
      value.number = *number;
    } else {
      if (!names.contains(word)) throw InputError(unknown_name("name", word, names_of(names)));
      value = names.at(word);
      if (!value.word.empty()) {
        if (text.find_first_of("*/") == std::string::npos) return value;
        throw InputError("'" + text + "': '" + value.word + "' is no number");
      }
    }
    if (!result.unit.empty() && !value.unit.empty()) throw InputError("'" + text + "' has two units");
    if (sign == '/' && !value.unit.empty()) throw InputError("'" + text + "' divides by a unit");
    result.number = sign == '*' ? result.number * value.number : result.number / value.number;
    result.unit += value.unit;
    sign = end < text.size() ? text[end] : '*';
    start = end + 1;
  }
  return result;
}

std::string sum(const std::string& text, const std::map<std::string, NamedValue>& names) {
  NamedValue result;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('+', start), text.size());
    const NamedValue term = product(text.substr(start, end - start), names);
    if (!term.word.empty()) {
      if (start == 0 && end == text.size()) return term.word;
      throw InputError("'" + text + "': '" + term.word + "' is no number");
    }
    if (start > 0 && term.unit != result.unit) throw InputError("'" + text + "' adds different units");
    result.unit = term.unit;
    result.number += term.number;
    start = end + 1;
  }
  return formatted("%.15g", result.number) + result.unit;
}

}  // namespace

std::optional<double> PublishedRow::number(const std::string& quantity) const {
  if (!measured.contains(quantity)) return std::nullopt;
  const nlohmann::json& values = measured[quantity];
  if (!values.is_array()) return values.get<double>();
  double total = 0.0;
  for (const nlohmann::json& value : values) total += value.get<double>();
  return total / static_cast<double>(values.size());
}

std::vector<int> PublishedRow::ranks_left_out(const std::string& quantity) const {
  constexpr std::size_t kFewest = 3;  // of two that differ, either may be right
  if (quantity != "step_time_s" || !measured.contains(quantity) || !measured[quantity].is_array() ||
      measured[quantity].size() < kFewest)
    return {};
  const auto values = measured[quantity].get<std::vector<double>>();
  const double middle = median(values);
  std::vector<int> ranks;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::abs(values[i] - middle) > kRanksAgree * middle) ranks.push_back(static_cast<int>(i));
  return ranks.size() < values.size() ? ranks : std::vector<int>{};
}

std::optional<double> PublishedRow::agreed(const std::string& quantity) const {
  const std::vector<int> left_out = ranks_left_out(quantity);
  if (left_out.empty()) return number(quantity);
  double total = 0.0;
  int count = 0;
  for (std::size_t i = 0; i < measured[quantity].size(); ++i) {
    if (std::find(left_out.begin(), left_out.end(), static_cast<int>(i)) != left_out.end()) continue;
    total += measured[quantity][i].get<double>();
    ++count;
  }
  return total / count;
}

std::string PublishedRow::leading() const {
  for (const RowQuantity& quantity : row_quantities())
    if (quantity.leads && measured.contains(quantity.name)) return quantity.name;
  return "step_time_s";
}

PublishedCase read_published(const std::string& path) {
  const YamlNode file = YamlNode::load(path);
  file.allow_only({"study", "source", "predict", "free", "open", "sigma", "epoch", "global_batch", "assumed",
                   "limits", "rows"});
  PublishedCase result;
  result.id = std::filesystem::path(path).stem().string();
  result.path = path;
  result.title = file.at("study").text();
  result.source = file.at("source").text();
  result.limits = text_or(file, "limits", "");
  if (file.has("predict")) result.predict = texts_of(file.at("predict"));
  if (file.has("free"))
    for (const std::string& name : file.at("free").keys())
      result.free.push_back(parameter_of(name, file.at("free").at(name)));
  if (file.has("open"))
    for (const std::string& name : file.at("open").keys())
      result.open.push_back(choice_of(name, file.at("open").at(name)));
  result.sigma = sigma_of(file.at("sigma"), result.sigma_because);
  if (file.has("epoch")) {
    file.at("epoch").allow_only({"samples", "epochs"});
    result.samples = positive(file.at("epoch").at("samples"));
    if (file.at("epoch").has("epochs")) result.epochs = positive(file.at("epoch").at("epochs"));
  }
  result.global_batch = file.has("global_batch") && file.at("global_batch").boolean();
  if (file.has("assumed"))
    for (const YamlNode& line : file.at("assumed").items()) result.assumed.push_back(line.text());
  for (const YamlNode& node : file.at("rows").items()) result.rows.push_back(row_of(node, result));
  if (std::none_of(result.rows.begin(), result.rows.end(), [](const PublishedRow& row) { return row.fit; }))
    file.at("rows").fail("found no row to fit, expected one at least");
  return result;
}

std::vector<PublishedCase> load_published(const std::string& more) {
  std::vector<PublishedCase> cases;
  for (const std::string& name : resource_names("studies/published", ".yaml"))
    cases.push_back(read_published((home_folder() / "studies" / "published" / (name + ".yaml")).string()));
  if (more.empty()) return cases;
  PublishedCase one = read_published(more);
  const auto same =
      std::find_if(cases.begin(), cases.end(), [&](const auto& shipped) { return shipped.id == one.id; });
  if (same == cases.end())
    cases.push_back(std::move(one));
  else
    *same = std::move(one);
  return cases;
}

NamedValue named_value(const std::string& text) {
  double number = 0.0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const bool whole = problem == std::errc() && std::isfinite(number) &&
                     unit.find_first_of("-0123456789") == std::string::npos;
  return whole ? NamedValue{number, unit, ""} : NamedValue{0.0, "", text};
}

PublishedParameter parameter_of(const std::string& name, const YamlNode& node) {
  node.allow_only({"range", "scale", "limits", "source"});
  PublishedParameter result;
  FreeParameter& parameter = result.parameter;
  parameter.name = name;
  const auto bounds = [&](const YamlNode& list, double& low, double& high) {
    const std::vector<YamlNode> ends = list.items();
    if (ends.size() != 2) list.fail("expected [low, high]");
    const NamedValue from = named_value(ends[0].text()), to = named_value(ends[1].text());
    if (!from.word.empty() || !to.word.empty() || from.unit != to.unit || !(from.number < to.number))
      list.fail("found [" + ends[0].text() + ", " + ends[1].text() +
                "], expected two ascending numbers of one unit, as [1GB/s, 12GB/s]");
    low = from.number;
    high = to.number;
    return from.unit;
  };
  result.unit = bounds(node.at("range"), parameter.low, parameter.high);
  parameter.linear = node.has("scale") && node.at("scale").one_of("scale", {"linear", "log"}) == "linear";
  if (!parameter.linear && parameter.low <= 0.0)
    node.at("range").fail("found 0 or less, expected more on a logarithmic scale; or say scale: linear");
  parameter.least = 0.0;
  if (node.has("limits") && bounds(node.at("limits"), parameter.least, parameter.most) != result.unit)
    node.at("limits").fail("expected the unit of the range, '" + result.unit + "'");
  result.source = node.at("source").text();
  return result;
}

std::string filled(const std::string& text, const std::map<std::string, NamedValue>& names) {
  std::string result;
  std::size_t end = 0;
  for (std::size_t open = text.find('{'); open != std::string::npos; open = text.find('{', end)) {
    const std::size_t close = text.find('}', open);
    if (close == std::string::npos) throw InputError("'" + text + "': '{' has no '}'");
    result += text.substr(end, open - end) + sum(text.substr(open + 1, close - open - 1), names);
    end = close + 1;
  }
  return result + text.substr(end);
}

}  // namespace stepcast

#include "sim/evidence/accuracy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr double kPercent = 100.0;
constexpr std::array kKeys{
    "log_mean",          "log_median",          "log_p90", "mean", "median", "p90", "worst",
    "nearest_neighbour", "constant_throughput", "memory"};

/// `4.7 %`, or `missing` without a value.
std::string cell(const SetAccuracy& set, const std::string& key, const std::string& missing) {
  const auto found = set.percent.find(key);
  return found == set.percent.end() ? missing : percent_text(found->second / kPercent);
}

std::string tick(const std::string& text) { return "`" + text + "`"; }

std::string markdown_row(const std::vector<std::string>& cells) {
  return "| " + joined(cells, " | ") + " |\n";
}

/// Header and rule: the first `words` columns contain words, the others numbers.
std::string markdown_header(const std::vector<std::string>& names, std::size_t words) {
  std::string rule = "|";
  for (std::size_t i = 0; i < names.size(); ++i) rule += i < words ? "---|" : "--:|";
  return markdown_row(names) + rule + "\n";
}

std::string known_table(const std::vector<SetAccuracy>& sets) {
  std::string text = markdown_header({"set", "rows", "forecast", "mean", "median", "p90", "worst",
                                      "nearest neighbour", "constant throughput", "ranking", "memory"},
                                     1);
  for (const SetAccuracy& set : sets) {
    std::vector<std::string> cells{tick(set.set) + ": " + set.title, std::to_string(set.rows),
                                   std::to_string(set.forecast)};
    for (const char* key : {"mean", "median", "p90", "worst", "nearest_neighbour", "constant_throughput"})
      cells.push_back(cell(set, key, ""));
    cells.insert(cells.end(), {set.ranking, cell(set, "memory", "")});
    text += markdown_row(cells);
  }
  return text;
}

/// Cells of what a blind score contains.
std::string blind_percent(const YamlNode& score, const std::string& key) {
  return score.has(key) ? percent_text(score.at(key).number() / kPercent) : "";
}

std::string blind_scope(const YamlNode& score) {
  if (score.has("groups")) return score.at("groups").text() + " groups, " + score.at("of").text();
  return score.at("scored").text() + " of " + score.at("rows").text();
}

std::string known_and_blind_table(const std::vector<SetAccuracy>& sets, const std::string& blind) {
  const YamlNode file = YamlNode::load(blind);
  file.allow_only({"revision", "date", "sets"});
  std::string text = markdown_header({"set", "known rows", "median", "mean", "nearest neighbour",
                                      "blind rows", "median", "mean", "another forecast"},
                                     1);
  for (const SetAccuracy& set : sets) {
    std::vector<std::string> cells{set.title,
                                   std::to_string(set.forecast) + " of " + std::to_string(set.rows)};
    for (const char* key : {"median", "mean", "nearest_neighbour"}) cells.push_back(cell(set, key, ""));
    bool any = false;
    for (const YamlNode& score : file.at("sets").items()) {
      score.allow_only({"set", "of", "rows", "scored", "groups", "mean", "median", "other"});
      if (score.at("set").text() != set.set) continue;
      if (any) cells.assign(5, "");  // one line per score, the known rows once
      cells.insert(cells.end(),
                   {blind_scope(score), blind_percent(score, "median"), blind_percent(score, "mean"),
                    score.has("other") ? score.at("other").text() : ""});
      text += markdown_row(cells);
      any = true;
    }
    if (!any) {
      cells.resize(9);
      text += markdown_row(cells);
    }
  }
  return text + "\nBlind rows: scored once at revision " + file.at("revision").text() + " (" +
         file.at("date").text() + "), with parameters fitted to the known rows.\n";
}

}  // namespace

void SetAccuracy::add(const Errors& errors) {
  forecast = errors.count;
  if (errors.count == 0) return;
  percent["log_mean"] = kPercent * errors.log.mean;
  percent["log_median"] = kPercent * errors.log.median;
  percent["log_p90"] = kPercent * errors.log.p90;
  percent["mean"] = kPercent * errors.relative.mean;
  percent["median"] = kPercent * errors.relative.median;
  percent["p90"] = kPercent * errors.relative.p90;
  percent["worst"] = kPercent * errors.relative.worst;
}

std::vector<SetAccuracy> read_accuracy(const std::string& path) {
  std::vector<SetAccuracy> sets;
  const YamlNode file = YamlNode::load(path);
  for (const std::string& name : file.keys()) {
    const YamlNode node = file.at(name);
    SetAccuracy set{name, node.at("title").text(), static_cast<std::size_t>(node.at("rows").integer()),
                    static_cast<std::size_t>(node.at("forecast").integer())};
    std::vector<std::string> known{kKeys.begin(), kKeys.end()};
    known.insert(known.end(), {"title", "rows", "forecast", "ranking"});
    node.allow_only(known);
    for (const char* key : kKeys)
      if (node.has(key)) set.percent[key] = node.at(key).number();
    if (node.has("ranking")) set.ranking = node.at("ranking").text();
    sets.push_back(std::move(set));
  }
  return sets;
}

std::string accuracy_yaml(const std::vector<SetAccuracy>& sets) {
  std::string text =
      "# Errors of the measured sets, in per cent: `log_` of |ln(forecast / measured)|, others of |forecast "
      "/ measured - 1|.\n"
      "# Written by `stepcast validate --measured --accept`, compared by `stepcast validate --measured "
      "--check`.\n";
  for (const SetAccuracy& set : sets) {
    text += set.set + ":\n  title: " + in_double_quotes(set.title) + "\n  rows: " + std::to_string(set.rows) +
            "\n  forecast: " + std::to_string(set.forecast) + "\n";
    for (const char* key : kKeys)
      if (const auto found = set.percent.find(key); found != set.percent.end())
        text += std::string("  ") + key + ": " + formatted("%.2f", found->second) + "\n";
    if (!set.ranking.empty()) text += "  ranking: " + set.ranking + "\n";
  }
  return text;
}

std::vector<std::string> differences(const std::vector<SetAccuracy>& today,
                                     const std::vector<SetAccuracy>& file) {
  constexpr std::size_t kLarge = 100;
  constexpr double kOfLarge = 0.3, kOfSmall = 1.0;  // points
  std::vector<std::string> all;
  for (const SetAccuracy& now : today) {
    const auto before = std::ranges::find(file, now.set, &SetAccuracy::set);
    if (before == file.end()) {
      all.push_back(now.set + ": is not in the accuracy file");
      continue;
    }
    if (now.rows != before->rows || now.forecast != before->forecast ||
        now.ranking.empty() != before->ranking.empty())
      all.push_back(now.set + ": " + std::to_string(now.forecast) + " of " + std::to_string(now.rows) +
                    " rows forecast, " + std::to_string(before->forecast) + " of " +
                    std::to_string(before->rows) + " in the accuracy file");
    const double allowed = now.rows >= kLarge ? kOfLarge : kOfSmall;
    for (const char* key : kKeys) {
      const auto value = now.percent.find(key), old = before->percent.find(key);
      const bool here = value != now.percent.end(), there = old != before->percent.end();
      if (here == there && (!here || std::abs(value->second - old->second) <= allowed)) continue;
      const std::string was = there ? formatted("%.2f %%", old->second) : "no value";
      all.push_back(now.set + ": " + key + " is " +
                    (here ? formatted("%.2f %%", value->second) : "no value") + ", " + was +
                    " in the accuracy file; at most " + formatted("%.1f", allowed) + " points apart");
    }
  }
  return all;
}

std::string accuracy_text(const std::vector<SetAccuracy>& sets) {
  Table table({"set", "rows", "forecast", "mean", "median", "90 %", "worst", "nearest neighbour",
               "constant throughput", "ranking", "memory"});
  for (const SetAccuracy& set : sets) {
    std::vector<std::string> cells{set.set, std::to_string(set.rows), std::to_string(set.forecast)};
    for (const char* key : {"mean", "median", "p90", "worst", "nearest_neighbour", "constant_throughput"})
      cells.push_back(cell(set, key, "-"));
    cells.insert(cells.end(), {set.ranking.empty() ? "-" : set.ranking, cell(set, "memory", "-")});
    table.add(std::move(cells));
  }
  return table.text();
}

std::string with_tables(const std::string& text, const std::string& name,
                        const std::vector<SetAccuracy>& sets, const std::string& blind) {
  const std::map<std::string, std::function<std::string()>> tables{
      {"accuracy", [&] { return known_table(sets); }},
      {"known-and-blind", [&] { return known_and_blind_table(sets, blind); }}};
  std::string result = text;
  bool any = false;
  for (const auto& [table, make] : tables) {
    const std::string begin = "<!-- " + table + ":begin -->\n", end = "<!-- " + table + ":end -->";
    const std::size_t from = result.find(begin);
    if (from == std::string::npos) continue;
    const std::size_t to = result.find(end, from);
    if (to == std::string::npos)
      throw InputError(name + ": '" + begin.substr(0, begin.size() - 1) + "' has no end");
    result.replace(from + begin.size(), to - from - begin.size(), make());
    any = true;
  }
  if (!any)
    throw InputError(name + ": has no table; expected '<!-- " +
                     joined(names_of(tables), ":begin -->' or '<!-- ") + ":begin -->'");
  return result;
}

}  // namespace stepcast

#include "sim/evidence/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr double kPercent = 100.0;
/// `4.7 %`, or `missing` without a value.
std::string cell(const SetAccuracy& set, const std::string& key, const std::string& missing) {
  const auto percent = optional_at(set.percent, key);
  return percent ? percent_text(*percent / kPercent) : missing;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  return "| " + joined(cells, " | ") + " |\n";
}

/// Header and rule: the first column contains words, the others numbers.
std::string markdown_header(const std::vector<std::string>& names) {
  std::string rule = "|---|";
  for (std::size_t i = 1; i < names.size(); ++i) rule += "--:|";
  return markdown_row(names) + rule + "\n";
}

/// A line of the table of all sets; `missing` where there is no value.
std::vector<std::string> cells_of(const SetAccuracy& set, const std::string& name,
                                  const std::string& missing) {
  std::vector<std::string> cells{name, std::to_string(set.rows), std::to_string(set.forecast)};
  for (const char* key : {"defaults", "defaults_p90", "mean", "median", "p90", "worst", "nearest_neighbour",
                          "constant_throughput"})
    cells.push_back(cell(set, key, missing));
  cells.insert(cells.end(), {set.ranking.empty() ? missing : set.ranking, cell(set, "memory", missing)});
  return cells;
}

std::string known_table(const std::vector<SetAccuracy>& sets) {
  std::string text =
      markdown_header({"set", "rows", "forecast", "nothing fitted: median", "p90", "fitted: mean", "median",
                       "p90", "worst", "nearest neighbour", "constant throughput", "ranking", "memory"});
  for (const SetAccuracy& set : sets)
    text += markdown_row(cells_of(set, fmt::format("`{}`: {}", set.set, set.title), ""));
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
  const YamlNode file = YamlNode::load(blind).allow_only({"revision", "date", "sets"});
  std::string text =
      markdown_header({"set", "known rows", "nothing fitted: median", "fitted: median", "mean",
                       "nearest neighbour", "blind rows", "median", "mean", "another forecast"});
  for (const SetAccuracy& set : sets) {
    std::vector<std::string> cells{set.title, fmt::format("{} of {}", set.forecast, set.rows)};
    for (const char* key : {"defaults", "median", "mean", "nearest_neighbour"})
      cells.push_back(cell(set, key, ""));
    bool any = false;
    for (const YamlNode& score : file.at("sets").items()) {
      score.allow_only({"set", "of", "rows", "scored", "groups", "mean", "median", "other"});
      if (score.at("set").text() != set.set) continue;
      if (any) cells.assign(6, "");  // one line per score, the known rows once
      cells.insert(cells.end(), {blind_scope(score), blind_percent(score, "median"),
                                 blind_percent(score, "mean"), score.text_or("other", "")});
      text += markdown_row(cells);
      any = true;
    }
    if (!any) {
      cells.resize(10);
      text += markdown_row(cells);
    }
  }
  return text +
         fmt::format(
             "\nBlind rows: scored once at revision {} ({}), with parameters fitted to the known rows.\n",
             file.at("revision").text(), file.at("date").text());
}

}  // namespace

void SetAccuracy::add(const Errors& errors) {
  forecast = errors.count;
  if (errors.count == 0) return;
  const auto& [mean, median, p90, worst] = errors.relative;
  percent.insert({{"log_mean", kPercent * errors.log.mean},
                  {"log_median", kPercent * errors.log.median},
                  {"log_p90", kPercent * errors.log.p90},
                  {"mean", kPercent * mean},
                  {"median", kPercent * median},
                  {"p90", kPercent * p90},
                  {"worst", kPercent * worst}});
}

std::vector<SetAccuracy> read_accuracy(const std::string& path) {
  std::vector<SetAccuracy> sets;
  for (const auto& [name, node] : entries_of(YamlNode::load(path))) {
    SetAccuracy set{name, node.at("title").text(), static_cast<std::size_t>(node.at("rows").integer()),
                    static_cast<std::size_t>(node.at("forecast").integer())};
    for (const auto& [key, value] : entries_of(node))
      if (key != "title" && key != "rows" && key != "forecast" && key != "ranking")
        set.percent[key] = value.number();
    set.ranking = node.text_or("ranking", "");
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
    text += fmt::format("{}:\n  title: {}\n  rows: {}\n  forecast: {}\n", set.set,
                        in_double_quotes(set.title), set.rows, set.forecast);
    for (const auto& [key, percent] : set.percent) text += fmt::format("  {}: {:.2f}\n", key, percent);
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
      all.push_back(fmt::format("{}: {} of {} rows forecast, {} of {} in the accuracy file", now.set,
                                now.forecast, now.rows, before->forecast, before->rows));
    const double allowed = now.rows >= kLarge ? kOfLarge : kOfSmall;
    std::map<std::string, double> either = now.percent;
    either.insert(before->percent.begin(), before->percent.end());
    for (const std::string& key : names_of(either)) {
      const auto here = optional_at(now.percent, key), there = optional_at(before->percent, key);
      if (here.has_value() == there.has_value() && (!here || std::abs(*here - *there) <= allowed)) continue;
      const auto text = [](const auto& value) {
        return value ? fmt::format("{:.2f} %", *value) : "no value";
      };
      all.push_back(fmt::format("{}: {} is {}, {} in the accuracy file; at most {:.1f} points apart", now.set,
                                key, text(here), text(there), allowed));
    }
  }
  return all;
}

std::string accuracy_text(const std::vector<SetAccuracy>& sets) {
  Table table({"set", "rows", "forecast", "nothing fitted", "90 %", "mean", "median", "90 %", "worst",
               "nearest neighbour", "constant throughput", "ranking", "memory"});
  for (const SetAccuracy& set : sets) table.add(cells_of(set, set.set, "-"));
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
      throw InputError("{}: '{}' has no end", name, begin.substr(0, begin.size() - 1));
    result.replace(from + begin.size(), to - from - begin.size(), make());
    any = true;
  }
  if (!any)
    throw InputError("{}: has no table; expected '<!-- {}:begin -->'", name,
                     joined(names_of(tables), ":begin -->' or '<!-- "));
  return result;
}

}  // namespace stepcast

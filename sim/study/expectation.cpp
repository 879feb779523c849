#include "sim/study/expectation.hpp"

#include <algorithm>
#include <limits>

#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

namespace stepcast {
namespace {

std::optional<double> value_of(const StudyRow& row, const std::string& column) {
  const auto found = row.values.find(column);
  return found == row.values.end() ? std::nullopt : std::optional(found->second);
}

bool meets(const Expectation& one, double value) {
  return (!one.at_least || value >= *one.at_least) && (!one.at_most || value <= *one.at_most);
}

/// The points that an expectation is about, and their rows.
struct Concerned {
  std::vector<const StudyPoint*> points;
  std::vector<const StudyRow*> rows;
  std::size_t failed = 0;  ///< of them
  [[nodiscard]] std::string text(std::size_t count) const {
    return " of " + counted(count, "point") +
           (failed == 0 ? "" : ", and " + counted(failed, "point") + " failed");
  }
};

Judgement judge_each(const Expectation& one, const Concerned& asked) {
  std::size_t met = 0;
  std::string first;
  const auto text_of = [](const StudyRow& row, const std::string& column) {
    const auto value = value_of(row, column);
    return value ? short_number(*value) : std::string("without a value");
  };
  const auto is_below = [&](const StudyRow& row, double value) {
    return value < value_of(row, one.below).value_or(-std::numeric_limits<double>::infinity());
  };
  for (std::size_t i = 0; i < asked.rows.size(); ++i) {
    const StudyRow& row = *asked.rows[i];
    const auto value = value_of(row, one.column);
    if (value && meets(one, *value) && (one.below.empty() || is_below(row, *value))) {
      ++met;
    } else if (first.empty()) {
      first = "; first " + text_of(row, one.column) +
              (one.below.empty() ? "" : " against " + text_of(row, one.below)) + " at " +
              asked.points[i]->key;
    }
  }
  return {met == asked.rows.size(),
          std::to_string(met) + " of " + counted(asked.rows.size(), "point") + first};
}

Judgement judge_together(const Expectation& one, const Concerned& asked) {
  std::vector<double> values, others;
  for (const StudyRow* row : asked.rows) {
    const auto value = value_of(*row, one.column);
    const auto other = one.below.empty() ? value : value_of(*row, one.below);
    if (!value || !other) continue;
    values.push_back(*value);
    others.push_back(*other);
  }
  if (values.empty()) return {false, "no point is there" + (asked.failed > 0 ? asked.text(0) : "")};
  const double value = quantile(values, *one.quantile), other = quantile(others, *one.quantile);
  const bool met = meets(one, value) && (one.below.empty() || value < other);
  return {met && asked.failed == 0, short_number(value) +
                                        (one.below.empty() ? "" : " against " + short_number(other)) +
                                        asked.text(values.size())};
}

/// Of every pair, which is why values are looked up before.
Judgement judge_order(const Expectation& one, const Concerned& asked) {
  struct Place {
    double value, least, most;  ///< of the column; and of the other one
    const StudyPoint* point;
  };
  const bool measured = one.in_order_of == "measured_s";
  std::vector<Place> places;
  for (std::size_t i = 0; i < asked.rows.size(); ++i) {
    const auto value = value_of(*asked.rows[i], one.column);
    const auto least = value_of(*asked.rows[i], measured ? "measured_low_s" : one.in_order_of);
    const auto most = value_of(*asked.rows[i], measured ? "measured_high_s" : one.in_order_of);
    if (value && least && most) places.push_back({*value, *least, *most, asked.points[i]});
  }
  std::size_t pairs = 0, alike = 0;
  std::string first;
  for (const Place& less : places)
    for (const Place& more : places) {
      if (!(less.most < more.least)) continue;
      ++pairs;
      if (less.value < more.value)
        ++alike;
      else if (first.empty())
        first = "; first not " + less.point->key + " before " + more.point->key;
    }
  if (pairs == 0) return {false, "no pair of points differs"};
  return {meets(one, static_cast<double>(alike) / static_cast<double>(pairs)) && asked.failed == 0,
          std::to_string(alike) + " of " + counted(pairs, "pair") +
              (asked.failed == 0 ? "" : ", and " + counted(asked.failed, "point") + " failed") + first};
}

}  // namespace

Expectation expectation_of(const YamlNode& node, const std::vector<std::string>& names,
                           const std::vector<std::string>& columns) {
  node.allow_only({"where", "column", "of", "at_least", "at_most", "below", "in_order_of"});
  Expectation one;
  const auto column = [&](const char* key) {
    const std::string name = node.at(key).text();
    if (std::find(columns.begin(), columns.end(), name) == columns.end())
      node.at(key).fail(unknown_name("column", name, columns));
    return name;
  };
  one.text = one.column = column("column");
  if (node.has("of")) {
    static const std::map<std::string, double> kOf{{"median", 0.5}, {"p90", 0.9}, {"worst", 1.0}};
    one.quantile = node.at("of").named("statistic", kOf);
    one.text = node.at("of").text() + " " + one.text;
  }
  if (node.has("below")) one.text += " below " + (one.below = column("below"));
  if (node.has("in_order_of")) {
    one.in_order_of = column("in_order_of");
    one.text = "pairs of " + one.text + " in the order of " + one.in_order_of;
    for (const char* other : {"of", "below"})
      if (node.has(other))
        node.at(other).fail("means nothing beside in_order_of; expected at_least, a part of the pairs");
    if (!node.has("at_least")) node.fail("expected at_least, a part of the pairs: 1 for all");
  }
  for (const auto& [key, words, bound] : {std::tuple("at_least", " at least ", &one.at_least),
                                          std::tuple("at_most", " at most ", &one.at_most)}) {
    if (!node.has(key)) continue;
    *bound = node.at(key).number();
    one.text += words + short_number(**bound);
  }
  if (one.at_least && one.at_most && *one.at_least > *one.at_most)
    node.fail("nothing is at least " + short_number(*one.at_least) + " and at most " +
              short_number(*one.at_most));
  if (!one.at_least && !one.at_most && one.below.empty())
    node.fail("expected at_least, at_most, both, or below");
  if (!node.has("where")) return one;
  one.where.emplace(node.at("where"), names);
  one.text += " where";
  for (const std::string& key : node.at("where").keys()) {
    const YamlNode value = node.at("where").at(key);
    one.text += " " + key;
    for (const YamlNode& choice : value.is_sequence() ? value.items() : std::vector{value})
      one.text += " " + choice.text();
  }
  return one;
}

Judgement judge(const Expectation& one, const std::vector<StudyPoint>& points,
                const std::map<std::string, StudyRow>& rows) {
  Concerned asked;
  for (const StudyPoint& point : points) {
    if (one.where && !one.where->holds(point.assigned)) continue;
    const StudyRow& row = rows.at(point.key);
    if (!row.error.empty()) ++asked.failed;
    asked.points.push_back(&point);
    asked.rows.push_back(&row);
  }
  if (asked.points.empty()) return {false, "no point is there"};
  if (!one.in_order_of.empty()) return judge_order(one, asked);
  return one.quantile ? judge_together(one, asked) : judge_each(one, asked);
}

}  // namespace stepcast

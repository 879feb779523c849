#include "sim/study/expectation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

namespace stepcast {
namespace {

bool meets(const Expectation& one, double value) {
  return (!one.at_least || value >= *one.at_least) && (!one.at_most || value <= *one.at_most);
}

/// The points of an expectation, and their rows.
struct Concerned {
  std::vector<const StudyPoint*> points;
  std::vector<const StudyRow*> rows;
  std::size_t failed = 0;
  [[nodiscard]] std::string failures() const {
    return failed == 0 ? "" : ", and " + counted(failed, "point") + " failed";
  }
};

/// Points that were predicted but not run have no measured columns and are left out.
Concerned concerned_by(const Expectation& one, const std::vector<StudyPoint>& points,
                       const std::map<std::string, StudyRow>& rows) {
  Concerned all;
  const bool measured = study_column(one.column).measured;
  for (const StudyPoint& point : points) {
    if (one.where && !one.where->holds(point.assigned)) continue;
    const StudyRow& row = rows.at(point.key);
    if (measured && row.error.empty() && !row.value("measured_s")) continue;
    if (!row.error.empty()) ++all.failed;
    all.points.push_back(&point);
    all.rows.push_back(&row);
  }
  return all;
}

Judgement judge_each(const Expectation& one, const Concerned& all) {
  std::size_t met = 0;
  std::string first;
  const auto text_of = [](const std::optional<double>& value) {
    return value ? short_number(*value) : std::string("without a value");
  };
  for (const StudyRow* row : all.rows) {
    const auto value = row->value(one.column);
    const auto limit = one.below.empty() ? std::numeric_limits<double>::infinity() : row->value(one.below);
    if (value && meets(one, *value) && limit && *value < *limit)
      ++met;
    else if (first.empty())
      first = "; first " + text_of(value) + (one.below.empty() ? "" : " against " + text_of(limit)) + " at " +
              row->key;
  }
  return {met == all.rows.size(), fmt::format("{} of {}{}", met, counted(all.rows.size(), "point"), first)};
}

Judgement judge_together(const Expectation& one, const Concerned& all) {
  std::vector<double> values, others;
  for (const StudyRow* row : all.rows) {
    const auto value = row->value(one.column);
    const auto other = one.below.empty() ? value : row->value(one.below);
    if (!value || !other) continue;
    values.push_back(*value);
    others.push_back(*other);
  }
  if (values.empty()) return {false, "no point has a value" + all.failures()};
  const double value = quantile(values, *one.quantile), other = quantile(others, *one.quantile);
  const bool met = meets(one, value) && (one.below.empty() || value < other) && all.failed == 0;
  return {met, fmt::format("{}{} of {}{}", short_number(value),
                           one.below.empty() ? "" : " against " + short_number(other),
                           counted(values.size(), "point"), all.failures())};
}

Judgement judge_order(const Expectation& one, const Concerned& all) {
  struct Position {
    double value, low, high;  ///< of the column; range of the other one
    const StudyPoint* point;
  };
  const bool measured = one.in_order_of == "measured_s";
  std::vector<Position> positions;
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    const auto value = all.rows[i]->value(one.column);
    const auto low = all.rows[i]->value(measured ? "measured_low_s" : one.in_order_of);
    const auto high = all.rows[i]->value(measured ? "measured_high_s" : one.in_order_of);
    if (value && low && high) positions.push_back({*value, *low, *high, all.points[i]});
  }
  const auto paired = [&](const Position& less, const Position& more) {
    if (!(less.high < more.low)) return false;
    return std::ranges::all_of(one.same, [&](const std::string& name) {
      // Equal texts share one copy.
      return less.point->assigned.find(name) == more.point->assigned.find(name);
    });
  };
  std::size_t pairs = 0, alike = 0;
  std::string first;
  for (const Position& less : positions)
    for (const Position& more : positions) {
      if (!paired(less, more)) continue;
      ++pairs;
      if (less.value < more.value)
        ++alike;
      else if (first.empty())
        first = "; first not " + less.point->key + " before " + more.point->key;
    }
  if (pairs == 0) return one.same.empty() ? Judgement{false, "no pair of points differs"} : Judgement();
  return {meets(one, static_cast<double>(alike) / static_cast<double>(pairs)) && all.failed == 0,
          fmt::format("{} of {}{}{}", alike, counted(pairs, "pair"), all.failures(), first)};
}

Judgement judge_change(const Expectation& one, const std::vector<StudyPoint>& points,
                       const std::map<std::string, StudyRow>& rows) {
  const auto ratio = [](const StudyRow& to, const char* above, const StudyRow& from, const char* below) {
    return *to.value(above) / *from.value(below) - 1.0;
  };
  const auto from = std::ranges::find(points, one.from, &StudyPoint::name);
  const auto to = std::ranges::find(points, one.to, &StudyPoint::name);
  if (from == points.end() || to == points.end()) return {};
  const StudyRow &before = rows.at(from->key), &after = rows.at(to->key);
  for (const StudyRow* row : {&before, &after}) {
    if (!row->error.empty()) return {false, "a point failed: " + row->key};
    if (!row->value("measured_s")) return {};
  }
  const double predicted = ratio(after, "step_time_s", before, "step_time_s");
  const double measured = ratio(after, "measured_s", before, "measured_s");
  const double low = ratio(after, "measured_low_s", before, "measured_high_s");
  const double high = ratio(after, "measured_high_s", before, "measured_low_s");
  const bool inside = low <= predicted && predicted <= high;
  return {inside || std::abs(predicted - measured) <= *one.at_most * std::abs(measured),
          fmt::format("predicted {}, measured {} (launches {} to {})", signed_percent_text(predicted),
                      signed_percent_text(measured), signed_percent_text(low), signed_percent_text(high))};
}

Expectation change_of(const YamlNode& node) {
  node.allow_only({"change", "from", "to", "at_most"});
  Expectation one{.text = node.at("change").text(),
                  .column = "step_time_s",
                  .from = node.at("from").text(),
                  .to = node.at("to").text(),
                  .at_most = node.at("at_most").number()};
  one.text = fmt::format("change by {} off by at most {} of itself, or inside its range of launches",
                         one.text, percent_text(*one.at_most, 0));
  return one;
}

void read_order(const YamlNode& node, const std::vector<std::string>& names, Expectation& one) {
  one.text = "pairs of " + one.text + " in the order of " + one.in_order_of;
  for (const char* other : {"of", "below"})
    if (node.has(other))
      node.at(other).fail("has no effect with in_order_of; expected at_least, a fraction of the pairs");
  if (!node.has("at_least")) node.fail("expected at_least, a fraction of the pairs: 1 for all");
  if (!node.has("same")) return;
  for (const YamlNode& name : node.items("same")) one.same.push_back(name.one_of("name", names));
  one.text += " with the same " + joined(one.same);
}

void read_bounds(const YamlNode& node, Expectation& one) {
  for (const auto& [key, words, bound] : {std::tuple("at_least", " at least ", &one.at_least),
                                          std::tuple("at_most", " at most ", &one.at_most)}) {
    if (!node.has(key)) continue;
    *bound = node.at(key).number();
    one.text += words + short_number(**bound);
  }
  if (one.at_least && one.at_most && *one.at_least > *one.at_most)
    node.fail("nothing is at least {} and at most {}", short_number(*one.at_least),
              short_number(*one.at_most));
  if (!one.at_least && !one.at_most && one.below.empty())
    node.fail("expected at_least, at_most, both, or below");
}

}  // namespace

Expectation expectation_of(const YamlNode& node, const std::vector<std::string>& names) {
  if (node.has("change")) return change_of(node);
  node.allow_only({"where", "column", "of", "at_least", "at_most", "below", "in_order_of", "same"});
  Expectation one;
  const std::vector<std::string> columns = study_column_names();
  one.text = one.column = node.at("column").one_of("column", columns);
  if (node.has("of")) {
    static const std::map<std::string, double> kOf{{"median", 0.5}, {"p90", 0.9}, {"worst", 1.0}};
    one.quantile = node.at("of").named("statistic", kOf);
    if (study_column(one.column).better == Better::kMore) one.quantile = 1.0 - *one.quantile;
    one.text = node.at("of").text() + " " + one.text;
  }
  if (node.has("below")) one.text += " below " + (one.below = node.at("below").one_of("column", columns));
  if (node.has("in_order_of")) {
    one.in_order_of = node.at("in_order_of").one_of("column", columns);
    read_order(node, names, one);
  } else if (node.has("same")) {
    node.at("same").fail("has no effect without in_order_of");
  }
  read_bounds(node, one);
  if (!node.has("where")) return one;
  one.where.emplace(node.at("where"), names);
  one.text += " where";
  for (const auto& [key, value] : entries_of(node.at("where"))) {
    one.text += " " + key;
    for (const YamlNode& choice : value.one_or_more()) one.text += " " + choice.text();
  }
  return one;
}

Judgement judge(const Expectation& one, const std::vector<StudyPoint>& points,
                const std::map<std::string, StudyRow>& rows) {
  if (!one.from.empty()) return judge_change(one, points, rows);
  const Concerned all = concerned_by(one, points, rows);
  if (all.points.empty()) return {};
  if (!one.in_order_of.empty()) return judge_order(one, all);
  return one.quantile ? judge_together(one, all) : judge_each(one, all);
}

}  // namespace stepcast

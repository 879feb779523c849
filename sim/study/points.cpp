#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <random>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/study/study.hpp"

/// The points of a study: assignments of options, from grids, zips, lists, named cases and draws.
namespace stepcast {
namespace {

constexpr std::size_t kMaxPoints = 10'000'000;

std::vector<YamlNode> one_or_more(const YamlNode& node) {
  std::vector<YamlNode> values = node.one_or_more();
  if (values.empty()) node.fail("expected at least one value");
  return values;
}

void check_size(const YamlNode& node, std::size_t points) {
  if (points > kMaxPoints) node.fail("more than {} points", kMaxPoints);
}

/// All combinations of an assignment of each list. \throws InputError at `node` if both assign a name
std::vector<Assignment> combinations(const YamlNode& node, const std::vector<Assignment>& first,
                                     const std::vector<Assignment>& second) {
  check_size(node, first.size() * second.size());
  std::vector<Assignment> all;
  for (const Assignment& before : first)
    for (const Assignment& element : second) {
      Assignment& both = all.emplace_back(before);
      for (const auto& [name, value] : element.values()) {
        if (before.find(name) != nullptr) node.fail("'{}' is assigned by a block before", name);
        both.set(name, value);
      }
    }
  return all;
}

std::vector<Assignment> grid_of(const YamlNode& map) {
  std::vector<Assignment> result(1);
  for (const auto& [key, node] : entries_of(map))
    result = combinations(map, result, transformed(one_or_more(node), [&name = key](const YamlNode& value) {
                            return Assignment{{name, value.text()}};
                          }));
  return result;
}

std::vector<Assignment> zip_of(const YamlNode& map) {
  std::vector<Assignment> result;
  for (const auto& [key, node] : entries_of(map)) {
    const std::vector<YamlNode> values = node.items();
    if (values.empty()) node.fail("expected at least one value");
    if (result.empty()) result.resize(values.size());
    if (values.size() != result.size())
      node.fail("found {} values, expected {} as the keys before: a zip advances all keys together",
                values.size(), result.size());
    for (std::size_t i = 0; i < values.size(); ++i) result[i].set(key, values[i].text());
  }
  return result;
}

std::vector<Assignment> cases_of(const YamlNode& map) {
  const std::vector<std::string> names = map.keys();
  if (names.size() != 1) map.fail("expected one name that contains the cases, as {link: {nvlink: {...}}}");
  return transformed(entries_of(map.at(names.front())), [&](const auto& one) {
    Assignment values{{names.front(), one.first}};
    values.add_missing(assignment_of(one.second));
    return values;
  });
}

/// Uniform over the logarithms between two quantities, in the first one's unit.
std::string log_uniform(const YamlNode& node, std::mt19937& draws) {
  const std::vector<YamlNode> ends = node.items();
  if (ends.size() != 2) node.fail("expected two quantities, as [50Mb/s, 5Gb/s]");
  const std::optional<Magnitude> low = magnitude_of(ends[0].text()), high = magnitude_of(ends[1].text());
  if (!low || !high || low->kind != high->kind || !(0.0 < low->value && low->value < high->value))
    node.fail("expected two quantities of one unit, above 0 and the smaller one first");
  const double part = static_cast<double>(draws()) / static_cast<double>(std::mt19937::max());
  const double value = low->value * std::pow(high->value / low->value, part);
  const NumberWithUnit first = number_with_unit(ends[0].text()).value();
  const double unit = low->value / first.number;
  return fmt::format("{:g}", std::stod(fmt::format("{:.3g}", value / unit))) + first.unit;
}

std::vector<Assignment> draws_of(const YamlNode& map, unsigned seed) {
  map.allow_only({"points", "from"});
  const long long points = map.at("points").integer();
  if (points < 1) map.at("points").fail("expected at least 1");
  check_size(map, static_cast<std::size_t>(points));
  std::mt19937 draws(seed);
  std::vector<Assignment> result(points);
  const auto from = entries_of(map.at("from"));
  for (Assignment& one : result)
    for (const auto& [key, choice] : from) {
      if (choice.is_map()) choice.allow_only({"log_uniform"});
      const std::vector<YamlNode> values = choice.is_map() ? std::vector<YamlNode>{} : one_or_more(choice);
      one.set(key, choice.is_map() ? log_uniform(choice.at("log_uniform"), draws)
                                   : values[draws() % values.size()].text());  // the same with every library
    }
  return result;
}

std::vector<Assignment> elements_of(const YamlNode& block, unsigned seed) {
  block.allow_only({"grid", "zip", "list", "cases", "draw"});
  if (block.keys().size() != 1) block.fail("expected one of grid, zip, list, cases and draw");
  if (block.has("grid")) {
    if (block.at("grid").keys().empty())
      block.at("grid").fail("expected names and their values, as {world-size: [2, 4]}");
    return grid_of(block.at("grid"));
  }
  if (block.has("zip")) return zip_of(block.at("zip"));
  if (block.has("cases")) return cases_of(block.at("cases"));
  if (block.has("draw")) return draws_of(block.at("draw"), seed);
  std::vector<Assignment> result;
  for (const YamlNode& one : block.at("list").items()) append(result, grid_of(one));
  return result;
}

}  // namespace

std::vector<Assignment> expand_points(const YamlNode& blocks, unsigned seed) {
  std::vector<Assignment> result(1);
  if (blocks.items().empty()) blocks.fail("expected blocks of points, as - grid: {world-size: [2, 4]}");
  for (const YamlNode& block : blocks.items()) {
    const std::vector<Assignment> elements = elements_of(block, seed);
    if (elements.empty()) block.fail("expected at least one point");
    result = combinations(block, result, elements);
  }
  return result;
}

}  // namespace stepcast

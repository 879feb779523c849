#include "tests/golden/difference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace stepcast::golden {
namespace {

/// Start of a value: a whole outcome is too long to print.
std::string shortened(const Json& value) {
  constexpr std::size_t kMost = 160;
  const std::string text = value.dump();
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string in_words(const Json& before, const Json& after) {
  std::string text = shortened(after);
  if (before.is_number() && after.is_number() && before.get<double>() != 0.0) {
    std::array<char, 40> percent{};
    const double change = after.get<double>() / before.get<double>() - 1.0;
    std::snprintf(percent.data(), percent.size(), " (%+.3g %%)", 100.0 * change);
    text += percent.data();
  }
  return text;
}

bool equal(const std::string& field, const Json& before, const Json& after, double tolerance) {
  if (before == after) return true;
  if (tolerance <= 0.0) return false;
  if (field.ends_with("hash") && !field.ends_with("names_hash")) return true;
  if (!before.is_number() || !after.is_number()) return false;
  const double a = before.get<double>();
  const double b = after.get<double>();
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

/// Adds the leaves that differ.
void compare(const std::string& field, const Json& before, const Json& after, double tolerance,
             std::vector<Difference>& differences) {
  const bool objects = before.is_object() && after.is_object();
  const bool arrays = before.is_array() && after.is_array() && before.size() == after.size();
  const std::string prefix = field.empty() ? "" : field + ".";
  if (objects) {
    for (const auto& [key, value] : before.items())
      compare(prefix + key, value, after.contains(key) ? after.at(key) : Json("nothing"), tolerance,
              differences);
    for (const auto& [key, value] : after.items())
      if (!before.contains(key)) compare(prefix + key, Json("nothing"), value, tolerance, differences);
  } else if (arrays) {
    for (std::size_t i = 0; i < before.size(); ++i)
      compare(prefix + std::to_string(i), before[i], after[i], tolerance, differences);
  } else if (!equal(field, before, after, tolerance)) {
    differences.push_back({field, shortened(before), in_words(before, after)});
  }
}

}  // namespace

std::vector<Difference> differences_of(const Json& before, const Json& after, double tolerance) {
  std::vector<Difference> differences;
  compare("", before, after, tolerance, differences);
  return differences;
}

}  // namespace stepcast::golden

#pragma once

#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <vector>

namespace stepcast {

/// A table for people: right-aligned numbers, left-aligned words, header with units.
class Table {
 public:
  explicit Table(const std::vector<std::string>& header) : rows_{header} {}
  void add(std::vector<std::string> row);
  /// Removes columns that are empty in all rows but the header.
  void drop_empty_columns();
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// In double quotes, as YAML and Graphviz read it.
std::string in_double_quotes(const std::string& text);

/// `1.4 %` of 0.014; with no decimals `1 %`.
std::string percent_text(double ratio, int decimals = 1);
/// `+1.4 %` of 0.014, `-1.4 %` of -0.014; what rounds to nothing is `0.0 %`.
std::string signed_percent_text(double ratio);
/// Four significant digits, three below 1.
std::string short_number(double value);
/// Words or whole numbers with `between` between them.
template <class Range>
std::string joined(const Range& items, const std::string& between = ", ") {
  return fmt::format("{}", fmt::join(items, between));
}
/// `a, b or c`
std::string alternatives(const std::vector<std::string>& words);
/// `1 row`, `2 rows`, `2 switches`
std::string counted(std::size_t count, const std::string& thing);

}  // namespace stepcast

#include "core/table.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <ranges>
#include <utility>

#include "core/text.hpp"

namespace stepcast {
namespace {

bool is_number(const std::string& cell) {
  const std::size_t first = cell.find_first_not_of("+-");
  return first == std::string::npos || std::isdigit(static_cast<unsigned char>(cell[first])) != 0;
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  rows_.push_back(std::move(row));
}

void Table::drop_empty_columns() {
  for (std::size_t c = rows_.front().size(); c-- > 0;)
    if (std::ranges::all_of(rows_ | std::views::drop(1), [c](const auto& row) { return row[c].empty(); }))
      for (auto& row : rows_) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> width(columns, 0);
  std::vector<bool> right(columns, true);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], characters_of(row[c]));
      if (&row != &rows_.front() && !is_number(row[c])) right[c] = false;
    }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - characters_of(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (right[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string in_double_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\' || c == '\n') result += '\\';
    result += c == '\n' ? 'n' : c;
  }
  return result + "\"";
}

std::string percent_text(double ratio, int decimals) {
  return fmt::format("{:.{}f} %", 100.0 * ratio, decimals);
}

std::string signed_percent_text(double ratio) {
  std::string size = percent_text(std::abs(ratio));
  if (size == percent_text(0.0)) return size;
  return (ratio < 0.0 ? "-" : "+") + size;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  const int decimals = size >= 1000.0 ? 0 : size >= 100.0 ? 1 : size >= 10.0 ? 2 : 3;
  return size < 1.0 ? fmt::format("{:.{}g}", value, decimals) : fmt::format("{:.{}f}", value, decimals);
}

std::string alternatives(const std::vector<std::string>& words) {
  if (words.size() < 2) return joined(words);
  return joined(std::vector(words.begin(), words.end() - 1)) + " or " + words.back();
}

std::string counted(std::size_t count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : thing.ends_with("ch") ? "es" : "s");
}

}  // namespace stepcast

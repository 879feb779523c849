#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "core/ranges.hpp"

/// Tables with one row per value of an enumeration, in the order of its values.
namespace stepcast {

/// Row of an enumeration whose values have a name only. Rows with more columns begin with the same two
/// members.
template <class Enum>
struct EnumName {
  Enum value;
  const char* name;  ///< in files, options and messages
};

/// Table of the names of an enumeration, in the order of its values from 0.
template <class Enum, class... Names>
constexpr auto enum_names(Names... names) {
  int value = 0;
  return std::array{EnumName<Enum>{static_cast<Enum>(value++), names}...};
}

/// True if row i describes value i; for `static_assert`.
template <class Row, std::size_t N>
constexpr bool is_in_order(const std::array<Row, N>& table) {
  for (std::size_t i = 0; i < N; ++i)
    if (table[i].value != static_cast<decltype(Row::value)>(i)) return false;
  return true;
}

template <class Row, std::size_t N>
constexpr const Row& row_of(const std::array<Row, N>& table, decltype(Row::value) value) {
  return table.at(static_cast<std::size_t>(value));
}

/// Value with this name; empty if there is none.
template <class Row, std::size_t N>
auto find_value(const std::array<Row, N>& table, const std::string& name) {
  for (const Row& row : table)
    if (name == row.name) return std::optional(row.value);
  return std::optional<decltype(Row::value)>();
}

/// Value with this name. \param what it is, for the message \throws InputError that lists the names
template <class Row, std::size_t N>
auto value_of(const std::array<Row, N>& table, const char* what, const std::string& name) {
  return named(table, &Row::name, what, name).value;
}

/// One element per value of the enumeration that `table` describes.
template <const auto& table, class Value>
class EnumArray {
 public:
  using Enum = decltype(table[0].value);
  constexpr Value& operator[](Enum value) { return values_.at(static_cast<std::size_t>(value)); }
  constexpr const Value& operator[](Enum value) const { return values_.at(static_cast<std::size_t>(value)); }
  [[nodiscard]] auto begin() const { return values_.begin(); }
  [[nodiscard]] auto end() const { return values_.end(); }

 private:
  std::array<Value, table.size()> values_{};
};

}  // namespace stepcast

#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

namespace stepcast {

/// The number that `text` spells; none if it is not exactly one number. \param base not for floating point
template <class Number, class... Base>
std::optional<Number> number_in(std::string_view text, Base... base) {
  Number value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

inline constexpr int kMostWhole = 10'000'000;  ///< larger values of options would fill the memory
inline constexpr int kMostThreads = 1024;      ///< threads of a rank, and processes that are started at once

/// The value of an option. \throws UsageError if it is no whole number within the limits
inline int whole_number(std::string_view option, std::string_view text, int least, int most = kMostWhole) {
  const auto number = number_in<int>(text);
  if (!number || *number < least || *number > most)
    throw UsageError("--{} must be a whole number from {} to {}, got '{}'", option, least, most, text);
  return *number;
}

/// The shortest text from which a parser reads the same number.
inline std::string shortest_text(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// The ratio that a percentage such as `10%` or `2.5 %` spells; none if it is not one of at least 0 %.
inline std::optional<double> percentage_in(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  text.remove_suffix(1);
  if (text.ends_with(' ')) text.remove_suffix(1);
  const auto number = number_in<double>(text);
  return number && std::isfinite(*number) && *number >= 0.0 ? std::optional(*number / 100.0) : std::nullopt;
}

}  // namespace stepcast

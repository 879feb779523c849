#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace stepcast {

/// The number that `text` spells; none if it is not exactly one number. \param base not for floating point
template <class Number, class... Base>
std::optional<Number> number_in(std::string_view text, Base... base) {
  Number value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
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

#pragma once

#include <charconv>
#include <optional>
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

}  // namespace stepcast

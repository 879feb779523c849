#pragma once

#include <cmath>
#include <optional>
#include <string_view>

#include "core/number.hpp"

namespace stepcast {

/// The ratio that a percentage such as `10%` or `2.5 %` spells; none if it is not one of at least 0 %.
inline std::optional<double> percentage_in(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  text.remove_suffix(1);
  if (text.ends_with(' ')) text.remove_suffix(1);
  const auto number = number_in<double>(text);
  return number && std::isfinite(*number) && *number >= 0.0 ? std::optional(*number / 100.0) : std::nullopt;
}

}  // namespace stepcast

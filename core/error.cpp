#include "core/error.hpp"

#include <algorithm>
#include <numeric>

#include "core/table.hpp"

namespace stepcast {
namespace {

/// Levenshtein distance: insertions, deletions and substitutions that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitution, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    std::size_t distance = edit_distance(name, candidate);
    // A long known name that begins with the given text is more likely than a short similar one.
    if (name.size() >= 3 && candidate.starts_with(name)) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text)
    result += has_control_character({&c, 1}) ? fmt::format("\\x{:02x}", c) : std::string(1, c);
  return result;
}

std::string unknown_name(std::string_view what, std::string_view name,
                         const std::vector<std::string>& known) {
  std::string message = "unknown " + std::string(what) + " '" + std::string(name) + "'";
  if (const std::string near = nearest(name, known); !near.empty())
    message += " (did you mean '" + near + "'?)";
  constexpr std::size_t kMost = 100;
  if (known.size() <= kMost) return message + "; known: " + joined(known);
  return message + "; known are " + std::to_string(known.size()) + ", such as " +
         joined(std::vector<std::string>(known.begin(), known.begin() + 3));
}

}  // namespace stepcast

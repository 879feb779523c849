#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"

/// Options of strategies. Each is declared once, in commands/strategies.yaml or in the file of its strategy.
/// Command line, help, Schedule, Results, comparisons, tables and figures read it from there, and none of
/// them names an option.
namespace stepcast {

/// Values by name without dashes, as users write them: {"bucket-cap", "5MiB"}.
using OptionTexts = std::map<std::string, std::string, std::less<>>;

/// Parts of a text between separators, empty ones included.
std::vector<std::string> parts_of(const std::string& text, char separator);
/// unknown_name(); for what DeepSpeed has and no strategy models, the reason and the nearest alternative.
std::string unknown_choice(const std::string& what, const std::string& name,
                           const std::vector<std::string>& known);
/// \throws UsageError with the nearest name if `value` is not one of `known`
void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known);
/// Whole number above 0 with at most six digits; empty for any other text.
std::optional<int> positive_number(const std::string& text);

/// Divisors of a number as texts, ascending.
std::vector<std::string> divisors(int number);

enum class OptionKind : std::uint8_t { kText, kNumber, kBytes, kFlag };

struct StrategyOption {
  std::string name{};
  OptionKind kind = OptionKind::kText;
  std::string standard{};  ///< value if none is given
  std::string help{};
  std::vector<std::string> choices{};  ///< valid texts; empty: any
  double least = 0.0;                  ///< of numbers and bytes
  double most = std::numeric_limits<int>::max();
  /// Option whose value this one has if only that one is given.
  std::string follows{};

  /// Text that equal values share: `25MiB` for `26214400B`.
  /// \throws UsageError that names option, value and valid values
  [[nodiscard]] std::string canonical(const std::string& value) const;
};

/// Values of all options of a strategy in one configuration: first those given, and defaults. A strategy then
/// settles values that depend on model and ranks (`split` from `even` to `3-3-3-3`) and drops options without
/// effect, so that equal steps have equal options. Schedule and Result contain the rest as canonical texts.
class StrategyOptions {
 public:
  /// \pre `given` names only options of `declared` \throws UsageError for an invalid value
  StrategyOptions(std::vector<StrategyOption> declared, const OptionTexts& given);

  /// \pre the option was declared and not dropped
  [[nodiscard]] const std::string& text(const std::string& name) const { return values_.at(name); }
  [[nodiscard]] int number(const std::string& name) const;
  [[nodiscard]] bool flag(const std::string& name) const { return text(name) == "yes"; }
  [[nodiscard]] Bytes bytes(const std::string& name) const;
  [[nodiscard]] bool given(const std::string& name) const { return given_.contains(name); }

  void settle(const std::string& name, const std::string& value) { values_[name] = value; }
  void drop(const std::vector<std::string>& names);
  /// Drops options without effect. \throws UsageError if one was given another value than its default:
  /// `--chunk has no effect <reason>`
  void refuse(const std::vector<std::string>& names, const std::string& reason);

  [[nodiscard]] const OptionTexts& resolved() const { return values_; }
  /// `split 3-3-3-3`, `forward-prefetch`: those that differ from their defaults, as declared.
  [[nodiscard]] std::vector<std::string> changed() const;

 private:
  std::vector<StrategyOption> declared_;
  OptionTexts given_;
  OptionTexts values_;
};

}  // namespace stepcast

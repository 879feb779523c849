#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"

/// Options of strategies. Each stands once, in the file of the strategy (or of the piece that several share):
/// the command line and its help, the Schedule, Results, comparison, tables and figures learn of it from
/// there and know none by name.
namespace stepcast {

/// Values by name without dashes, as people write them: {"bucket-cap", "5MiB"}.
using OptionTexts = std::map<std::string, std::string>;

/// The shortest text that is exactly this size: `25MiB`, `1GB`, `3kB`.
std::string exact_text(Bytes size);

/// What stands between the separators of a text, empty parts too.
std::vector<std::string> parts_of(const std::string& text, char separator);
/// A whole number above 0, of at most six digits.
std::optional<int> positive_number(const std::string& text);

enum class OptionKind : std::uint8_t { kText, kNumber, kBytes, kFlag };

struct StrategyOption {
  std::string name{};
  OptionKind kind = OptionKind::kText;
  std::string standard{};  ///< the value where none is given
  std::string help{};
  std::vector<std::string> choices{};  ///< of a text that is one of these
  double least = 0.0;                  ///< of numbers and bytes
  double most = std::numeric_limits<int>::max();
  /// Another option; where that one is given and this one is not, both are alike.
  std::string follows{};

  /// \param choices the first is the default
  static StrategyOption choice(std::string name, std::vector<std::string> choices, std::string help);
  static StrategyOption flag(std::string name, std::string help);
  static StrategyOption number(std::string name, int standard, int least, std::string help);
  static StrategyOption bytes(std::string name, std::string standard, std::string help);

  bool operator==(const StrategyOption&) const = default;

  /// The one text that stands for what `value` means: of `26214400B` it is `25MiB`.
  /// \throws UsageError that names option, value and valid values
  [[nodiscard]] std::string canonical(const std::string& value) const;
};

/// The values of all options of a strategy in one configuration. It begins with what was given and the
/// defaults; a strategy then settles what depends on model and ranks (`split` from `even` to `3-3-3-3`) and
/// drops what means nothing there, so that equal steps have equal options. What is left, in canonical texts,
/// is what Schedule and Result say of the strategy.
class StrategyOptions {
 public:
  /// \pre `given` names only options of `declared` \throws UsageError for a value that an option refuses
  StrategyOptions(std::vector<StrategyOption> declared, const OptionTexts& given);

  /// \pre the option was declared and not dropped
  [[nodiscard]] const std::string& text(const std::string& name) const { return values_.at(name); }
  [[nodiscard]] int number(const std::string& name) const;
  [[nodiscard]] bool flag(const std::string& name) const { return text(name) == "yes"; }
  [[nodiscard]] Bytes bytes(const std::string& name) const;
  [[nodiscard]] bool given(const std::string& name) const { return given_.contains(name); }

  void settle(const std::string& name, const std::string& value) { values_[name] = value; }
  void drop(const std::vector<std::string>& names);
  /// The same for options that whoever gives them must have misunderstood. \throws UsageError when one was
  /// given, and not as its default: `--chunk means nothing <reason>`
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

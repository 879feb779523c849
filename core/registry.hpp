#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/ranges.hpp"

namespace stepcast {

/// A typed table of named things: strategies, collective algorithms, figures, commands, backends.
///
/// A file adds its value by one `const Registration` at namespace scope. Modules are therefore OBJECT
/// libraries (a linker may drop files of a static library). Entries are sorted by (order, name), so the
/// result does not depend on link order. A duplicate name is a programmer's mistake: it ends the program at
/// start-up.
template <class Thing>
class Registry {
 public:
  struct Entry {
    std::string name;
    std::string description{};  ///< one sentence, shown by `help`
    Thing value;
    int order = 0;
  };

  explicit Registry(std::string what) : what_(std::move(what)) {}

  /// \throws std::logic_error for a name that is registered already
  void add(Entry entry) {
    const auto key = [](const Entry& one) { return std::tie(one.order, one.name); };
    if (has(entry.name))
      throw std::logic_error("two registered " + what_ + "s are named '" + entry.name + "'");
    entries_.insert(std::ranges::upper_bound(entries_, key(entry), {}, key), std::move(entry));
  }

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  [[nodiscard]] std::vector<std::string> names() const { return transformed(entries_, &Entry::name); }

  [[nodiscard]] bool has(std::string_view name) const {
    return std::ranges::any_of(entries_, [&](const Entry& e) { return e.name == name; });
  }

  /// \throws UsageError that lists the known names and the nearest one.
  [[nodiscard]] const Thing& find(std::string_view name) const {
    return named<UsageError>(entries_, &Entry::name, what_, name).value;
  }

 private:
  std::string what_;
  std::vector<Entry> entries_;
};

/// Adds an entry when the program starts: `const Registration<Strategy> kDdp(strategies(), "ddp", "...", {},
/// 30);`, or, without a description, `const Registration<Command> kPlot{commands(), "plot", {...}, 22};`.
template <class Thing>
struct Registration {
  Registration(Registry<Thing>& registry, std::string name, Thing value, int order = 0)
      : Registration(registry, {.name = std::move(name), .value = std::move(value), .order = order}) {}
  Registration(Registry<Thing>& registry, std::string name, std::string description, Thing value, int order)
      : Registration(registry, {std::move(name), std::move(description), std::move(value), order}) {}
  Registration(Registry<Thing>& registry, typename Registry<Thing>::Entry entry) {
    registry.add(std::move(entry));
  }
};

}  // namespace stepcast

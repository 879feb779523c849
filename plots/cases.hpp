#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "plots/figure.hpp"
#include "plots/sheet.hpp"

/// Cases as figures show them: grouped into panels, labelled, drawn as lines.
namespace stepcast {

constexpr double kMilli = 1e3;    ///< seconds to milliseconds
constexpr double kPercent = 1e2;  ///< ratios to per cent
constexpr std::size_t kLegendCharacters = 60, kTitleCharacters = 110;

/// The cases that have launches and a prediction. The returned cases point into `input`.
/// \throws InputError when there is none.
std::vector<Case> complete_cases(const FigureInput& input);

/// Items with the same key, in the order in which keys appear.
template <class Item, class KeyOf>
auto grouped(const std::vector<Item>& items, KeyOf key_of) {
  std::vector<std::pair<decltype(key_of(items.front())), std::vector<const Item*>>> groups;
  for (const Item& item : items) {
    const auto key = key_of(item);
    auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == key; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(&item);
  }
  return groups;
}

/// The names of all items, each once.
template <class Item, class NameOf>
std::vector<std::string> sorted_names(const std::vector<Item>& items, NameOf name_of) {
  std::set<std::string> names;
  for (const Item& item : items) names.insert(name_of(item));
  return {names.begin(), names.end()};
}

/// `vgg11-bn-cifar, batch 16 per rank, 1 thread`
std::string model_title(const Configuration& configuration, const std::string& batch_of = "per rank");
/// `ddp`, `bucket-cap 5MiB`, `2 ranks`, each on a line of its own
std::string case_label(const Case& one);
/// Points that these labels need below the axes, more than two lines do.
int room_for_labels(const std::vector<Case>& cases);

using style::shortened;

}  // namespace stepcast

#pragma once

#include <algorithm>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.hpp"

/// Short forms of frequent loops over ranges.
namespace stepcast {

/// `of(item)` for every item, in their order. `of` may be a member.
template <class Items, class Of>
auto transformed(Items&& items, Of of) {
  std::vector<std::decay_t<std::invoke_result_t<Of&, std::ranges::range_reference_t<Items>>>> result;
  for (auto&& item : items) result.push_back(std::invoke(of, item));
  return result;
}

/// Copies of the items for which `holds(item)`, in their order. `holds` may be a member.
template <class Items, class Holds>
auto filtered(const Items& items, Holds holds) {
  std::vector<std::ranges::range_value_t<Items>> result;
  std::ranges::copy_if(items, std::back_inserter(result), holds);
  return result;
}

/// Whether `of(item)` is `value` for some item. `of` may be a member.
template <std::ranges::range Items, class Value, class Of = std::identity>
bool contains(const Items& items, const Value& value, Of of = {}) {
  return std::ranges::find(items, value, of) != std::ranges::end(items);
}

/// Adds copies of the items of `more`, a range or a list, at the end.
template <class Item, class Items = std::initializer_list<Item>>
void append(std::vector<Item>& items, const Items& more) {
  items.insert(items.end(), std::ranges::begin(more), std::ranges::end(more));
}

/// Whole numbers from `first` to before `end`.
std::vector<int> whole_numbers(int first, std::integral auto end) {
  std::vector<int> numbers;
  for (int i = first; std::cmp_less(i, end); ++i) numbers.push_back(i);
  return numbers;
}

/// The items of a container with their numbers: `for (auto [i, item] : enumerated(items))`.
template <class Items>
auto enumerated(Items& items) {
  return std::views::iota(std::size_t{0}, items.size()) | std::views::transform([&items](std::size_t i) {
           return std::pair<std::size_t, decltype(items[i])>(i, items[i]);
         });
}

/// Sum of `of(item)` over the items, in their order and in the type of `of(item)`. `of` may be a member.
template <class Items, class Of>
auto sum_of(Items&& items, Of of) {
  std::decay_t<std::invoke_result_t<Of&, std::ranges::range_reference_t<Items>>> sum{};
  for (const auto& item : items) sum += std::invoke(of, item);
  return sum;
}

/// The largest `of(item)`, or 0 if none is above. `of` may be a member.
template <class Items, class Of>
auto largest_of(Items&& items, Of of) {
  std::decay_t<std::invoke_result_t<Of&, std::ranges::range_reference_t<Items>>> most{};
  for (const auto& item : items) most = std::max<decltype(most)>(most, std::invoke(of, item));
  return most;
}

/// The value of `key` in a map, or `otherwise` without it.
template <class Map, class Key>
auto value_or(const Map& map, const Key& key, const typename Map::mapped_type& otherwise) {
  const auto found = map.find(key);
  return found == map.end() ? otherwise : found->second;
}

/// The value of `key` in a map; none without it.
template <class Map, class Key>
std::optional<typename Map::mapped_type> optional_at(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

/// The last item whose key is at most `limit`, else the first. \pre items are sorted by `key_of`, not empty
template <class Items, class Limit, class KeyOf>
const auto& last_up_to(const Items& items, const Limit& limit, KeyOf key_of) {
  const auto next = std::ranges::upper_bound(items, limit, {}, key_of);
  return next == std::ranges::begin(items) ? *next : *std::ranges::prev(next);
}

/// The value of `key`, which `make()` returns when it is first needed. References to it stay valid.
template <class Map, class Make>
auto& cached(Map& map, const typename Map::key_type& key, const Make& make) {
  const auto found = map.find(key);
  return found != map.end() ? found->second : map.emplace(key, make()).first->second;
}

/// The item whose member `name_of` is `name`. \param what it is, for the message
/// \throws Failure that lists the names, and the nearest
template <class Failure = InputError, class Items, class NameOf>
const auto& named(const Items& items, NameOf name_of, std::string_view what, std::string_view name) {
  const auto found = std::ranges::find(items, name, name_of);
  if (found != std::ranges::end(items)) return *found;
  const auto names = transformed(items, name_of);
  throw Failure(unknown_name(what, name, {names.begin(), names.end()}));
}

/// Keys of a YAML map with their nodes, in its order.
template <class Node>
auto entries_of(const Node& map) {
  return transformed(map.keys(), [&](const std::string& key) { return std::pair(key, map.at(key)); });
}

/// The same of the map `key`; none without it.
template <class Node>
auto entries_of(const Node& node, const std::string& key) {
  return node.has(key) ? entries_of(node.at(key)) : std::vector<std::pair<std::string, Node>>{};
}

/// The first name that an item shares with an earlier one; none if all differ.
template <class Items>
std::optional<std::string> repeated_name(const Items& items) {
  std::unordered_set<std::string_view> seen;
  for (const auto& item : items)
    if (!seen.insert(item.name).second) return item.name;
  return std::nullopt;
}

/// Items with the same key, in the order in which keys appear.
template <class Item, class KeyOf>
auto grouped(const std::vector<Item>& items, KeyOf key_of) {
  using Key = std::decay_t<std::invoke_result_t<KeyOf&, const Item&>>;
  std::vector<std::pair<Key, std::vector<const Item*>>> groups;
  for (const Item& item : items) {
    const Key key = std::invoke(key_of, item);
    auto found = std::ranges::find(groups, key, &std::pair<Key, std::vector<const Item*>>::first);
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(&item);
  }
  return groups;
}

/// The different values, ascending.
template <class Value>
std::vector<Value> sorted_unique(std::vector<Value> values) {
  std::ranges::sort(values);
  const auto repeated = std::ranges::unique(values);
  values.erase(repeated.begin(), repeated.end());
  return values;
}

/// The parts of a text that `separator` ends; the last one may lack it.
inline std::vector<std::string> split(const std::string& text, char separator = '\n') {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

/// The words of a text, between white space.
inline std::vector<std::string> words_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace stepcast

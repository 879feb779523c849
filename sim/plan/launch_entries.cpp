#include "sim/plan/launch_entries.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "core/text.hpp"

namespace stepcast {
namespace {

/// Whether a key fits one of the patterns of a list of the rules.
bool matches(const std::string& key, const YamlNode& rules, const char* list) {
  return std::ranges::any_of(rules.items(list), [&](const YamlNode& pattern) {
    return fnmatch(pattern.text().c_str(), key.c_str(), 0) == 0;
  });
}

bool is_of_model(const std::string& key, const YamlNode& rules) {
  return rules.has("model") && rules.at("model").has(key);
}

bool is_absent(const std::string& value) { return value == "null" || value == "None"; }

struct EntryNamer {
  const std::string& file_name;
  const YamlNode& rules;

  NamedEntries name(const LaunchFile& file, const OptionTexts& given) {
    take_words(file.words);
    for (const auto& [option, value] : given) result.words[option] = value;
    if (const auto model = result.words.find("model"); model != result.words.end()) {
      model_given = true;
      sequence_given = Specification::parse("model", model->second).find("sequence") != nullptr;
    }
    for (const auto& [key, value] : entries_of(rules.at("defaults"))) result.values.set(key, value.text());
    for (const LaunchEntry& entry : file.entries) take(entry);
    refuse_unknown();
    check_parents();
    return std::move(result);
  }

  [[noreturn]] void fail(const LaunchEntry& entry, const std::string& message) const {
    refuse_entry(file_name, entry, message);
  }

  /// `--model llama3-8b --like=`: options that the program's own do not express; an empty value unsets one.
  void take_words(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      std::string option;
      for (const std::string& word : words_in(line)) {
        if (word.starts_with("--")) {
          const auto equals = word.find('=');
          option = word.substr(2, equals == std::string::npos ? equals : equals - 2);
          result.words[option] = equals == std::string::npos ? "yes" : word.substr(equals + 1);
        } else if (!option.empty()) {
          result.words[option] = word;
        }
      }
    }
  }

  [[nodiscard]] std::string normal(const std::string& key) const {
    std::string text = rules.flag("leaf") ? key.substr(key.find_last_of('.') + 1) : key;
    if (rules.at("syntax").text() == "arguments") std::ranges::replace(text, '_', '-');
    return text;
  }

  void take(LaunchEntry entry) {
    if (entry.key == "world-size") return result.values.set("world-size", entry.value);
    const std::string key = normal(entry.key), name = name_of(key, rules);
    const std::string usual = rules.at("defaults").text_or(name, "");
    const bool has_values = rules.has("only") && rules.at("only").has(key);
    if (is_flag(usual) && !has_values && entry.value == kNotLiteral &&
        rules.at("syntax").text() == "arguments") {
      result.unread.push_back(fmt::format("{} (line {})", entry.key, entry.line));
      entry.value.clear();
    }
    const std::string value = is_flag(usual) ? flag_value(entry.value) : normal_value(entry.value);
    const bool absent = is_absent(value);
    if (!absent) result.found[key] = entry;
    if (is_of_model(key, rules) && model_given && (name != "sequence" || sequence_given)) {
      if (!absent) result.replaced.push_back(entry.key);
      return;
    }
    const bool known = !name.empty();
    const std::string word = entry.value.substr(entry.value.find_last_of(kExpression) + 1);
    std::vector<std::string> modelled;
    if (has_values) modelled = transformed(rules.at("only").at(key).one_or_more(), &YamlNode::text);
    const bool listed = !word.empty() && contains(modelled, word);
    if (listed && entry.value.starts_with(kNotLiteral)) return take({entry.key, word, entry.line});
    const bool call = !known && entry.value.starts_with(kExpression), checked = !call && !modelled.empty();
    if ((known || checked) && entry.value.find(kNotLiteral) != std::string::npos) {
      static const std::set<std::string> kCounts{"nodes", "machines", "gpus-per-node", "world-size"};
      if (result.words.contains("world-size") && kCounts.contains(name))
        return result.ignored.push_back(entry.key + " (--world-size replaces it)");
      fail(entry,
           "the value is not literal; only literal assignments, arrays and variables of these are read");
    }
    const std::vector<std::string> parts =
        matches(key, rules, "lists") ? values_in(value) : std::vector{value};
    if (checked && !absent)
      for (const std::string& part : parts)
        if (!contains(modelled, part)) fail(entry, "this value is not modelled; known: " + joined(modelled));
    if (!known) return checked ? void() : take_other(entry, key, value);
    if (absent) return void(nested[key].erase(entry.key));
    if (!checked) check_kind(entry, key, value);
    if (entry.key.find('.') != std::string::npos) nested[key][entry.key] = entry;
    if (value.empty() && !rules.at("defaults").text_or(name, "none").empty())
      fail(entry, "found an empty text; write a value, or remove the key");
    const LaunchEntry& before = result.named.try_emplace(name, entry).first->second;
    if (name == "sequence" && normal(before.key) != key && normal_value(before.value) != value)
      fail(entry, "contradicts " + before.key + " " + printable(before.value) + "; remove one of them");
    result.named[name] = entry;
    result.values.set(name, joined(parts, "+"));
  }

  /// Refuses texts where the default is a flag or a number, or a size of a model is expected.
  void check_kind(const LaunchEntry& entry, const std::string& key, const std::string& value) const {
    const bool size = is_of_model(key, rules) && !rules.at("defaults").has(name_of(key, rules));
    const std::string usual = rules.at("defaults").text_or(name_of(key, rules), "");
    if (value.empty() || (value == "auto" && matches(key, rules, "auto"))) return;
    if (size && !positive_number(value)) fail(entry, "expected a whole number above 0");
    if (is_flag(usual) && !is_flag(value)) fail(entry, "expected true or false");
    if (number_in<double>(usual) && !number_in<double>(value)) fail(entry, "expected a number");
  }

  /// Refuses different last values of a key under several parents, as `ddp` and `mixed_precision`.
  void check_parents() const {
    for (const auto& [key, entries] : nested)
      for (const auto& [name, entry] : entries)
        for (const auto& [other, before] : entries)
          if (before.line <= entry.line && normal_value(before.value) != normal_value(entry.value))
            fail(entry, "contradicts " + other + " " + printable(before.value) + "; remove one of them");
  }

  /// A key without a value of its own: refused, without effect or unknown.
  void take_other(const LaunchEntry& entry, const std::string& key, const std::string& value) {
    static const std::set<std::string> kOff{"", "no", "0", "none", "null", "None", "[]"};
    for (const auto& [pattern, why] : entries_of(rules, "refused"))
      if (fnmatch(pattern.c_str(), key.c_str(), 0) == 0) {
        if (kOff.contains(value)) return;
        fail(entry, "is not modelled: " + why.text());
      }
    if (entry.value.starts_with(kExpression)) return result.ignored.push_back(entry.key + " (not literal)");
    if (matches(key, rules, "ignored")) return result.ignored.push_back(entry.key);
    if (!is_absent(value)) unknown.push_back(entry);
  }

  void refuse_unknown() const {
    if (unknown.empty()) return;
    std::vector<std::string> known, others;
    for (const char* list : {"keys", "model", "only"})
      for (const auto& [name, node] : entries_of(rules, list)) known.push_back(name);
    const std::string near = nearest(normal(unknown.front().key), known);
    for (const LaunchEntry& entry : unknown)
      if (&entry != &unknown.front()) others.push_back(fmt::format("{} (line {})", entry.key, entry.line));
    fail(unknown.front(),
         "is not known and may have an effect" + (near.empty() ? "" : " (did you mean '" + near + "'?)") +
             "; remove it if it has none" + (others.empty() ? "" : "; not known either: " + joined(others)));
  }

  bool model_given = false, sequence_given = false;
  std::map<std::string, std::map<std::string, LaunchEntry>> nested{};  ///< the last by key and by full key
  std::vector<LaunchEntry> unknown{};
  NamedEntries result{};
};

}  // namespace

NamedEntries name_entries(const LaunchFile& entries, const std::string& file, const YamlNode& rules,
                          const OptionTexts& given) {
  return EntryNamer{file, rules}.name(entries, given);
}

std::string name_of(const std::string& key, const YamlNode& rules) {
  return rules.at(is_of_model(key, rules) ? "model" : "keys").text_or(key, "");
}

std::string key_of(const std::string& name, const YamlNode& rules) {
  for (const char* map : {"keys", "model"})
    for (const auto& [key, value] : entries_of(rules, map))
      if (value.text() == name) return key;
  return name;
}

void refuse_entry(const std::string& file, const LaunchEntry& entry, const std::string& message) {
  constexpr std::size_t kShown = 80;
  std::size_t end = std::min({entry.value.find(kNotLiteral), entry.value.size(), kShown});
  while (end > 0 && end < entry.value.size() && !starts_character(entry.value[end])) --end;
  const std::string value = entry.value.substr(0, end) + (end < entry.value.size() ? "..." : "");
  throw InputError("{}:{}: {}{}: {}", file, entry.line, entry.key,
                   value.empty() ? "" : " " + printable(value), message);
}

}  // namespace stepcast

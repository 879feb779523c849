#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/expression.hpp"
#include "core/importer.hpp"
#include "core/yaml.hpp"
#include "sim/plan/launch_syntax.hpp"

/// Values of a launch file's keys, by the names that the rules of launchers/*.yaml have for them.
namespace stepcast {

struct NamedEntries {
  Assignment values{};                         ///< of the file, and defaults
  OptionTexts words{};                         ///< options of `predict`: of comments, and those given
  std::map<std::string, LaunchEntry> found{};  ///< by key
  std::map<std::string, LaunchEntry> named{};  ///< the last by name, as the file spells its key
  /// Keys without effect, those that --model replaces, and flags with a word behind them that is not literal.
  std::vector<std::string> ignored{}, replaced{}, unread{};
};

/// \param file its name, for errors \param rules `read` of launchers/*.yaml \param given options of the user
/// \throws InputError that names file, line and key of what is not literal, not modelled or not known
NamedEntries name_entries(const LaunchFile& entries, const std::string& file, const YamlNode& rules,
                          const OptionTexts& given);

/// The key's name in `keys` or `model`; "": none.
std::string name_of(const std::string& key, const YamlNode& rules);
/// The first key whose value has this name; the name if none has.
std::string key_of(const std::string& name, const YamlNode& rules);

/// \throws InputError: file, line, key and value of the entry, and the message
[[noreturn]] void refuse_entry(const std::string& file, const LaunchEntry& entry, const std::string& message);

}  // namespace stepcast

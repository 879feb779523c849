#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/yaml.hpp"

namespace stepcast {

/// What the text of `node` is the name of. \throws InputError that names the place, the unknown name of a
/// `what` and the nearest known one
template <class Value>
const Value& find_named(const YamlNode& node, const std::string& what,
                        const std::map<std::string, Value>& things) {
  const auto found = things.find(node.text());
  if (found != things.end()) return found->second;
  std::vector<std::string> known;
  known.reserve(things.size());
  for (const auto& [name, thing] : things) known.push_back(name);
  node.fail(unknown_name(what, node.text(), known));
}

}  // namespace stepcast

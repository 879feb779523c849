#include "topologies/settings.hpp"

#include <algorithm>

namespace stepcast {

void ClusterSettings::read_defaults(const std::vector<YamlNode>& files) {
  for (const YamlNode& file : files) {
    if (!file.has("settings")) continue;
    for (const std::string& key : file.at("settings").keys())
      values_.emplace(key, file.at("settings").at(key).text());
  }
  for (const auto& [key, value] : given_.overrides) {
    if (values_.empty()) throw InputError("cluster '{}' has no settings, so '{}' cannot be set", file(), key);
    if (!values_.contains(key))
      throw InputError("cluster '" + file() + "': " + unknown_name("setting", key, names_of(values_)));
    values_[key] = value;
  }
}

void ClusterSettings::refuse_unused(const YamlNode& nearest) const {
  for (const auto& [key, value] : given_.overrides)
    if (!used_.contains(key))
      throw InputError("cluster '" + file() + "': nothing uses setting '" + key +
                       "'; used: " + unknown_name("setting", key, {used_.begin(), used_.end()}));
  if (!nearest.has("settings")) return;
  const YamlNode settings = nearest.at("settings");
  for (const std::string& key : settings.keys())
    if (!used_.contains(key))
      settings.at(key).fail(unknown_name("setting", key, {used_.begin(), used_.end()}));
}

YamlNode ClusterSettings::value(const YamlNode& node) const {
  const auto found = values_.find(node.text());
  if (found == values_.end()) return node;
  used_.insert(found->first);
  const YamlNode holder = YamlNode::parse(found->first + ": " + found->second, "cluster '" + file() + "'");
  return holder.at(found->first);
}

int ClusterSettings::integer(const YamlNode& node, int least, int most) const {
  const YamlNode number = value(node);
  const long long result = number.integer();
  if (result < least) number.fail("expected at least {}, found {}", least, result);
  if (result > most) number.fail("expected at most {}, found {}", most, result);
  return static_cast<int>(result);
}

std::string ClusterSettings::one_of(const YamlNode& node, const std::string& what,
                                    const std::vector<std::string>& known) const {
  const std::string name = value(node).text();
  if (std::ranges::find(known, name) == known.end()) node.fail(unknown_name(what, name, known));
  return name;
}

}  // namespace stepcast

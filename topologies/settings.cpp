#include "topologies/settings.hpp"

#include "core/ranges.hpp"

namespace stepcast {

void ClusterSettings::read_defaults(const std::vector<YamlNode>& files) {
  for (const YamlNode& file : files)
    for (const auto& [key, value] : entries_of(file, "settings")) values_.emplace(key, value.text());
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
      throw InputError("cluster '{}': nothing uses setting '{}'; used: {}", file(), key,
                       unknown_name("setting", key, {used_.begin(), used_.end()}));
  if (!nearest.has("settings")) return;
  for (const auto& [key, value] : entries_of(nearest.at("settings")))
    if (!used_.contains(key)) value.fail(unknown_name("setting", key, {used_.begin(), used_.end()}));
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

}  // namespace stepcast

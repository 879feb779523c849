#include "topologies/settings.hpp"

#include <sstream>
#include <vector>

#include "core/error.hpp"

namespace stepcast {

ClusterSettings::ClusterSettings(const std::string& specification) {
  const std::size_t equals = specification.find('=');
  const std::size_t colon = equals == std::string::npos ? equals : specification.rfind(':', equals);
  file_ = specification.substr(0, colon);
  if (equals == std::string::npos) return;
  const std::string form = "cluster '" + specification + "': expected name:key=value[,key=value]";
  if (colon == std::string::npos) throw InputError(form);
  std::istringstream items(specification.substr(colon + 1));
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t split = item.find('=');
    if (split == std::string::npos || split == 0 || split + 1 == item.size())
      throw InputError(form + std::string(", found '").append(item).append("'"));
    if (!overrides_.emplace(item.substr(0, split), item.substr(split + 1)).second)
      throw InputError("cluster '" + specification + "': setting '" + item.substr(0, split) +
                       "' stands twice");
  }
}

void ClusterSettings::read_defaults(const std::vector<YamlNode>& files) {
  for (const YamlNode& file : files) {
    if (!file.has("settings")) continue;
    for (const std::string& key : file.at("settings").keys())
      values_.emplace(key, file.at("settings").at(key).text());
  }
  std::vector<std::string> known;
  for (const auto& [key, value] : values_) known.push_back(key);
  for (const auto& [key, value] : overrides_) {
    if (values_.empty()) throw InputError("cluster '" + file_ + "' has no settings, so not '" + key + "'");
    if (!values_.contains(key))
      throw InputError("cluster '" + file_ + "': " + unknown_name("setting", key, known));
    values_[key] = value;
  }
}

void ClusterSettings::refuse_unused(const YamlNode& file) const {
  for (const auto& [key, value] : overrides_)
    if (!used_.contains(key))
      throw InputError("cluster '" + file_ + "': setting '" + key + "' is named by nothing in it; used: " +
                       unknown_name("setting", key, {used_.begin(), used_.end()}));
  if (!file.has("settings")) return;
  const YamlNode settings = file.at("settings");
  for (const std::string& key : settings.keys())
    if (!used_.contains(key))
      settings.at(key).fail(unknown_name("setting", key, {used_.begin(), used_.end()}));
}

YamlNode ClusterSettings::resolve(const YamlNode& node) const {
  const auto found = values_.find(node.text());
  if (found == values_.end()) return node;
  used_.insert(found->first);
  const YamlNode holder = YamlNode::parse(found->first + ": " + found->second, "cluster '" + file_ + "'");
  return holder.at(found->first);
}

int ClusterSettings::integer(const YamlNode& node, int least, int most) const {
  const YamlNode value = resolve(node);
  const long long result = value.integer();
  if (result < least)
    value.fail("expected at least " + std::to_string(least) + ", found " + std::to_string(result));
  if (result > most)
    value.fail("expected at most " + std::to_string(most) + ", found " + std::to_string(result));
  return static_cast<int>(result);
}

double ClusterSettings::number(const YamlNode& node) const { return resolve(node).number(); }
std::string ClusterSettings::text(const YamlNode& node) const { return resolve(node).text(); }
Seconds ClusterSettings::seconds(const YamlNode& node) const { return resolve(node).seconds(); }
Bytes ClusterSettings::bytes(const YamlNode& node) const { return resolve(node).bytes(); }
BytesPerSecond ClusterSettings::bytes_per_second(const YamlNode& node) const {
  return resolve(node).bytes_per_second();
}

}  // namespace stepcast

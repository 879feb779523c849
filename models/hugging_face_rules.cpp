#include "models/hugging_face_rules.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/file.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

std::vector<std::string> texts(const YamlNode& node) {
  return transformed(node.one_or_more(), &YamlNode::text);
}

YamlNode table_named(const std::string& name) {
  return YamlNode::shipped("models/hugging_face/" + name + ".yaml");
}

/// Tables by the types that they contain, each read once.
const std::map<std::string, YamlNode>& tables() {
  static const std::map<std::string, YamlNode> kTables = [] {
    std::map<std::string, YamlNode> all;
    for (const std::string& name : resource_names("models/hugging_face", ".yaml"))
      for (const YamlNode table = table_named(name); const auto& [type, rules] : entries_of(table, "types"))
        all.emplace(type, table);
    return all;
  }();
  return kTables;
}

/// Tables of settings' rules. A setting has one rule among them.
constexpr std::array kSettingTables{
    std::pair("settings", &ConfigurationRules::settings),
    std::pair("optional", &ConfigurationRules::optional), std::pair("percent", &ConfigurationRules::percent),
    std::pair("or_null", &ConfigurationRules::or_null), std::pair("fixed", &ConfigurationRules::fixed)};

/// Adds the rules of one map; a setting's earlier rule of another kind goes.
void add_rules(const YamlNode& node, ConfigurationRules& rules) {
  rules.model = node.text_or("model", rules.model);
  rules.refused = node.text_or("refused", rules.refused);
  rules.block_configs = node.text_or("block_configs", rules.block_configs);
  rules.pattern = node.text_or("pattern", rules.pattern);
  const auto forget = [&](const std::string& setting) {
    for (const auto& [key, table] : kSettingTables)
      if (const auto earlier = (rules.*table).extract(setting))
        for (const std::string& field : earlier.mapped())
          if (key != std::string("fixed") && key != std::string("or_null")) rules.ignored.insert(field);
  };
  for (const auto& [key, table] : kSettingTables)
    for (const auto& [setting, fields] : entries_of(node, key)) {
      forget(setting);
      (rules.*table)[setting] = texts(fields);
    }
  for (const auto& [setting, value] : entries_of(node, "defaults")) rules.defaults[setting] = texts(value);
  for (const auto& [field, values] : entries_of(node, "only")) rules.only[field] = texts(values);
  if (node.has("full_every")) rules.full_every = texts(node.at("full_every"));
  if (node.has("windows"))
    for (const std::string& field : texts(node.at("windows"))) rules.windows.push_back(field);
  if (node.has("ignored"))
    for (const std::string& field : texts(node.at("ignored"))) rules.ignored.insert(field);
  if (!node.has("sparse")) return;
  const YamlNode sparse = node.at("sparse");
  sparse.allow_only({"first", "step", "dense_layers", "sparse_layers", "dense"});
  rules.sparse = {sparse.text_or("first", ""),
                  sparse.text_or("step", ""),
                  sparse.text_or("dense_layers", ""),
                  sparse.text_or("sparse_layers", ""),
                  {}};
  for (const auto& [setting, fields] : entries_of(sparse.at("dense")))
    rules.sparse.dense[setting] = texts(fields);
}

/// Adds rules, then those of its cases that hold. Fields of all cases are known.
void add_with_cases(const YamlNode& node, const Assignment& fields, ConfigurationRules& rules) {
  node.allow_only({"model", "settings", "optional", "or_null", "percent", "fixed", "defaults", "only",
                   "windows", "ignored", "sparse", "block_configs", "pattern", "full_every", "cases",
                   "refused"});
  add_rules(node, rules);
  for (const YamlNode& one : node.items("cases")) {
    Assignment values = fields;
    for (const std::string& name : one.at("if").keys()) {
      rules.ignored.insert(name);
      if (values.find(name) == nullptr) values.set(name, "null");
    }
    ConfigurationRules further;
    add_rules(one, further);
    rules.ignored.merge(further.known_fields());
    if (Condition(one.at("if"), values.names()).holds(values)) add_rules(one, rules);
  }
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), FNM_CASEFOLD) == 0;
  });
}

}  // namespace

std::set<std::string> ConfigurationRules::known_fields() const {
  std::set<std::string> known = ignored;
  const auto add = [&](const std::string& field) {
    if (field.find('{') == std::string::npos)
      known.insert(field);
    else
      known.merge(names_in(field));
  };
  for (const auto* table : {&settings, &optional, &percent, &or_null, &fixed, &defaults, &sparse.dense})
    for (const auto& [setting, fields] : *table) std::ranges::for_each(fields, add);
  for (const auto& [field, values] : only) known.insert(field);
  known.insert(windows.begin(), windows.end());
  known.insert(full_every.begin(), full_every.end());
  known.insert({sparse.first, sparse.step, sparse.dense_layers, sparse.sparse_layers, block_configs, pattern,
                "layer_types"});
  return known;
}

std::vector<std::string> configuration_types() { return names_of(tables()); }

ConfigurationRules rules_of(const std::string& type, const Assignment& fields) {
  const YamlNode& table = tables().at(type);
  table.allow_only({"model", "common", "types"});
  ConfigurationRules rules;
  rules.model = table.text_or("model", "");
  if (table.has("common")) add_with_cases(table.at("common"), fields, rules);
  const YamlNode own = table.at("types").at(type);
  if (own.is_map()) add_with_cases(own, fields, rules);
  if (own.is_scalar() && !own.text().empty()) rules.refused = own.text();
  return rules;
}

bool FieldEffects::may_matter(const std::string& field) const {
  return !matches_any(without, field) && !usual(field) && matches_any(with, field);
}

bool FieldEffects::is_part(const std::string& field) const {
  return field.ends_with("_config") && !usual(field) && !matches_any(without, field);
}

bool FieldEffects::usual(const std::string& field) const { return matches_any(of_every_file, field); }

const FieldEffects& field_effects() {
  static const FieldEffects kEffects = [] {
    const YamlNode file = table_named("fields");
    return FieldEffects{texts(file.at("without")), texts(file.at("with")), texts(file.at("of_every_file"))};
  }();
  return kEffects;
}

}  // namespace stepcast

#include "sim/kineto/names.hpp"

#include <fnmatch.h>

#include <map>
#include <utility>
#include <vector>

#include "core/enum_table.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/text.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr auto kNameKinds = enum_names<NameKind>(
    "other", "step", "optimizer", "zero_grad", "input", "collective", "copies", "node", "accumulate", "loss",
    "replica", "script", "module", "unit_forward", "unit_end", "blocking");

/// Value of the first pattern that fits `name` in a table of models/operators/profiles.yaml; "": none does.
std::string first_fit(const std::string& table, const std::string& name) {
  static const auto kTables = [] {
    std::map<std::string, std::vector<std::pair<std::string, std::string>>> tables;
    for (const auto& [key, rows] : entries_of(YamlNode::shipped("models/operators/profiles.yaml")))
      for (const auto& [pattern, value] : entries_of(rows)) tables[key].emplace_back(pattern, value.text());
    return tables;
  }();
  for (const auto& [pattern, value] : kTables.at(table))
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return value;
  return "";
}

std::string kind_in(const std::string& name) {
  std::string plain = lower(name);
  std::erase_if(plain, [](char c) { return c == '_' || c == '.' || c == ' '; });
  return first_fit("collectives", plain);
}

}  // namespace

NameKind name_kind(const std::string& name) {
  return find_value(kNameKinds, first_fit("events", name)).value_or(NameKind::kOther);
}

std::string collective_kernel(const std::string& name) {
  const std::string otherwise = first_fit("kernels", name);
  const std::string kind = otherwise.empty() ? "" : kind_in(name.substr(0, name.find('(')));
  return kind.empty() ? otherwise : kind;
}

std::string collective_kind(const std::string& call) {
  return contains_any(call, {"barrier", "wait", "monitored"}) ? "" : kind_in(call);
}

std::string precision_dtype(const std::string& type) { return first_fit("precisions", type); }

double element_bytes(const std::string& type) {
  return number_in<double>(first_fit("bytes", type)).value_or(0.0);
}

}  // namespace stepcast

#include "sim/replay/convention.hpp"

#include <algorithm>
#include <map>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "models/model.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {
namespace {

/// Settings that the model's specification contains.
std::vector<std::pair<std::string, std::string>> settings_of(const OptionTexts& options) {
  const auto model = options.find("model");
  if (model == options.end()) return {};
  return Specification::parse("model", model->second).overrides;
}

/// Names that conditions may have: options, dimensions of the mesh, and `replicas`.
std::vector<std::string> condition_names(const Assignment& values) {
  std::vector<std::string> names = values.names();
  for (const PredictionOption& option : prediction_options()) names.push_back(option.name);
  for (const KnownOption& known : known_options()) names.push_back(known.option.name);
  return names;
}

/// Values that conditions may name.
Assignment conditions_of(const OptionTexts& options) {
  Assignment values{{"strategy", ""},       {"precision", "fp32"}, {"schedule", "1f1b"},
                    {"micro-batches", "1"}, {"recompute", "none"}, {"sharding", "full_shard"},
                    {"forward-only", "no"}, {"ulysses", "0"}};
  for (const auto& [name, value] : options) values.set(name, value);
  for (const auto& [name, value] : settings_of(options))
    if (name == "ulysses") values.set(name, value);
  const std::string strategy = values.value_or("strategy", "");
  const int world = positive_number(values.value_or("world-size", "1")).value_or(1);
  TrainingConfig config{.options = options};
  if (strategies().has(strategy)) {  // else prediction_request() refuses it
    take_mesh(strategy, config);
    config.mesh = config.mesh.resolved(world, strategies().find(strategy).open);
  }
  for (const char* name : {"pipeline", "data", "shard", "context", "tensor", "expert", "expert_tensor"})
    values.set(name, std::to_string(config.mesh.size(name)));
  values.set("replicas", std::to_string(world / config.mesh.size("tensor") / config.mesh.size("pipeline")));
  return values;
}

/// The next multiple at or above a setting if `value` is `multiple of N`; else `value`.
std::string multiple_of(std::int64_t setting, const std::string& value) {
  constexpr std::string_view kMultiple = "multiple of ";
  if (!value.starts_with(kMultiple)) return value;
  const auto unit = positive_number(value.substr(kMultiple.size()));
  if (!unit) throw InputError("'{}': expected a whole number above 0 after '{}'", value, kMultiple);
  return std::to_string((setting + *unit - 1) / *unit * *unit);
}

/// `strategy ddp or fsdp, tensor > 1`
std::string condition_text(const YamlNode& conditions) {
  std::vector<std::string> all;
  for (const std::string& name : conditions.keys()) {
    std::vector<std::string> values;
    for (const YamlNode& value : conditions.at(name).one_or_more()) values.push_back(value.text());
    all.push_back(name + " " + joined(values, " or "));
  }
  return joined(all, ", ");
}

}  // namespace

std::string conventions_text() {
  std::string text;
  for (const std::string& name : resource_names("conventions", ".yaml")) {
    const YamlNode file = YamlNode::load(find_resource("conventions", name, ".yaml").string());
    text += fmt::format("{}{}: {}\n\n", text.empty() ? "" : "\n", name, file.at("convention").text());
    Table table({"sets", "to", "if"});
    for (const char* key : {"options", "model"})
      for (const YamlNode& entry : file.items(key))
        for (const std::string& what : entry.keys())
          if (what != "if")
            table.add({(std::string(key) == "model" ? "model setting " : "--") + what, entry.at(what).text(),
                       entry.has("if") ? condition_text(entry.at("if")) : "always"});
    text += table.text();
  }
  return text;
}

LikeOptions like(const std::string& convention, const OptionTexts& options) {
  const std::vector<std::string> known = resource_names("conventions", ".yaml");
  if (!convention.ends_with(".yaml") && std::ranges::find(known, convention) == known.end())
    throw UsageError("--like: " + unknown_name("convention", convention, known));
  const YamlNode file = YamlNode::load(find_resource("conventions", convention, ".yaml").string());
  file.allow_only({"convention", "options", "model"});
  LikeOptions result{.options = options, .note = convention};
  std::map<std::string, std::string> added;  // text by name
  const Assignment values = conditions_of(options);
  const std::vector<std::string> names = condition_names(values);
  const auto each = [&](const char* key, const auto& use) {
    if (!file.has(key)) return;
    for (const YamlNode& entry : file.at(key).items())
      for (const std::string& name : entry.keys()) {
        if (name == "if") continue;
        for (const char* question : {"like", "strategy", "mesh", "model", "world-size", "batch"})
          if (name == question)
            entry.fail("'{}' is a part of the question, which a convention does not set", name);
        const bool holds =
            entry.placed([&] { return !entry.has("if") || Condition(entry.at("if"), names).holds(values); });
        if (!holds) continue;
        const Expansion value = entry.placed([&] { return expand(entry.at(name).text(), values); });
        if (!value.problem.empty()) entry.fail(value.problem);
        use(name, value.text, entry.has("if") && entry.at("if").has(name));
      }
  };
  each("options", [&](const std::string& name, const std::string& value, bool refines) {
    if (!refines && options.contains(name)) return;
    result.options[name] = value;
    added[name] = name + " " + value;
  });
  if (const auto model = result.options.find("model"); model != result.options.end()) {
    const Model whole = load_model(model->second);
    const auto given = settings_of(options);
    each("model", [&](const std::string& name, const std::string& value, bool) {
      const bool is_given = std::ranges::any_of(given, [&](const auto& one) { return one.first == name; });
      if (is_given || !whole.settings.contains(name)) return;
      const std::string text = multiple_of(whole.settings.at(name), value);
      model->second = with_setting(model->second, name, text);
      added[name] = name + "=" + text;
    });
  }
  for (const auto& [name, text] : added) result.note += (result.note == convention ? ": " : ", ") + text;
  return result;
}

}  // namespace stepcast

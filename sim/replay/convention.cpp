#include "sim/replay/convention.hpp"

#include <algorithm>
#include <map>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "models/model.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// The model and its settings; empty without a model.
Specification given_model(const OptionTexts& options) {
  const auto model = options.find("model");
  return model == options.end() ? Specification{} : Specification::parse("model", model->second);
}

/// What conventions decide of a precision's text, and the parts that they leave as given.
std::pair<std::string, std::string> decided_and_kept(const std::string& precision) {
  std::vector<std::string> decided;
  std::string kept;
  for (const std::string& word : split(precision, ',')) {
    const std::string part = word.substr(0, word.find('='));
    if (part == "gather" || part == "master" || part == "optimizer" || part == "scope")
      kept += "," + word;
    else
      decided.push_back(word);
  }
  return {decided.empty() ? "fp32" : joined(decided, ","), kept};
}

/// Values that conditions may name.
Assignment conditions_of(const OptionTexts& options) {
  Assignment values{
      {"strategy", ""},      {"precision", "fp32"},      {"schedule", "1f1b"},   {"micro-batches", "1"},
      {"recompute", "none"}, {"sharding", "full_shard"}, {"forward-only", "no"}, {"ulysses", "0"},
      {"trace", "none"},     {"device", "none"},         {"muon", "0"},          {"zero", ""},
      {"ring", ""}};
  for (const auto& [name, value] : options) values.set(name, value);
  values.set("precision", decided_and_kept(values.value_or("precision", "")).first);
  if (const std::string device = values.value_or("device", ""); device != "none")
    values.set("device", device_model(device).hardware);  // without its settings
  for (const auto& [name, value] : given_model(options).overrides)
    if (name == "ulysses" || name == "muon" || name == "ring") values.set(name, value);
  const std::string strategy = values.value_or("strategy", "");
  const int world = positive_number(values.value_or("world-size", "1")).value_or(1);
  TrainingConfig config{.options = options};
  if (strategies().has(strategy)) {  // else prediction_request() refuses it
    take_mesh(strategy, config);
    config.mesh = config.mesh.resolved(world, strategies().find(strategy).open);
  }
  for (const char* name : {"pipeline", "data", "shard", "context", "tensor", "expert", "expert_tensor"})
    values.set(name, std::to_string(config.mesh.size(name)));
  if (!config.mesh.has("expert_tensor")) values.set("expert_tensor", "0");
  values.set("shards", std::to_string(config.mesh.size("shard") * config.mesh.size("context")));
  values.set("replicas", std::to_string(world / config.mesh.size("tensor") / config.mesh.size("pipeline")));
  return values;
}

/// Names that conditions may have: options, dimensions of the mesh, and `replicas`.
std::vector<std::string> condition_names() {
  std::vector<std::string> names = conditions_of({}).names();
  for (const PredictionOption& option : prediction_options()) names.push_back(option.name);
  for (const KnownOption& known : known_options()) names.push_back(known.option.name);
  return names;
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
    const auto values = transformed(conditions.at(name).one_or_more(), [](const YamlNode& value) {
      return value.text().empty() ? "not given" : value.text();
    });
    all.push_back(name + " " + joined(values, " or "));
  }
  return joined(all, ", ");
}

}  // namespace

std::string conventions_text() {
  std::string text;
  for (const std::string& name : resource_names("conventions", ".yaml")) {
    const YamlNode file = YamlNode::load(find_resource("conventions", name, ".yaml").string());
    text += fmt::format("{}{}: {}{}\n\n", text.empty() ? "" : "\n", name, file.at("convention").text(),
                        file.has("like") ? "; as " + file.at("like").text() + ", and:" : "");
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

Convention::Convention(const std::string& name) : name_(name) { read(name); }

void Convention::read(const std::string& name) {
  const std::vector<std::string> known = resource_names("conventions", ".yaml");
  if (!name.ends_with(".yaml") && !contains(known, name))
    throw UsageError("--like: " + unknown_name("convention", name, known));
  const YamlNode file = YamlNode::load(find_resource("conventions", name, ".yaml").string());
  file.allow_only({"convention", "like", "program", "options", "model"});
  if (file.has("like")) {
    const std::string parent = file.at("like").text();
    if (!contains(known, parent) || parent == name)
      file.at("like").fail(unknown_name("shipped convention", parent, known));
    read(parent);
  }
  if (file.has("program")) program_ = file.at("program").text();
  const std::vector<std::string> names = condition_names();
  for (const char* key : {"options", "model"})
    for (const YamlNode& entry : file.items(key))
      for (const std::string& option : entry.keys()) {
        if (option == "if") continue;
        for (const char* question : {"like", "strategy", "mesh", "model", "world-size", "batch"})
          if (option == question)
            entry.fail("'{}' is a part of the question, which a convention does not set", option);
        entries_.push_back({.name = option,
                            .value = entry.at(option),
                            .condition = {},
                            .refines = entry.has("if") && entry.at("if").has(option),
                            .setting = key == std::string("model")});
        if (entry.has("if") && entry.at("if").has("precision"))
          for (const YamlNode& one : entry.at("if").at("precision").one_or_more())
            if (!decided_and_kept(one.text()).second.empty())
              one.fail("conditions read a precision without gather, master, optimizer and scope");
        if (entry.has("if"))
          entries_.back().condition = entry.placed([&] { return Condition(entry.at("if"), names); });
        names_.insert(option);
      }
}

LikeOptions Convention::added_to(const OptionTexts& options) const {
  LikeOptions result{.options = options, .note = name_};
  std::map<std::string, std::string> added;  // text by name
  const Assignment values = conditions_of(options);
  const Specification given = given_model(options);
  const auto model = result.options.find("model");
  const auto precision = options.find("precision");
  const std::string kept = precision == options.end() ? "" : decided_and_kept(precision->second).second;
  for (const Entry& entry : entries_) {
    const bool holds = entry.value.placed([&] { return !entry.condition || entry.condition->holds(values); });
    if (!holds) continue;
    const Expansion value = entry.value.placed([&] { return expand(entry.value.text(), values); });
    if (!value.problem.empty()) entry.value.fail(value.problem);
    if (!entry.setting) {
      if (!entry.refines && options.contains(entry.name)) continue;
      std::string text = value.text;
      if (entry.name == "precision" && !kept.empty()) {
        try {
          text = to_text(Precision::parse(value.text + kept));
        } catch (const InputError&) {  // what is given excludes what would be set
          continue;
        }
      }
      result.options[entry.name] = text;
      added[entry.name] = entry.name + " " + text;
    } else if (model != result.options.end() && given.find(entry.name) == nullptr) {
      auto& settings = settings_[options.at("model")];
      if (settings.empty()) settings = load_model(options.at("model")).settings;
      const bool without = value_or(settings, "experts", 1) == 0 && entry.name == "expert_tensor";
      if (!settings.contains(entry.name) || without) continue;
      const std::string text = multiple_of(settings.at(entry.name), value.text);
      model->second = with_setting(model->second, entry.name, text);
      added[entry.name] = entry.name + "=" + text;
    } else if (const std::string* set = given.find(entry.name); set != nullptr) {
      const std::string padded = multiple_of(positive_number(*set).value_or(0), value.text);
      if (padded != value.text && padded != *set)
        added[entry.name] = fmt::format("{}={} stays as given, not {}", entry.name, *set, padded);
    }
  }
  for (const auto& [name, text] : added) result.note += (result.note == name_ ? ": " : ", ") + text;
  return result;
}

}  // namespace stepcast

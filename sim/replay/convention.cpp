#include "sim/replay/convention.hpp"

#include <algorithm>
#include <map>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "models/model.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"

namespace stepcast {
namespace {

/// Values that conditions may name. Dimensions that the mesh does not have are 1.
Assignment conditions_of(const OptionTexts& options) {
  Assignment values{{"strategy", ""},
                    {"precision", "fp32"},
                    {"schedule", "1f1b"},
                    {"micro-batches", "1"},
                    {"recompute", "none"}};
  for (const auto& [name, value] : options) values.set(name, value);
  const std::string given = values.value_or(kMeshOption, "");
  const int world = positive_number(values.value_or("world-size", "1")).value_or(1);
  Mesh mesh;
  for (const std::string& part : given.empty() ? std::vector<std::string>{} : parts_of(given, ',')) {
    const std::size_t equals = std::min(part.find('='), part.size() - 1);
    mesh.dimensions.emplace_back(part.substr(0, equals),
                                 positive_number(part.substr(equals + 1)).value_or(1));
  }
  if (given.empty() && values.value_or("strategy", "") == "pipeline")
    mesh.dimensions.emplace_back("pipeline", world);
  for (const char* name : {"tensor", "context", "expert", "data", "shard", "pipeline"})
    values.set(name, std::to_string(mesh.size(name)));
  const int others = mesh.size("tensor") * mesh.size("pipeline");
  values.set("replicas", std::to_string(std::max(1, world / others)));
  return values;
}

}  // namespace

LikeOptions like(const std::string& convention, const OptionTexts& options) {
  const std::vector<std::string> known = resource_names("conventions", ".yaml");
  if (!convention.ends_with(".yaml") && std::ranges::find(known, convention) == known.end())
    throw UsageError("--like: " + unknown_name("convention", convention, known));
  const YamlNode file = YamlNode::load(find_resource("conventions", convention, ".yaml").string());
  file.allow_only({"convention", "options", "model"});
  LikeOptions result{.options = options, .note = convention};
  std::map<std::string, std::string> added;  // text by name
  const Assignment values = conditions_of(options);
  const auto each = [&](const char* key, const auto& use) {
    if (!file.has(key)) return;
    for (const YamlNode& entry : file.at(key).items())
      for (const std::string& name : entry.keys()) {
        if (name == "if") continue;
        const bool holds = !entry.has("if") || Condition(entry.at("if"), values.names()).holds(values);
        const bool refines = entry.has("if") && entry.at("if").has(name);
        if (holds) use(name, expand(entry.at(name).text(), values).text, refines);
      }
  };
  each("options", [&](const std::string& name, const std::string& value, bool refines) {
    if (!refines && options.contains(name)) return;
    result.options[name] = value;
    added[name] = name + " " + value;
  });
  if (const auto model = result.options.find("model"); model != result.options.end()) {
    const std::string given = model->second;
    const Model whole = load_model(given);
    each("model", [&](const std::string& name, const std::string& value, bool) {
      const bool is_given = given.find(":" + name + "=") != std::string::npos ||
                            given.find("," + name + "=") != std::string::npos;
      if (is_given || !whole.settings.contains(name)) return;
      model->second = with_setting(model->second, name, value);
      added[name] = name + "=" + value;
    });
  }
  for (const auto& [name, text] : added) result.note += (result.note == convention ? ": " : ", ") + text;
  return result;
}

}  // namespace stepcast

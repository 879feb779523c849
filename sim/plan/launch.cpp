#include "sim/plan/launch.hpp"

#include <algorithm>
#include <numeric>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "sim/plan/space.hpp"
#include "sim/strategies/pipeline_layout.hpp"

namespace stepcast {
namespace {

/// Names that only launchers/*.yaml use: `layout` is `Et*9|t*10|t*9L`, `split-points` are `"layers.9",
/// "norm"`.
void add_stages(const Plan& plan, Assignment& values) {
  const std::vector<int> stages =
      plan.text("split").empty() ? std::vector{0} : split_counts(plan.text("split"));
  const int all = std::accumulate(stages.begin(), stages.end(), 0);
  std::vector<std::string> layout, points;
  int layer = 0;
  for (const int blocks : stages) {
    layout.push_back(blocks > 0 ? "t*" + std::to_string(blocks) : "");
    layer += blocks;
    points.push_back(layer == all ? "\"norm\"" : "\"layers." + std::to_string(layer) + "\"");
  }
  points.pop_back();
  const bool uneven = std::ranges::any_of(stages, [&](int one) { return one != stages.front(); });
  values.set("uneven", uneven ? "yes" : "no");
  values.set("first-blocks", std::to_string(stages.front()));
  values.set("layout", "E" + joined(layout, "|") + "L");
  values.set("split-points", joined(points));
}

void add_precision(const Precision& precision, Assignment& values) {
  const bool mixed = precision.compute == "bf16" || precision.compute == "fp16";
  Precision preset = Precision::parse(mixed && precision.products == "fp8" ? "fp8" : precision.compute);
  preset.gather = precision.gather;
  values.set("precision", to_text(precision));
  values.set("precision-preset", precision == preset ? "yes" : "no");
  values.set("compute-dtype", precision.compute);
  values.set("gemm-dtype", precision.products);
  values.set("gather-dtype", precision.gather);
  values.set("reduction-dtype", precision.reduction);
}

/// Values of all names in launchers/*.yaml. Dimensions of the plan that do not apply are empty; counts are 1.
Assignment launch_values(PlanModels& models, const Plan& plan) {
  const PlanProblem& problem = models.problem();
  const Model& model = models.whole();
  Assignment values;
  for (const PlanDimension& dimension : plan_dimensions())
    values.set(dimension.name, plan.text(dimension.name));
  const auto set = [&](const char* name, int value) { values.set(name, std::to_string(value)); };
  for (const char* count :
       {"tensor", "pipeline", "context", "expert", "data", "virtual-stages", "micro-batches"})
    set(count, plan.number(count));
  set("copies", plan.copies());
  set("shards", plan.number("data") / plan.copies());
  set("replicas", plan.number("data") * plan.number("context"));
  set("shared-layers", plan.number("tensor") * plan.number("context"));
  set("micro-batch", plan.micro_batch(problem));
  set("local-batch",
      plan.number("pipeline") > 1 ? problem.samples / plan.number("data") : plan.micro_batch(problem));
  set("global-batch", problem.samples);
  set("sequence", model.input.kind == "tokens" ? static_cast<int>(model.input.shape.front()) : 0);
  const std::string &recompute = plan.text("recompute"), &cap = plan.text("bucket-cap");
  set("recomputed-blocks", recompute.empty() ? 0 : parse_recompute(recompute).blocks);
  constexpr double kGradient = 4.0;  // bytes: Megatron-LM reduces in fp32
  set("bucket-elements",
      cap.empty() ? 0 : static_cast<int>(parse_bytes(cap, "bucket-cap").count() / kGradient));
  for (const char* flag : {"ring", "ulysses"}) {
    const auto set_to = model.settings.find(flag);
    values.set(flag, set_to != model.settings.end() && set_to->second != 0 ? "yes" : "no");
  }
  add_stages(plan, values);
  add_precision(problem.precision, values);
  return values;
}

/// Texts of a list whose conditions hold.
std::vector<std::string> texts_of(const YamlNode& list, const Assignment& values) {
  std::vector<std::string> texts;
  for (const YamlNode& node : list.items()) {
    if (node.is_map()) node.allow_only({"text", "if"});
    if (node.is_map() && node.has("if") && !Condition(node.at("if"), values.names()).holds(values)) continue;
    const YamlNode text = node.is_map() ? node.at("text") : node;
    texts.push_back(text.placed([&] { return expand(text.text(), values).text; }));
  }
  return texts;
}

}  // namespace

std::string LaunchText::text() const {
  std::string all = lines;
  for (const std::string& what : missing) all += "# not expressed: " + what + "\n";
  return all;
}

LaunchText launch_text(const std::string& name, PlanModels& models, const Plan& plan) {
  const YamlNode file = YamlNode::load(find_resource("launchers", name, ".yaml").string());
  file.allow_only({"name", "file", "lines", "missing"});
  const Assignment values = launch_values(models, plan);
  LaunchText launch{.program = file.at("name").text(),
                    .file = file.at("file").text(),
                    .lines = "",
                    .missing = texts_of(file.at("missing"), values)};
  for (const std::string& line : texts_of(file.at("lines"), values)) launch.lines += line + "\n";
  for (const auto& [option, value] : plan.values)
    if (!value.empty() && find_dimension(option) == nullptr)
      launch.missing.push_back("--" + option + " " + value);
  return launch;
}

std::vector<LaunchText> launch_texts(PlanModels& models, const Plan& plan) {
  std::vector<LaunchText> all;
  for (const std::string& name : resource_names("launchers", ".yaml"))
    all.push_back(launch_text(name, models, plan));
  return all;
}

}  // namespace stepcast

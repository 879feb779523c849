#include <algorithm>
#include <array>
#include <set>

#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "sim/plan/search.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/whole_parameters.hpp"

namespace stepcast {
namespace {

/// Options that the problem sets for all plans.
constexpr std::array kOfProblem{"cluster", "device", "precision", "trace", "calibration"};

int whole_number(const YamlNode& node, const std::string& text) {
  const auto number = positive_number(text);
  if (!number) node.fail("'{}' is not a whole number above 0", text);
  return *number;
}

/// Sizes of the mesh, with what it leaves open. In a Plan `data` counts all data-parallel ranks, and `shard`
/// those that share one copy.
void read_mesh(const YamlNode& node, int ranks, Plan& plan) {
  const std::string& strategy = plan.text("strategy");
  const Mesh mesh = node.placed([&] {
    const Mesh given = node.has("mesh") ? mesh_of(strategy, node.at("mesh").text()) : Mesh();
    return given.resolved(ranks, strategies().find(strategy).open);
  });
  for (const char* name : {"pipeline", "context", "tensor", "expert", "expert_tensor"})
    if (mesh.size(name) > 1) plan.values[name] = std::to_string(mesh.size(name));
  plan.values["data"] = std::to_string(mesh.size("data") * mesh.size("shard"));
  if (mesh.has("shard") && (mesh.size("data") > 1 || strategy != "fsdp"))
    plan.values["shard"] = std::to_string(mesh.size("shard"));
  if (mesh_of(plan).text() != mesh.text()) plan.values["rank-order"] = kStagesInside;
  if (mesh_of(plan).text() != mesh.text())
    node.fail(
        "plans have the order pipeline,data,shard,context,tensor, or pipeline right before tensor; "
        "'{}' has another one",
        mesh.text());
}

/// The problem's model; a plan may change settings that are dimensions, such as sequence parallelism.
void read_model(const YamlNode& node, const PlanProblem& problem, Plan& plan) {
  const Specification own = Specification::parse("model", node.text());
  const Specification whole = Specification::parse("model", problem.model);
  if (own.file != whole.file) node.fail("'{}' is not the planned model, {}", own.file, whole.file);
  for (const auto& [name, value] : own.overrides) {
    const auto same = std::ranges::find(whole.overrides, std::pair(name, value));
    const PlanDimension* dimension = find_dimension(name);
    if (dimension != nullptr && dimension->kind == DimensionKind::kSetting)
      plan.values[name] = value;
    else if (same == whole.overrides.end())
      node.fail("setting '{}={}' differs from the planned model, {}", name, value, problem.model);
  }
}

/// Even stages have no `split`; others state the blocks of each.
void read_split(const YamlNode& node, Plan& plan) {
  const std::string split = node.text();
  if (split == "even") return;
  if (split == "balanced" || split.starts_with("ratio:"))
    node.fail("'{}': a user's plan states the blocks of each stage, as 6-2-2-2, or 'even'", split);
  node.placed([&] { plan.values["split"] = split_text(split_counts(split)); });
}

/// Adds the mesh, and what follows from the problem.
void complete(const YamlNode& node, const PlanProblem& problem, Plan& plan) {
  if (!plan.values.contains("world-size")) plan.values["world-size"] = std::to_string(problem.ranks);
  const int ranks = plan.number("world-size");
  if (ranks > problem.ranks)
    node.fail("world-size {} is more than the {} of the problem", ranks, problem.ranks);
  read_mesh(node, ranks, plan);
  const int parts = plan.number("data") * plan.number("micro-batches");
  if (problem.samples % parts != 0)
    node.fail("{} of a step cannot be divided into {} x {} equal micro-batches",
              counted(problem.samples, "sample"), plan.number("data"), plan.number("micro-batches"));
}

PlanRecord read_plan(const YamlNode& node, const PlanProblem& problem, std::size_t number) {
  if (!node.is_map()) node.fail("a plan is a map of options of 'stepcast predict'");
  PlanRecord record;
  record.name = "own " + std::to_string(number);
  Plan& plan = record.plan;
  std::optional<int> batch;
  for (const auto& [key, value] : entries_of(node)) {
    if (contains(kOfProblem, key))
      value.fail("'{}' is the same for all plans; set it on the command line", key);
    if (key == "name")
      record.name = value.text();
    else if (key == "model")
      read_model(value, problem, plan);
    else if (key == "split")
      read_split(value, plan);
    else if (key == "batch")
      batch = whole_number(value, value.text());
    else if (key == "zero" && value.text() == kWholeParameters)
      value.fail("plans share arrays in equal parts or not at all; 'stepcast predict' forecasts '{}'",
                 kWholeParameters);
    else if (key == "micro-batches" || key == "world-size")
      plan.values[key] = std::to_string(whole_number(value, value.text()));
    else if (key != "mesh")
      plan.values[key] = value.text() == "true" ? "yes" : value.text() == "false" ? "no" : value.text();
  }
  if (plan.text("strategy").empty())
    node.fail("key 'strategy' is missing; known: {}", joined(strategies().names()));
  node.placed([&] { static_cast<void>(strategies().find(plan.text("strategy"))); });
  complete(node, problem, plan);
  if (batch && *batch * plan.number("data") != problem.samples)
    node.at("batch").fail("is {} on each of {}, but a step has {} samples", *batch, plan.number("data"),
                          problem.samples);
  return record;
}

}  // namespace

std::vector<PlanRecord> load_user_plans(const std::string& path, const PlanProblem& problem) {
  const YamlNode file = YamlNode::load(path);
  if (!file.is_sequence()) file.fail("is not a list of plans, such as '- {strategy: fsdp, recompute: full}'");
  std::vector<PlanRecord> plans;
  std::set<std::string> names;
  for (const YamlNode& node : file.items()) {
    plans.push_back(read_plan(node, problem, plans.size() + 1));
    if (!names.insert(plans.back().name).second) node.fail("name '{}' is given twice", plans.back().name);
  }
  return plans;
}

}  // namespace stepcast

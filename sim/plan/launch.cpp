#include "sim/plan/launch.hpp"

#include <algorithm>
#include <numeric>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "sim/plan/launch_reader.hpp"
#include "sim/plan/space.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"

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
  Precision preset =
      Precision::parse(mixed && precision.products != "none" ? precision.products : precision.compute);
  preset.gather = precision.gather, preset.gradients = precision.gradients;
  preset.reduction = precision.reduction;
  values.set("precision", to_text(precision));
  values.set("precision-preset", precision == preset ? "yes" : "no");
  values.set("compute-dtype", precision.compute);
  values.set("parameter-dtype", precision.parameters);
  values.set("gemm-dtype", precision.products);
  values.set("gather-dtype", precision.gather);
  values.set("gradient-dtype", precision.gradients);
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
  if (plan.text("strategy") == "pipeline" && !plan.text("shard").empty())
    values.set("sharding", "shard_grad_op");
  values.set("has-experts", model.has_experts() ? "yes" : "no");
  values.set("gemm-scope", model.has_experts() ? model.precision.scope : "linear");
  set("shards", plan.number("data") / plan.copies());
  set("replicas", plan.number("data") * plan.number("context"));
  set("shared-layers", plan.number("tensor") * plan.number("context"));
  set("micro-batch", plan.micro_batch(problem));
  set("local-batch",
      plan.number("pipeline") > 1 ? problem.samples / plan.number("data") : plan.micro_batch(problem));
  set("global-batch", problem.samples);
  set("sequence", static_cast<int>(model.tokens_per_sample()));
  const std::string &recompute = plan.text("recompute"), &cap = plan.text("bucket-cap");
  set("recomputed-blocks", recompute.empty() ? 0 : parse_recompute(recompute).blocks);
  const bool modules = contains(recomputed_modules(), recompute.substr(0, recompute.find('+')));
  values.set("recompute-modules", modules ? joined(split(recompute, '+'), " ") : "");
  const Precision precision = models.precision_of(plan);
  const double bucket = cap.empty() ? 0.0 : parse_bytes(cap, "bucket-cap").count();
  const double most = static_cast<double>(model.parameter_count());  // more are one bucket, too
  set("bucket-elements", static_cast<int>(std::min(bucket / bytes_of(precision.reduction), most)));
  set("bucket-mib", static_cast<int>(bucket / kMebi));
  values.set("whole-rounds", plan.number("micro-batches") % plan.number("pipeline") == 0 ? "yes" : "no");
  for (const char* flag : {"ring", "ulysses", "muon", "gather_kv_again"}) {
    const bool is_set = plan.text(flag) == "1" || value_or(model.settings, flag, 0) != 0;
    values.set(flag, is_set ? "yes" : "no");
  }
  values.set("frozen", std::ranges::any_of(model.parameters, &Parameter::frozen) ? "yes" : "no");
  for (const char* option :
       {"messages", "backward-prefetch", "gather-parameters", "reduce-by", "reduce-when", "compiled"})
    values.set(option, plan.text(option));
  add_stages(plan, values);
  add_precision(precision, values);
  return values;
}

/// True for equal texts, and equal sizes such as 100MiB and 104857600B.
bool same_value(const std::string& a, const std::string& b) {
  const auto first = magnitude_of(a), second = magnitude_of(b);
  return a == b || (first && second && first->kind == second->kind && first->value == second->value);
}

/// Options of the plan that reading the lines back does not give, as ` --name=value`; an empty value unsets
/// one. The model is never in the lines; settings that they decide are left to them.
std::string unexpressed(const LaunchText& launch, const std::string& name, const PlanProblem& problem,
                        const Plan& plan) {
  OptionTexts wanted = predict_options(problem, plan);
  OptionTexts given{{"model", problem.model}};
  OptionTexts read = read_launch_text(launch.lines, launch.file, name, given).options;
  if (read["model"] != wanted["model"]) {
    given["model"] = wanted["model"];
    const Specification target = Specification::parse("model", wanted["model"]);
    const std::string found = read_launch_text(launch.lines, launch.file, name, given).options["model"];
    for (const auto& [setting, value] : Specification::parse("model", found).overrides)
      if (target.find(setting) == nullptr)
        given["model"] =
            with_setting(given["model"], setting, plan.text(setting).empty() ? "0" : plan.text(setting));
    read = read_launch_text(launch.lines, launch.file, name, given).options;
  }
  std::string words;
  const auto add = [&](const std::string& option, const std::string& value) {
    words += " --" + option + "=" + value;
  };
  add("model", given["model"]);
  for (const auto& [option, value] : wanted)
    if (option != "model" && !same_value(read[option], value) &&
        !(option == "precision" && problem.like.empty() && !read[option].empty() &&
          Precision::parse(read[option]) == Precision::parse(value)))
      add(option, value);
  for (const auto& [option, value] : read)
    if (!value.empty() && !wanted.contains(option) && option != "model" && option != "world-size")
      add(option, "");
  return words;
}

}  // namespace

std::string LaunchText::text() const {
  if (!obstacles.empty())
    return fmt::format("# {} cannot run this plan: {}\n", program, joined(obstacles, "; "));
  return lines + (missing.empty() ? "" : "# not expressed: " + joined(missing, "; ") + "\n") +
         (words.empty() ? "" : "# stepcast:" + words + "\n");
}

std::vector<std::string> launcher_names() {
  std::vector<std::string> names = resource_names("launchers", ".yaml");
  std::erase_if(names, [](const std::string& name) {
    return !YamlNode::load(find_resource("launchers", name, ".yaml").string()).has("lines");
  });
  return names;
}

Launcher::Launcher(const std::string& name, PlanModels& models) : name_(name) {
  if (!contains(launcher_names(), name)) {
    const std::vector<std::string> all = resource_names("launchers", ".yaml");
    if (!contains(all, name)) throw UsageError("--only: " + unknown_name("program", name, all));
    name_ = YamlNode::load(find_resource("launchers", name, ".yaml").string()).at("runs").text();
  }
  const YamlNode file = YamlNode::load(find_resource("launchers", name_, ".yaml").string());
  file.allow_only({"name", "file", "lines", "missing", "cannot", "read"});
  program_ = file.at("name").text();
  file_ = file.at("file").text();
  const std::vector<std::string> names = launch_values(models, Plan{}).names();
  lines_ = read(file.at("lines"), names);
  missing_ = read(file.at("missing"), names);
  obstacles_ = read(file.at("cannot"), names);
}

Launcher::Lines Launcher::read(const YamlNode& list, const std::vector<std::string>& names) {
  Lines lines;
  for (const YamlNode& node : list.items()) {
    if (node.is_map()) node.allow_only({"text", "if"});
    lines.push_back({node.is_map() ? node.at("text") : node, {}});
    if (node.is_map() && node.has("if")) lines.back().condition.emplace(node.at("if"), names);
  }
  return lines;
}

std::vector<std::string> Launcher::texts_of(const Lines& lines, const Assignment& values) {
  std::vector<std::string> texts;
  for (const Line& line : lines)
    if (!line.condition || line.condition->holds(values))
      texts.push_back(line.text.placed([&] { return expand(line.text.text(), values).text; }));
  return texts;
}

LaunchText Launcher::text(PlanModels& models, const Plan& plan) const {
  const Assignment values = launch_values(models, plan);
  LaunchText launch{.file = file_,
                    .program = program_,
                    .missing = texts_of(missing_, values),
                    .obstacles = texts_of(obstacles_, values)};
  for (const std::string& line : texts_of(lines_, values)) launch.lines += line + "\n";
  for (const OptionTexts* texts : {&plan.values, &plan.added})
    for (const auto& [option, value] : *texts)
      if (!value.empty() && values.find(option) == nullptr && option != "model")
        launch.missing.push_back("--" + option + " " + value);
  if (launch.obstacles.empty()) launch.words = unexpressed(launch, name_, models.problem(), plan);
  return launch;
}

std::vector<std::string> Launcher::obstacles(PlanModels& models, const Plan& plan) const {
  return texts_of(obstacles_, launch_values(models, plan));
}

std::vector<Launcher> launchers(PlanModels& models, const std::string& only) {
  return transformed(only.empty() ? launcher_names() : std::vector{only},
                     [&](const std::string& name) { return Launcher(name, models); });
}

}  // namespace stepcast

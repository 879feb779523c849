#include "sim/plan/problem.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "core/error.hpp"
#include "core/program.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "sim/plan/space.hpp"
#include "sim/replay/device_estimate.hpp"
#include "sim/replay/prediction_options.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Options of `predict` that are not a strategy's.
constexpr std::array kCommon{"model",     "strategy", "batch",   "micro-batches", "recompute", "like",
                             "precision", "device",   "cluster", "world-size",    "steps",     "warmup"};

/// Options and settings on which a rank's share of the model depends, but for `recompute`.
const std::unordered_set<std::string>& names_of_parts() {
  static const std::unordered_set<std::string> kNames = [] {
    std::unordered_set<std::string> names{
        "sequence_parallel", "gather_again", "tensor",   "context", "expert",
        "expert_tensor",     "model",        "precision"};
    for (const ExecutionOption& option : execution_options()) names.insert(option.name);
    return names;
  }();
  return kNames;
}

}  // namespace

const std::string& Plan::text(std::string_view name) const {
  static const std::string kNothing;
  if (const auto found = values.find(name); found != values.end()) return found->second;
  const auto found = added.find(name);
  return found == added.end() ? kNothing : found->second;
}

int Plan::number(std::string_view name) const {
  const std::string& value = text(name);
  return value.empty() ? 1 : std::stoi(value);
}

int Plan::micro_batch(const PlanProblem& problem) const {
  return problem.samples / number("data") / number("micro-batches");
}

int Plan::copies() const { return text("shard").empty() ? 1 : number("data") / number("shard"); }

Mesh mesh_of(const Plan& plan) {
  const bool shards = plan.text("strategy") == "fsdp" || !plan.text("shard").empty();
  const int data = plan.number("data");
  std::vector<Mesh::Dimension> dimensions{{"data", shards ? plan.copies() : data}};
  if (shards) dimensions.emplace_back("shard", data / plan.copies());
  dimensions.emplace_back("context", plan.number("context"));
  dimensions.emplace(plan.stages_inside() ? dimensions.end() : dimensions.begin(), "pipeline",
                     plan.number("pipeline"));
  for (const char* name : {"tensor", "expert", "expert_tensor"})
    dimensions.emplace_back(name, plan.number(name));
  return Mesh(dimensions);
}

OptionTexts predict_options(const PlanProblem& problem, const Plan& plan) {
  OptionTexts options{{"model", problem.model},
                      {"device", problem.device},
                      {"cluster", problem.cluster},
                      {"precision", to_text(problem.precision)},
                      {"batch", std::to_string(problem.samples / plan.number("data"))}};
  for (const auto& [name, value] : plan.values) {
    if (value.empty()) continue;
    const PlanDimension* dimension = find_dimension(name);
    const DimensionKind kind = dimension == nullptr ? DimensionKind::kOption : dimension->kind;
    if (kind == DimensionKind::kSetting && value != "0")
      options["model"] = with_setting(options["model"], name, value);
    if (kind == DimensionKind::kOption) options[name] = value;
  }
  std::string mesh = mesh_of(plan).text();
  if (plan.text("expert_tensor") == "1") mesh += ",expert_tensor=1";  // conventions may divide them otherwise
  const bool in_one = mesh.find(',') == std::string::npos;
  if (!mesh.empty() && !(in_one && plan.number("data") * plan.number("pipeline") > 1)) options["mesh"] = mesh;
  if (plan.number("micro-batches") == 1) options.erase("micro-batches");
  if (plan.text("recompute") == "none") options.erase("recompute");
  if (options["precision"] == "fp32") options.erase("precision");
  if (!problem.like.empty()) options["like"] = problem.like;
  options["steps"] = options["warmup"] = "1";  // all steps are equal
  return options;
}

PredictionRequest request_of(const PlanProblem& problem, const Plan& plan) {
  return prediction_request(predict_options(problem, plan));
}

std::string command_of(const PlanProblem& problem, const Plan& plan) {
  OptionTexts options = predict_options(problem, plan);
  std::string text = "stepcast predict";
  const auto add = [&](const std::string& name) {
    const auto found = options.find(name);
    if (found == options.end()) return;
    text += " --" + name + (found->second == "yes" ? "" : " " + shell_word(found->second));
    options.erase(found);
  };
  for (const char* name : kCommon) add(name);
  while (!options.empty()) add(std::string(options.begin()->first));
  return text;
}

std::string describe(const Plan& plan) {
  std::string text = plan.text("strategy");
  const auto add = [&](const std::string& words) { text += ", " + words; };
  for (const PlanDimension& dimension : plan_dimensions()) {
    const std::string& value = plan.text(dimension.name);
    if (value.empty() || (value == "1" && dimension.name != "zero") || value == "none" ||
        dimension.name == "strategy" || dimension.name == "world-size")
      continue;
    if (dimension.kind == DimensionKind::kSetting)
      add(value == "0" ? "no " + dimension.short_name : dimension.short_name);
    else
      add(dimension.short_name + (dimension.short_name.empty() ? "" : " ") + value);
  }
  for (const auto& [name, value] : plan.values)
    if (find_dimension(name) == nullptr) add(name + " " + value);
  return text;
}

PlanModels::PlanModels(const PlanProblem& problem)
    : problem_(problem), device_(device_model(problem.device)) {
  if (!problem.like.empty()) convention_.emplace(problem.like);
  if (is_set("offload"))
    throw UsageError(
        "--like {}: sets offload, for which plan has no bounds; forecast single plans by predict",
        problem.like);
}

void PlanModels::settle(Plan& plan) const {
  if (!convention_) return;
  plan.added.clear();
  OptionTexts given = predict_options(problem_, plan);
  given.try_emplace("strategy", plan.number("pipeline") > 1 ? "pipeline" : "ddp");  // until it is chosen
  for (const auto& [name, value] : convention_->added_to(given).options)
    if (optional_at(given, name) != value) plan.added[name] = value;
  if (plan.added.contains("model"))
    for (const auto& [name, value] : Specification::parse("model", plan.added["model"]).overrides)
      if (is_set(name)) plan.added.emplace(name, value);
}

Precision PlanModels::precision_of(const Plan& plan) const {
  const std::string& own = plan.text("precision");
  return own.empty() ? problem_.precision : Precision::parse(own);
}

const Model& PlanModels::whole() {
  if (whole_ == nullptr) whole_ = part(Plan{});
  return *whole_;
}

const Model* PlanModels::part(const Plan& plan) {
  const std::string& recompute = plan.text("recompute");
  const RecomputedPart recomputed =
      recompute.empty() ? RecomputedPart::kNothing : parse_recompute(recompute).part;
  std::string key = std::to_string(static_cast<int>(recomputed));
  for (const OptionTexts* texts : {&plan.values, &plan.added})
    for (const auto& [name, value] : *texts)
      if (names_of_parts().contains(name)) key.append("/").append(name).append("=").append(value);
  if (const auto found = parts_.find(key); found != parts_.end())
    return found->second ? &*found->second : nullptr;
  Execution execution;
  for (const ExecutionOption& option : execution_options())
    if (const std::string& text = plan.text(option.name); !text.empty())
      set_execution(option, text, execution);
  std::optional<Model>& result = parts_[key];
  try {
    const std::string& own = plan.text("model");
    const Model& shared = known_.model(
        shared_by(own.empty() ? predict_options(problem_, plan).at("model") : own, mesh_of(plan)));
    Model part =
        in_precision(recomputing(shared, recomputed), precision_of(plan), device_.gpu, device_.transposes());
    if (execution.dispatch_overlap == "micro-batches")
      part.parallel.host = gpus_per_host(problem_.cluster, part.parallel.host);
    apply(execution, part);
    result = std::move(part);
  } catch (const InputError&) {
    if (plan.values.empty()) throw;  // the model itself is wrong
  }
  return result ? &*result : nullptr;
}

const PhaseCosts& PlanModels::estimate(const Model& model, const Plan& plan) {
  const int samples = plan.micro_batch(problem_), ranks = plan.number("world-size");
  const bool experts_stay = ranks / plan.copies() == model.parallel.expert_ranks();
  return cached(estimates_, {&model, samples, ranks, experts_stay},
                [&] { return estimated_costs(model, slowest_of(device_, ranks), samples, 1, experts_stay); });
}

const std::string& PlanModels::balanced_split(const Model& model, const Plan& plan, int parts) {
  const PhaseCosts& costs = estimate(model, plan);
  return cached(balanced_splits_, {&costs, parts}, [&] {
    return split_text(model, split_model(model, "balanced", parts, costs.segment_times()));
  });
}

const std::vector<SegmentRange>& PlanModels::chunks(const std::string& split, int parts) {
  return cached(chunks_, {split, parts}, [&] {
    return transformed(split_model(whole(), split, parts, {}), [](const std::vector<int>& chunk) {
      return SegmentRange(chunk.front(), chunk.back());
    });
  });
}

}  // namespace stepcast

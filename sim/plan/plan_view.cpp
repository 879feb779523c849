#include "sim/plan/plan_view.hpp"

#include <algorithm>

namespace stepcast {

SegmentRange whole_range(const Model& model) { return {0, static_cast<int>(model.segments.size()) - 1}; }

namespace {

Layout layout_of(const Plan& plan) {
  Layout layout;
  if (plan.text("strategy") == "fsdp")
    layout = fsdp_layout(plan.text("sharding"), plan.text("accumulate"));
  else if (!plan.text("shard").empty())
    layout = zero_layout(3);
  else if (!plan.text("zero").empty() && plan.text("zero") != "0")
    layout = zero_layout(plan.number("zero"), plan);
  layout.waits = plan.text("reduce-when") == "waited";
  layout.replicas = plan.copies();
  layout.shards = plan.number("data") * plan.number("context") / layout.replicas;
  return layout;
}

}  // namespace

PlanView view_of(PlanModels& models, const Plan& plan) {
  const Model& model = *models.part(plan);
  const std::string& recompute = plan.text("recompute");
  const std::string &split = plan.text("split"), &schedule = plan.text("schedule");
  const bool pipelined = plan.text("strategy") == "pipeline";
  const int stages = plan.number("pipeline"), virtual_stages = plan.number("virtual-stages");
  PlanView view{.plan = plan,
                .model = model,
                .costs = models.estimate(model, plan),
                .samples = plan.micro_batch(models.problem()),
                .recompute = recompute.empty() ? Recomputation{} : parse_recompute(recompute),
                .tensor = plan.number("tensor"),
                .context = plan.number("context"),
                .expert = plan.number("expert"),
                .expert_tensor = plan.number("expert_tensor"),
                .stage_stride = plan.number("tensor"),
                .batch_stride = plan.number("tensor"),
                .layout = layout_of(plan),
                .shape = {.ranks = stages,
                          .micro_batches = plan.number("micro-batches"),
                          .virtual_stages = virtual_stages},
                .chunks = models.chunks(split.empty() ? "even" : split, stages * virtual_stages)};
  if (!pipelined) return view;
  if (plan.stages_inside())
    view.batch_stride *= stages;
  else
    view.stage_stride *= view.layout.shards * view.layout.replicas;
  if (!schedule.empty()) view.shape.schedule = schedule;
  return view;
}

}  // namespace stepcast

#include "sim/plan/plan_view.hpp"

#include <algorithm>

namespace stepcast {

SegmentRange whole_range(const Model& model) { return {0, static_cast<int>(model.segments.size()) - 1}; }

PlanView view_of(PlanModels& models, const Plan& plan) {
  const Model& model = *models.part(plan);
  const int samples = plan.micro_batch(models.problem());
  const std::string& recompute = plan.text("recompute");
  PlanView view{.plan = plan,
                .model = model,
                .costs = models.estimate(model, samples),
                .samples = samples,
                .recompute = recompute.empty() ? 0 : parse_recompute(recompute).blocks,
                .zero = plan.text("zero").empty() ? 0 : plan.number("zero"),
                .tensor = plan.number("tensor"),
                .context = plan.number("context"),
                .expert = plan.number("expert"),
                .batches = plan.number("data"),
                .stage_stride = plan.number("tensor"),
                .batch_stride = plan.number("tensor"),
                .shape = {.ranks = plan.number("pipeline"), .micro_batches = plan.number("micro-batches")},
                .chunks = {whole_range(model)}};
  if (plan.text("strategy") != "pipeline") return view;
  if (plan.stages_inside())
    view.batch_stride *= view.shape.ranks;
  else
    view.stage_stride *= view.replicas();
  view.shape.schedule = plan.text("schedule");
  view.shape.virtual_stages = plan.number("virtual-stages");
  view.chunks.clear();
  for (const std::vector<int>& chunk :
       split_model(model, plan.text("split"), view.shape.ranks * view.shape.virtual_stages, {}))
    view.chunks.emplace_back(chunk.front(), chunk.back());
  return view;
}

}  // namespace stepcast

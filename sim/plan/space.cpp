#include "sim/plan/space.hpp"

#include <algorithm>
#include <ranges>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/strategies/pipeline_layout.hpp"

namespace stepcast {
namespace {

using Values = std::vector<std::string>;

const Values kDoesNotApply{""};

void add_new(Values& all, const std::string& value) {
  if (!contains(all, value)) all.push_back(value);
}

int block_count(const Model& model) { return static_cast<int>(blocks_of(model).size()); }

int stages_of(const Plan& plan) { return plan.number("pipeline") * plan.number("virtual-stages"); }

/// Ranks per cell of the mesh dimensions chosen so far.
int ranks_left(const Plan& plan) {
  return plan.number("world-size") / plan.number("tensor") / plan.number("context") / plan.number("pipeline");
}

/// Valid values of a strategy's option.
Values choices_of(const std::string& strategy, const std::string& name) {
  return named(options_of(strategy), &StrategyOption::name, "option", name).choices;
}

/// Leaves out values that do not apply, so that equal plans have equal values.
void set(PlanModels& models, Plan& plan, const std::string& name, const std::string& value) {
  if (value.empty())
    plan.values.erase(name);
  else
    plan.values[name] = value;
  models.settle(plan);
}

/// All ranks; if the objective is not time, also the divisors of their number.
Values world_sizes(PlanModels& models, const Plan&) {
  Values sizes = divisors(models.problem().ranks);
  std::ranges::reverse(sizes);
  if (models.problem().objective == PlanObjective::kTime) sizes.resize(1);
  return sizes;
}

/// Divisors of `ranks` over which the model can be shared; 1 alone if it has no such setting.
Values shares(PlanModels& models, Plan plan, const std::string& name, int ranks) {
  Values all = divisors(ranks);
  if (name == "tensor" && models.whole().has_experts())
    plan.values["sequence_parallel"] = "1";  // they need it
  std::erase_if(all, [&](const std::string& value) {
    set(models, plan, name, value);
    return models.part(plan) == nullptr;
  });
  return all;
}

Values sequence_parallel(PlanModels& models, const Plan& plan) {
  if (plan.number("tensor") == 1 || !models.whole().settings.contains("sequence_parallel"))
    return kDoesNotApply;
  Plan parallel = plan;
  set(models, parallel, "sequence_parallel", "1");
  if (models.part(parallel) == nullptr) return {"0"};
  return models.whole().has_experts() ? Values{"1"} : Values{"1", "0"};
}

/// Whether sequence parallelism gathers inputs again in the backward instead of saving them.
Values gathers_again(PlanModels& models, const Plan& plan) {
  const bool gathers =
      plan.text("sequence_parallel") == "1" && models.whole().settings.contains("gather_again");
  return gathers ? Values{"1"} : Values{};
}

Values pipelines(PlanModels& models, const Plan& plan) {
  Values fitting = divisors(ranks_left(plan));
  const int most = block_count(models.whole());
  std::erase_if(fitting, [&](const std::string& value) { return std::stoi(value) > most; });
  return fitting;
}

/// All ranks that are left, if they divide the samples.
Values data(PlanModels& models, const Plan& plan) {
  const int ranks = ranks_left(plan);
  return models.problem().samples % ranks == 0 ? Values{std::to_string(ranks)} : Values{};
}

/// Ranks that divide the experts, with `data` ranks of data parallelism.
int sharing_ranks(const Plan& plan, int data) {
  return data * plan.number("context") * plan.number("tensor");
}

/// All-to-alls beside another micro-batch: needs ranks that share experts, several micro-batches, no
/// recomputed blocks and, in a pipeline, `interleaved`.
bool overlaps_micro_batches(const Plan& plan) { return plan.text("dispatch-overlap") == "micro-batches"; }

Values experts(PlanModels& models, const Plan& plan) {
  if (!models.whole().has_experts()) return kDoesNotApply;
  Values all = shares(models, plan, "expert", sharing_ranks(plan, plan.number("data")));
  if (overlaps_micro_batches(plan)) std::erase(all, "1");
  // Without data parallelism nothing sums the gradients of ranks with the same experts.
  if (plan.number("data") * plan.number("context") == 1)
    std::erase_if(all, [&](const std::string& value) {
      return value != "1" && std::stoi(value) < plan.number("tensor");
    });
  return all;
}

/// Whether the tensor-parallel ranks divide the matrices of each expert (Megatron's default).
Values expert_tensors(PlanModels& models, Plan plan) {
  if (!models.whole().has_experts() || plan.number("tensor") == 1) return kDoesNotApply;
  const std::string all = plan.text("tensor"), undivided = models.problem().like.empty() ? "" : "1";
  plan.values["expert_tensor"] = all;
  if (sharing_ranks(plan, plan.number("data")) % plan.expert_ranks() != 0) return {undivided};
  set(models, plan, "expert_tensor", all);
  return models.part(plan) != nullptr ? Values{undivided, all} : Values{undivided};
}

/// Strategies worth planning; the others average without buckets and are never faster.
Values strategies_for(PlanModels&, const Plan& plan) {
  if (plan.number("pipeline") > 1) return {"pipeline"};
  if (plan.number("data") * plan.number("context") == 1) return {"single"};
  return {"ddp", "fsdp"};
}

Values shardings(PlanModels& models, const Plan& plan) {
  if (plan.text("strategy") != "fsdp") return kDoesNotApply;
  return models.whole().optimizer.muon ? Values{"no_shard"} : choices_of("fsdp", "sharding");
}

bool gathers(const Plan& plan) {
  return plan.text("strategy") == "fsdp" && plan.text("sharding") != "no_shard";
}

/// Numbers of data-parallel ranks, fewer than all, that may share one copy: each copy has all experts.
Values fewer_shards(const Plan& plan) {
  Values all = divisors(plan.number("data"));
  all.pop_back();
  std::erase_if(all, [&](const std::string& value) {
    return value == "1" || sharing_ranks(plan, std::stoi(value)) % plan.expert_ranks() != 0;
  });
  return all;
}

/// Whether the stages of a pipeline may be in shards: not if a convention sets what replicas share.
bool shards_stages(PlanModels& models, const Plan& plan) {
  return plan.text("strategy") == "pipeline" && plan.number("data") > 1 &&
         models.whole().optimizer.is_elementwise() && !models.is_set("zero");
}

/// Data-parallel ranks that shard one copy: all of them (""), or fewer, with replicas. Stages of a pipeline
/// are whole ("") or in shards among all.
Values shards(PlanModels& models, const Plan& plan) {
  if (shards_stages(models, plan)) return {"", plan.text("data")};
  if (!gathers(plan)) return kDoesNotApply;
  Values all = fewer_shards(plan);
  all.insert(all.begin(), "");
  return all;
}

/// Replicas of stages in shards.
Values hybrid_stages(PlanModels& models, const Plan& plan) {
  return shards_stages(models, plan) && !plan.text("shard").empty() ? fewer_shards(plan) : Values{};
}

Values micro_batches(PlanModels& models, const Plan& plan) {
  Values all = divisors(models.problem().samples / plan.number("data"));
  if (overlaps_micro_batches(plan)) std::erase(all, "1");
  return all;
}

/// Reductions of gradients after each micro-batch instead of the last one.
Values accumulations(PlanModels&, const Plan& plan) {
  if (!gathers(plan) || plan.number("micro-batches") == 1) return {};
  return plan.copies() > 1 ? Values{"shard-then-replicas", "every"} : Values{"every"};
}

/// Parts of blocks if the model permits it, with Transformer Engine also Megatron's modules, alone and as
/// NVIDIA's recipes join them; whole blocks but under graphs of layers; and units of several blocks, but not
/// if FSDP gathers parameters block by block.
Values recomputations(PlanModels& models, Plan plan) {
  Values all{"selective", "per-op"};
  if (const Model* model = models.part(plan); model != nullptr && model->transformer_engine()) {
    append(all, Values{"moe_act", "layernorm+moe_act", "mla_up_proj", "mla_up_proj+moe_act"});
    if (!overlaps_micro_batches(plan)) append(all, Values{"layernorm+moe"});
  }
  std::erase_if(all, [&](const std::string& value) {
    plan.values["recompute"] = value;
    return models.part(plan) == nullptr;
  });
  if (plan.text("graph") == "layer" || overlaps_micro_batches(plan)) return all;
  all.push_back("full");
  if (plan.text("sharding") == "full_shard") return all;
  const int blocks = block_count(models.whole()) / plan.number("pipeline");
  for (int unit = 2; unit <= blocks / 2 && unit <= 8; unit *= 2) all.push_back(fmt::format("every:{}", unit));
  return all;
}

Values schedules(PlanModels& models, const Plan& plan) {
  if (plan.text("strategy") != "pipeline") return kDoesNotApply;
  Values all = choices_of("pipeline", "schedule");
  const int stages = plan.number("pipeline"), parts = plan.number("micro-batches");
  if (parts % std::max(1, parts / stages) != 0 || block_count(models.whole()) < 2 * stages)
    std::erase(all, "interleaved");
  if (overlaps_micro_batches(plan)) std::erase_if(all, [](const auto& one) { return one != "interleaved"; });
  return all;
}

/// For each size of the largest stage the fewest stages of that size: all divisors, and 3 for 40 blocks.
Values virtual_stages(PlanModels& models, const Plan& plan) {
  if (plan.text("schedule") != "interleaved") return kDoesNotApply;
  const int blocks = block_count(models.whole()), ranks = plan.number("pipeline");
  Values all;
  for (int size = blocks; size > 0; --size)
    if (const int parts = (blocks + ranks * size - 1) / (ranks * size); parts > 1 && parts <= blocks / ranks)
      add_new(all, std::to_string(parts));
  return all;
}

/// Blocks before the first one that passes a gradient: as pipelines need, they are in the first chunk.
int frozen_blocks(const Model& model) {
  const auto passes = [&](int block) { return model.segments[block].passes_gradient(); };
  const std::vector<int> blocks = blocks_of(model);
  return static_cast<int>(std::ranges::find_if(blocks, passes) - blocks.begin());
}

/// The split with the most equal times, and equal splits in which embedding and head count as blocks.
/// \param ends blocks that the embedding and the head count as
Values splits(PlanModels& models, const Plan& plan, const std::vector<std::pair<int, int>>& ends) {
  if (plan.text("strategy") != "pipeline") return kDoesNotApply;
  const Model* model = models.part(plan);
  if (model == nullptr) return {};
  const int blocks = block_count(*model), stages = stages_of(plan), frozen = frozen_blocks(*model);
  Values all;
  for (const auto& [first, last] : ends) add_new(all, split_for(blocks, stages, first, last));
  add_new(all, models.balanced_split(*model, plan, stages));
  std::erase(all, "");
  std::erase_if(all, [&](const std::string& split) { return split_counts(split).front() < frozen; });
  return all;
}

/// One block moved between two stages.
Values adjacent_splits(PlanModels&, const Plan& plan) {
  if (plan.text("split").empty()) return {};
  const std::vector<int> counts = split_counts(plan.text("split"));
  Values all;
  for (std::size_t from = 0; from < counts.size(); ++from)
    for (std::size_t to : {std::size_t{0}, counts.size() - 1, from + 1, from - 1}) {
      if (from == to || to >= counts.size() || counts[from] <= 1) continue;
      std::vector<int> moved = counts;
      --moved[from], ++moved[to];
      add_new(all, split_text(moved));
    }
  return all;
}

bool averages_in_buckets(const Plan& plan) {
  return plan.text("strategy") == "ddp" ||
         (plan.text("strategy") == "pipeline" && plan.text("shard").empty() &&
          plan.number("data") * plan.number("context") > 1);
}

/// With several micro-batches whole gradients stay, and stage 2 only adds waits to stage 1. Not searched:
/// stage 2 with `--accumulate every`.
Values zero_stages(PlanModels& models, const Plan& plan) {
  if (!models.whole().optimizer.is_elementwise() || !averages_in_buckets(plan)) return kDoesNotApply;
  return plan.number("micro-batches") == 1 ? Values{"", "1", "2"} : Values{"", "1"};
}

Values bucket_caps(PlanModels&, const Plan& plan) {
  return averages_in_buckets(plan) ? Values{"", "5MiB", "100MiB", "400MiB"} : kDoesNotApply;
}

/// Adjacent ranks, after those of tensor parallelism: replicas of a stage, or stages of a replica.
Values rank_orders(PlanModels&, const Plan& plan) {
  const bool both = plan.number("pipeline") > 1 && plan.number("data") > 1 && plan.text("shard").empty();
  return both && plan.number("context") * plan.expert_ranks() == 1 ? Values{"", kStagesInside}
                                                                   : kDoesNotApply;
}

void choose(PlanModels& models, std::size_t index, Plan& plan,
            const std::function<void(const Plan&)>& visit) {
  if (index == plan_dimensions().size()) {
    if (models.part(plan) != nullptr) visit(plan);  // settings of a convention, applied last, may exclude it
    return;
  }
  const PlanDimension& dimension = plan_dimensions()[index];
  const bool decided = models.is_set(dimension.name) && std::string(dimension.name) != "expert_tensor";
  if (decided || !dimension.values) return choose(models, index + 1, plan, visit);
  for (const std::string& value : dimension.values(models, plan)) {
    set(models, plan, dimension.name, value);
    choose(models, index + 1, plan, visit);
  }
  plan.values.erase(dimension.name);
}

/// Dimensions with values of this kind that the convention does not set.
std::vector<const PlanDimension*> dimensions_with(const PlanModels& models,
                                                  PlanDimension::Values PlanDimension::*kind) {
  std::vector<const PlanDimension*> result;
  for (const PlanDimension& dimension : plan_dimensions())
    if (dimension.*kind && !models.is_set(dimension.name)) result.push_back(&dimension);
  return result;
}

Plan changed(PlanModels& models, Plan plan, const PlanDimension& dimension, const std::string& value) {
  set(models, plan, dimension.name, value);
  return plan;
}

}  // namespace

std::string split_for(int blocks, int stages, int first, int last) {
  std::vector<int> counts = even_counts(blocks + first + last, stages);
  counts.front() -= first;
  counts.back() -= last;
  return *std::ranges::min_element(counts) < 1 ? "" : split_text(counts);
}

const std::vector<PlanDimension>& plan_dimensions() {
  using enum DimensionKind;
  static const std::vector<PlanDimension> kDimensions{
      {"world-size", "ranks", kOption, world_sizes},
      {"pipeline", "pipeline", kMesh, pipelines},
      {"context", "context", kMesh,
       [](PlanModels& models, const Plan& plan) {
         return shares(models, plan, "context", ranks_left(plan));
       }},
      {"tensor", "tensor", kMesh,
       [](PlanModels& models, const Plan& plan) { return shares(models, plan, "tensor", ranks_left(plan)); }},
      {"sequence_parallel", "sequence parallel", kSetting, sequence_parallel},
      {"gather_again", "gathered again", kSetting, nullptr, gathers_again},
      {"data", "data", kMesh, data},
      {"expert", "expert", kMesh, experts},
      {"expert_tensor", "expert tensor", kMesh, expert_tensors},
      {"strategy", "", kOption, strategies_for},
      {"sharding", "", kOption, shardings},
      {"shard", "shard", kMesh, shards, nullptr, hybrid_stages},
      {"forward-prefetch", "forward prefetch", kOption,
       [](PlanModels&, const Plan& plan) { return gathers(plan) ? Values{"yes"} : kDoesNotApply; }, nullptr,
       [](PlanModels&, const Plan&) { return kDoesNotApply; }},
      {"micro-batches", "micro-batches", kOption, micro_batches},
      {"accumulate", "accumulate", kOption, nullptr, accumulations},
      {"recompute", "recompute", kOption, [](PlanModels&, const Plan&) { return Values{"none"}; },
       recomputations},
      {"schedule", "", kOption, schedules},
      {"virtual-stages", "virtual stages", kOption, virtual_stages},
      {"split", "", kOption,
       [](PlanModels& models, const Plan& plan) {
         return splits(models, plan, {{0, 0}, {0, 1}, {1, 1}, {1, 0}});
       },
       nullptr, adjacent_splits},
      {"zero", "zero", kOption, zero_stages},
      {"rank-order", "order", kOrder, nullptr, nullptr, rank_orders},
      {"bucket-cap", "bucket cap", kOption, nullptr, nullptr, bucket_caps},
      {"limit-all-gathers", "all-gathers at once", kOption, nullptr, nullptr,
       [](PlanModels&, const Plan& plan) {
         return gathers(plan) ? Values{"", "3"} : kDoesNotApply;
       }},
  };
  return kDimensions;
}

const PlanDimension* find_dimension(const std::string& name) {
  const auto found = std::ranges::find(plan_dimensions(), name, &PlanDimension::name);
  return found == plan_dimensions().end() ? nullptr : &*found;
}

void enumerate_plans(PlanModels& models, const std::function<void(const Plan&)>& visit) {
  Plan plan;
  choose(models, 0, plan, visit);
}

std::vector<Plan> smaller_plans(PlanModels& models, const Plan& plan) {
  std::vector<Plan> plans;
  for (const PlanDimension* dimension :
       dimensions_with(models, &PlanDimension::smaller_values) | std::views::reverse) {
    const Values values = dimension->smaller_values(models, plan);
    if (contains(values, plan.text(dimension->name))) break;
    for (const std::string& value : values) plans.push_back(changed(models, plan, *dimension, value));
  }
  return plans;
}

std::vector<Plan> variants_of(PlanModels& models, const Plan& plan) {
  std::vector<Plan> variants;
  for (const PlanDimension* dimension : dimensions_with(models, &PlanDimension::refinement_values))
    for (const std::string& value : dimension->refinement_values(models, plan))
      if (value != plan.text(dimension->name)) variants.push_back(changed(models, plan, *dimension, value));
  return variants;
}

}  // namespace stepcast

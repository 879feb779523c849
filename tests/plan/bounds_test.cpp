#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "sim/plan/forecast.hpp"
#include "sim/plan/search.hpp"
#include "tests/plan/variants.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::bounds_test {
namespace {

/// Shared layers and sequences, tied parameters, blocks with biases, several hosts, memory of processes.
std::vector<PlanProblem> problems() {
  const Precision bf16 = Precision::parse("bf16"),
                  mixed = Precision::parse("bf16,reduction=bf16,gradients=fp32");
  const std::string llama = "llama:layers=6,hidden=512,vocabulary=8192,sequence=1024";
  const std::string gpt = "gpt:layers=5,hidden=512,vocabulary=8192,sequence=512";
  const std::string moe = "moe:layers=4,hidden=512,feed_forward=512,experts=4,vocabulary=8192,sequence=512";
  return {
      {.model = moe,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 32},
      {.model = moe, .cluster = "h100-fat-tree:nodes=2", .device = "h100-sxm", .ranks = 16, .samples = 32},
      {.model = llama,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 16},
      {.model = gpt,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = mixed,
       .ranks = 4,
       .samples = 8},
      {.model = llama,
       .cluster = "h100-fat-tree:nodes=2",
       .device = "h100-sxm:process=1GiB",
       .precision = bf16,
       .ranks = 16,
       .samples = 16},
      {.model = gpt + ",tied=1", .cluster = "a100x8", .device = "a100-sxm", .ranks = 6, .samples = 12},
      {.model = "gpt2-small:layers=4",
       .cluster = "h100x4-nvlink",
       .device = "h100-sxm",
       .ranks = 4,
       .samples = 8},
      {.model = llama + ",transformer_engine=1",
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = Precision::parse("bf16,gradients=fp32"),
       .ranks = 8,
       .samples = 16},
      {.model = "netflix-mlp", .cluster = "h100x8-hgx", .device = "h100-sxm", .ranks = 8, .samples = 64},
      {.model = llama,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 32,
       .like = "megatron"},
      {.model = llama,
       .cluster = "a100x8",
       .device = "a100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 16,
       .like = "deepspeed"},
      {.model = moe,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 4,
       .samples = 16,
       .like = "torchtitan@2025"},
      {.model = "moe:layers=4,hidden=1024,feed_forward=1024,experts=8,vocabulary=16384,sequence=1024",
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 16,
       .like = "megatron"},
      {.model = llama,
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 16,
       .like = "torchtitan@2025-08"},
      {.model = llama,
       .cluster = "h100x4-nvlink",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 1,
       .samples = 4,
       .like = "hf"},
      {.model = gpt, .cluster = "star:hosts=4", .device = "xeon-platinum-8480", .ranks = 4, .samples = 8},
      {.model = llama,  // whose collectives take longer than its GEMMs, and not all of which are recomputed
       .cluster = "l40s-pcie:gpus=8",
       .device = "l40s",
       .precision = bf16,
       .ranks = 8,
       .samples = 16,
       .like = "torchtitan@2025"},
      {.model = llama + ",lora=8",
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 8,
       .samples = 16},
      {.model = gpt + ",frozen=2",
       .cluster = "h100x8-hgx",
       .device = "h100-sxm",
       .precision = bf16,
       .ranks = 4,
       .samples = 8}};
}

/// The plan whose bound excludes `plan` too: without smaller values.
Plan fastest(PlanModels& models, Plan plan) {
  for (const PlanDimension& dimension : plan_dimensions())
    if (dimension.smaller_values && !models.is_set(dimension.name)) {
      plan.values.erase(dimension.name);
      if (dimension.values) plan.values[dimension.name] = dimension.values(models, plan).front();
    }
  return plan;
}

/// One of the plans with smaller values, after random steps to refinement values.
Plan varied(PlanModels& models, const Plan& plan, std::mt19937& random) {
  std::vector<Plan> smaller{plan};
  for (std::size_t i = 0; i < smaller.size(); ++i)
    std::ranges::move(smaller_plans(models, Plan(smaller[i])), std::back_inserter(smaller));
  Plan result = smaller[random() % smaller.size()];
  for (auto others = variants_of_split(models, result); !others.empty() && random() % 4 != 0;
       others = variants_of_split(models, result))
    result = others[random() % others.size()];
  return result;
}

}  // namespace

TEST_CASE("no forecast is below its bounds of time and memory", "[plan]") {
  constexpr int kEach = 220;
  constexpr double kRounding = 1e-6;
  const TemporaryFolder folder;
  std::vector<PlanProblem> all = problems();
  for (const char* option : {"dispatch: flex8", "dispatch-overlap: micro-batches"}) {
    all.push_back(all.front());
    if (option == std::string("dispatch-overlap: micro-batches")) {  // hosts of fewer GPUs than share experts
      all.back().model.replace(all.back().model.find("experts=4"), 9, "experts=8");
      all.back().cluster = "gh200x4:nodes=4";
      all.back().device = "gh200";
    }
    all.back().like = folder.write(std::to_string(all.size()) + ".yaml",
                                   "convention: an option of experts\noptions:\n  - {" + std::string(option) +
                                       ", if: {expert: \"> 1\"}}\n");
  }
  double tightness = 0.0, nearness = 0.0;
  int count = 0;
  std::map<std::string, int> values;
  for (unsigned number = 0; number < all.size(); ++number) {
    const PlanProblem& problem = all[number];
    PlanModels models(problem);
    PlanBounds bounds(models);
    std::vector<Plan> plans;
    enumerate_plans(models, [&](const Plan& plan) { plans.push_back(plan); });
    std::mt19937 random(number + 1);
    std::shuffle(plans.begin(), plans.end(), random);
    plans.resize(std::min<std::size_t>(kEach, plans.size()));
    for (Plan& plan : plans) plan = varied(models, plan, random);
    KnownInputs known;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      INFO("seed " << number + 1 << ", plan " << i << ": " << command_of(problem, plans[i]));
      PredictionRequest request = request_of(problem, plans[i]);
      request.known = &known;
      request.brief = true;
      const Result result = predict(request);
      const PlanBound bound = bounds.of(plans[i]);
      CHECK(bounds.step_s(fastest(models, plans[i])) <= (1.0 + kRounding) * result.median_step_time_s());
      for (const char* name : {"recompute", "gather_again", "virtual-stages", "accumulate"})
        ++values[name + (" " + plans[i].text(name))];
      if (plans[i].text("strategy") == "pipeline" && !plans[i].text("shard").empty())
        ++values["stages in shards"];
      if (problem.like == "megatron" && plans[i].number("tensor") > 1)
        ++values["expert_tensor " + plans[i].text("expert_tensor")];
      double memory = 0.0, communicators = 0.0;
      for (const MemoryUse& use : result.memory) {
        memory = std::max(memory, use.needed_bytes());
        communicators =
            std::max(communicators, value_or(use.besides, std::string("NCCL's communicators"), 0.0));
      }
      CHECK(bound.step_s <= (1.0 + kRounding) * result.median_step_time_s());
      const double nearer = bounds.ordered_step_s(plans[i], bound.step_s);
      CHECK(nearer <= (1.0 + kRounding) * result.median_step_time_s());
      CHECK(nearer >= bound.step_s);
      nearness += nearer / bound.step_s;
      CHECK(bound.memory_bytes <= (1.0 + kRounding) * memory);
      CHECK(bound.memory_bytes > 0.5 * (memory - communicators));  // not all of which it counts
      tightness += bound.step_s / result.median_step_time_s();
      ++count;
    }
  }
  CHECK(count > 2000);
  for (const char* value :
       {"recompute selective", "recompute per-op", "gather_again 1", "virtual-stages 3", "accumulate every",
        "accumulate shard-then-replicas", "stages in shards", "expert_tensor 1", "expert_tensor 2"}) {
    INFO(value);
    CHECK(values[value] > 10);
  }
  // Bounds that prune nothing would be lower bounds too.
  INFO("bounds are " << tightness / count << " of the forecasts in the mean of " << count);
  CHECK(tightness / count > 0.75);
  CHECK(nearness / count > 1.0005);
}

TEST_CASE("the first rank may begin a step while the last stage still updates", "[plan]") {
  const std::vector<PlanProblem> all = problems();
  PlanModels models(*std::ranges::find(all, "star:hosts=4", &PlanProblem::cluster));
  PlanBounds bounds(models);
  int count = 0;
  enumerate_plans(models, [&](Plan plan) {
    if (plan.text("schedule") != "zb-h1" || plan.text("pipeline") != "2") return;
    plan.values["split"] = "1-4";
    INFO(describe(plan));
    const double forecast = forecast_of(models, plan, replayed_numbers(models, plan), 0.0).step_s;
    CHECK(bounds.ordered_step_s(plan, bounds.step_s(plan)) <= 1.000001 * forecast);
    ++count;
  });
  CHECK(count > 20);
}

}  // namespace stepcast::bounds_test

#include "sim/plan/search.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>
#include <set>

#include "core/error.hpp"
#include "core/table.hpp"
#include "sim/plan/report.hpp"
#include "tests/plan/variants.hpp"

namespace stepcast::search_test {
namespace {

PlanProblem problem(const std::string& model, int ranks, int samples,
                    const std::string& device = "h100-sxm") {
  return {.model = model,
          .cluster = "h100x8-hgx",
          .device = device,
          .precision = Precision::parse("bf16"),
          .ranks = ranks,
          .samples = samples};
}

std::string llama(int layers, int hidden, int sequence) {
  return "llama:vocabulary=4096,layers=" + std::to_string(layers) + ",hidden=" + std::to_string(hidden) +
         ",sequence=" + std::to_string(sequence);
}

std::string moe(int layers, int hidden) {
  return "moe:experts=4,vocabulary=4096,sequence=512,layers=" + std::to_string(layers) +
         ",hidden=" + std::to_string(hidden) + ",feed_forward=" + std::to_string(hidden);
}

PlanOutcome search(const PlanProblem& given, const PlanRequest& request = {}) {
  PlanModels models(given);
  PlanBounds bounds(models);
  return search_plans(models, bounds, request);
}

double best_score(const PlanProblem& given, const PlanOutcome& outcome) {
  REQUIRE(outcome.ranked > 0);
  const PlanRecord& best = outcome.plans.front();
  return score(PlanModels(given), best.plan, best.forecast->step_s);
}

/// The plans that are enumerated, those with smaller values, and those with refinement values but for splits.
std::vector<Plan> every_plan(PlanModels& models) {
  std::vector<Plan> all;
  std::set<OptionTexts> seen;
  const auto add = [&](const Plan& plan) {
    if (seen.insert(plan.values).second) all.push_back(plan);
  };
  enumerate_plans(models, add);
  for (const auto& next : {smaller_plans, variants_of_split})
    for (std::size_t i = 0; i < all.size(); ++i) std::ranges::for_each(next(models, Plan(all[i])), add);
  return all;
}

struct Exhaustive {
  double best_score = std::numeric_limits<double>::infinity();
  std::size_t replayed = 0;
};

/// Replays every plan that may fit. \param only leaves out plans that this program cannot run; may be null
Exhaustive replay_every_plan(const PlanProblem& given, const Launcher* only = nullptr) {
  PlanModels models(given);
  PlanBounds bounds(models);
  Exhaustive result;
  for (const Plan& plan : every_plan(models)) {
    if (only != nullptr && !only->obstacles(models, plan).empty()) continue;
    const double bound = bounds.memory_bytes(plan), least = bounds.least_memory_bytes(plan);
    CHECK(least <= bound);
    for (const Plan& smaller : smaller_plans(models, plan)) CHECK(least <= bounds.memory_bytes(smaller));
    if (bound > bounds.memory_limit()) continue;
    try {
      const PlanForecast forecast = forecast_of(models, plan, replayed_numbers(models, plan), bound);
      ++result.replayed;
      if (forecast.memory_bytes <= bounds.memory_limit())
        result.best_score = std::min(result.best_score, score(models, plan, forecast.step_s));
    } catch (const Error&) {  // predict refuses it
    }
  }
  return result;
}

}  // namespace

TEST_CASE("replaying every plan of twelve small problems finds none that is better by 0.5 %", "[plan]") {
  // In some the memory of the process leaves too little for most plans.
  const std::vector<PlanProblem> problems{
      problem(llama(2, 256, 256), 2, 4),
      problem(llama(4, 128, 512), 4, 4),
      problem(llama(4, 1024, 2048), 4, 4),
      problem("gpt:layers=4,hidden=512,vocabulary=4096,sequence=256", 4, 4),
      problem("netflix-mlp", 4, 16),
      problem(llama(4, 512, 8192), 4, 1),
      problem(llama(4, 1024, 8192), 4, 4, "h100-sxm:process=75.3GiB"),
      problem(llama(4, 2048, 1024), 4, 2, "h100-sxm:process=76.3GiB"),
      problem(moe(2, 256), 2, 4),
      problem(moe(3, 512), 4, 2),
      problem(moe(2, 1024), 4, 4, "h100-sxm:process=76.3GiB"),
      problem(moe(2, 1024) + ",capacity=125", 2, 4, "h100-sxm:process=76.3GiB")};
  for (const PlanProblem& given : problems) {
    const Exhaustive every = replay_every_plan(given);
    const PlanOutcome planned = search(given);
    INFO(given.model << " on " << given.ranks << ": " << every.replayed << " replayed, planned with "
                     << planned.counts.replayed);
    CHECK(best_score(given, planned) <= 1.005 * every.best_score);
    CHECK(planned.counts.replayed < every.replayed);
    CHECK_FALSE(planned.open_score);
  }
}

TEST_CASE("extrapolated rounds of micro-batches equal a replay of all of them", "[plan]") {
  int pipelines = 0, interleaved = 0;
  double fewer = 0.0;  // operations
  for (const PlanProblem& given :
       {problem(llama(8, 1024, 1024), 8, 128), problem(llama(21, 1024, 512), 4, 128)}) {
    PlanModels models(given);
    PlanBounds bounds(models);
    std::vector<Plan> plans;
    enumerate_plans(models, [&](const Plan& plan) {
      if (plan.number("micro-batches") > 12 * plan.number("pipeline")) plans.push_back(plan);
    });
    std::shuffle(plans.begin(), plans.end(), std::mt19937(1));
    plans.resize(40);
    PlanRequest request{.most_replays = 1};
    for (const Plan& plan : plans)
      request.user_plans.push_back({.plan = plan, .name = command_of(given, plan)});
    for (const PlanRecord& record : search_plans(models, bounds, request).plans) {
      if (record.name.empty()) continue;
      PredictionRequest request_of_plan = request_of(given, record.plan);
      request_of_plan.brief = true;
      const Result whole = predict(request_of_plan);
      INFO(record.name);
      // In the first step the launch thread is not ahead yet.
      CHECK(record.forecast->step_s == Approx(whole.median_step_time_s()).epsilon(4e-3));
      // The launch thread's time in no operation begins after many micro-batches; extrapolated, it is idle.
      double still_s = 0.0;
      for (const Breakdown& rank : whole.breakdown)
        still_s += (rank.idle_s + rank.input_and_host_s) / static_cast<double>(whole.breakdown.size());
      const Breakdown& mean = record.forecast->mean;
      CHECK((mean.idle_s + mean.input_and_host_s) / record.forecast->step_s ==
            Approx(still_s / whole.median_step_time_s()).margin(4e-3));
      double memory = 0.0;
      for (const MemoryUse& use : whole.memory) memory = std::max(memory, use.needed_bytes());
      CHECK(record.forecast->memory_bytes == Approx(memory).epsilon(1e-6));
      fewer += whole.forecast.operations - record.forecast->operations;
      pipelines += record.plan.text("strategy") == "pipeline" ? 1 : 0;
      interleaved += record.plan.number("virtual-stages") > 1 ? 1 : 0;
    }
  }
  CHECK(pipelines > 20);
  CHECK(interleaved > 10);
  CHECK(fewer > 0.0);
}

TEST_CASE("plans that do not fit are not recommended, and the report names the one with the least memory",
          "[plan]") {
  PlanProblem given = problem(llama(4, 1024, 8192), 4, 4, "h100-sxm:process=75.3GiB");
  PlanModels models(given);
  PlanBounds bounds(models);
  const PlanOutcome outcome = search_plans(models, bounds, {});
  CHECK(outcome.counts.too_large > 0);
  for (std::size_t i = 0; i < outcome.ranked; ++i)
    CHECK(outcome.plans[i].forecast->memory_bytes <= bounds.memory_limit());

  given.device = "h100-sxm:process=77.9GiB";
  PlanModels fuller(given);
  PlanBounds tighter(fuller);
  const PlanOutcome nothing = search_plans(fuller, tighter, {});
  CHECK(nothing.ranked == 0);
  const std::string text = nothing_fits_text(fuller, tighter, nothing);
  CHECK_THAT(text, Catch::Contains("nothing fits") && Catch::Contains("Least of all needs") &&
                       Catch::Contains("too much"));
}

TEST_CASE("on CPUs, which reserve no memory, a plan needs what it allocates", "[plan]") {
  const PlanProblem given{.model = "gpt:layers=4,hidden=512,vocabulary=4096,sequence=256",
                          .cluster = "star:hosts=4",
                          .device = "xeon-platinum-8480",
                          .ranks = 4,
                          .samples = 8};
  const PlanRecord best = search(given, {.best = 1, .most_replays = 20}).plans.front();
  double memory = 0.0;
  for (const MemoryUse& use : predict(request_of(given, best.plan)).memory)
    memory = std::max(memory, use.peak_bytes);
  CHECK(best.forecast->memory_bytes == Approx(memory).epsilon(1e-6));
  CHECK(best.bound.memory_bytes < memory);
}

TEST_CASE("a cheaper step may take fewer ranks", "[plan]") {
  PlanProblem given = problem(llama(2, 256, 256), 4, 4);
  const PlanOutcome fast = search(given);
  given.objective = PlanObjective::kCost;
  const PlanOutcome cheap = search(given);
  CHECK(fast.plans.front().plan.number("world-size") == 4);
  CHECK(cheap.plans.front().plan.number("world-size") < 4);
  CHECK(best_score(given, cheap) < 4.0 * fast.plans.front().forecast->step_s);
}

TEST_CASE("a search that ends early reports how far from the best it may be", "[plan]") {
  const PlanProblem given = problem(llama(4, 1024, 2048), 4, 4);
  PlanModels models(given);
  PlanBounds bounds(models);
  const PlanOutcome outcome = search_plans(models, bounds, {.most_replays = 2});
  CHECK(outcome.counts.replayed == 2);
  REQUIRE(outcome.open_score);
  CHECK_THAT(counts_text(models, outcome), Catch::Contains("Not proven"));
  CHECK(best_score(given, search(given)) >= std::min(*outcome.open_score, best_score(given, outcome)));
}

TEST_CASE("a search that a time limit ends has a plan and reports so", "[plan]") {
  const PlanProblem given = problem(llama(4, 1024, 2048), 4, 4);
  PlanModels models(given);
  PlanBounds bounds(models);
  const PlanOutcome outcome = search_plans(models, bounds, {.time_limit_s = 0.0});
  REQUIRE(outcome.timed_out);
  CHECK(outcome.ranked > 0);
  CHECK_THAT(counts_text(models, outcome), Catch::Contains("--time-limit ended the search"));
  const PlanOutcome whole = search(given);
  CHECK_FALSE(whole.timed_out);
  CHECK(best_score(given, whole) >= std::min(*outcome.open_score, best_score(given, outcome)));
}

TEST_CASE("a search for one program ranks only plans that it can run, also with its convention", "[plan]") {
  std::size_t excluded = 0;
  for (const auto& [program, convention] : {std::pair{"megatron", "megatron"},
                                            {"megatron", ""},
                                            {"torchtitan", "torchtitan@2025"},
                                            {"hf", "hf"},
                                            {"deepspeed", ""}}) {
    PlanProblem given = problem(llama(4, 1024, 2048), 4, 8);
    given.like = convention;
    PlanModels models(given);
    PlanBounds bounds(models);
    const Launcher launcher(program, models);
    const PlanOutcome outcome = search_plans(models, bounds, {.only = &launcher});
    INFO(program << " " << convention);
    excluded += outcome.counts.excluded;
    REQUIRE(outcome.ranked > 0);
    for (std::size_t i = 0; i < outcome.ranked; ++i)
      CHECK(launcher.obstacles(models, outcome.plans[i].plan).empty());
    CHECK(best_score(given, outcome) <= 1.005 * replay_every_plan(given, &launcher).best_score);
  }
  CHECK(excluded > 10);  // plans are checked as their bounds come up
}

TEST_CASE("equal problems have equal results", "[plan]") {
  const PlanProblem given = problem(llama(3, 512, 512), 4, 8);
  CHECK(plans_json_lines(given, search(given)) == plans_json_lines(given, search(given)));
}

}  // namespace stepcast::search_test

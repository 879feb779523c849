#include "sim/plan/space.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "sim/plan/launch.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::space_test {
namespace {

PlanProblem problem() {
  return {.model = "llama:layers=6,hidden=512,vocabulary=8192,sequence=1024",
          .cluster = "h100x8-hgx",
          .device = "h100-sxm",
          .precision = Precision::parse("bf16"),
          .ranks = 8,
          .samples = 16};
}

}  // namespace

TEST_CASE("plans are enumerated once each, use all ranks and samples, and build", "[plan]") {
  const PlanProblem given = problem();
  PlanModels models(given);
  std::set<OptionTexts> seen;
  std::set<std::string> strategies;
  std::size_t count = 0;
  enumerate_plans(models, [&](const Plan& plan) {
    CHECK(seen.insert(plan.values).second);
    strategies.insert(plan.text("strategy"));
    CHECK(plan.number("pipeline") * plan.number("data") * plan.number("context") * plan.number("tensor") ==
          8);
    const PredictionRequest request = request_of(given, plan);
    CHECK(*request.costs.batch * plan.number("data") == 16);
    if (count++ % 16 != 0) return;
    TrainingConfig training = request.training;
    training.batch = *request.costs.batch;
    INFO(command_of(given, plan));
    const Schedule schedule = build_schedule(request.strategy, *models.part(plan), training);
    CHECK(schedule.world_size == 8);
    CHECK(schedule.data_parallel == plan.number("data"));
  });
  CHECK(count > 500);
  CHECK(strategies == std::set<std::string>{"ddp", "fsdp", "pipeline", "single"});
}

TEST_CASE("a split counts embedding and head as blocks", "[plan]") {
  CHECK(split_for(12, 4, 0, 0) == "3-3-3-3");
  CHECK(split_for(10, 4, 0, 0) == "3-3-2-2");
  CHECK(split_for(126, 16, 1, 1) == "7-14x8-7");  // Llama 3 405B
  CHECK(split_for(3, 4, 0, 0).empty());
  CHECK(split_for(4, 4, 0, 1).empty());
}

TEST_CASE("variants of a plan differ from it in one dimension", "[plan]") {
  const PlanProblem given = problem();
  PlanModels models(given);
  const Plan plan{{{"world-size", "8"},
                   {"pipeline", "4"},
                   {"context", "1"},
                   {"tensor", "1"},
                   {"data", "2"},
                   {"strategy", "pipeline"},
                   {"micro-batches", "4"},
                   {"recompute", "none"},
                   {"schedule", "1f1b"},
                   {"split", "2-2-1-1"}}};
  const std::vector<Plan> variants = variants_of(models, plan);
  std::set<std::string> splits;
  for (const Plan& variant : variants) {
    int different = 0;
    for (const PlanDimension& dimension : plan_dimensions())
      different += variant.text(dimension.name) == plan.text(dimension.name) ? 0 : 1;
    CHECK(different == 1);
    splits.insert(variant.text("split"));
  }
  CHECK(splits == std::set<std::string>{"2-2-1-1", "1-3-1-1", "1-2-1-2", "3-1-1-1", "2-1-2-1", "2-1-1-2"});
}

TEST_CASE("a plan that does not fit is followed by every combination of smaller values, once", "[plan]") {
  const PlanProblem given = problem();
  PlanModels models(given);
  const Plan plan{{{"world-size", "8"},
                   {"pipeline", "1"},
                   {"context", "1"},
                   {"tensor", "2"},
                   {"sequence_parallel", "1"},
                   {"data", "4"},
                   {"strategy", "fsdp"},
                   {"sharding", "full_shard"},
                   {"shard", "2"},
                   {"micro-batches", "2"},
                   {"recompute", "none"}}};
  std::set<OptionTexts> seen{plan.values};
  std::vector<Plan> left{plan};
  while (!left.empty()) {
    const Plan next = left.back();
    left.pop_back();
    for (const Plan& smaller : smaller_plans(models, next)) {
      CHECK(seen.insert(smaller.values).second);
      left.push_back(smaller);
    }
  }
  CHECK(seen.size() == 2 * 3 * 4);  // gathered again, accumulate, recompute
}

TEST_CASE("a convention sets its options in all plans, and plans do not vary them", "[plan]") {
  PlanProblem given = problem();
  given.like = "megatron";
  PlanModels models(given);
  std::size_t count = 0;
  enumerate_plans(models, [&](const Plan& plan) {
    CHECK_FALSE(plan.values.contains("sequence_parallel"));
    CHECK_FALSE(plan.values.contains("zero"));
    if (count++ % 16 != 0) return;
    const OptionTexts options = predict_options(given, plan);
    INFO(command_of(given, plan));
    CHECK(options.at("like") == "megatron");
    const OptionTexts all = Convention("megatron").added_to(options).options;
    const PredictionRequest request = request_of(given, plan);
    for (const auto& [name, value] : plan.added)
      if (name != "model" && !models.whole().settings.contains(name)) CHECK(all.at(name) == value);
    CHECK(models.precision_of(plan) == request.costs.precision);
    CHECK(models.part(plan)->settings.at("sequence_parallel") == (plan.number("tensor") > 1 ? 1 : 0));
    CHECK(models.part(plan)->settings ==
          load_model(shared_by(request.costs.model, request.training.mesh)).settings);
  });
  CHECK(count > 200);
}

TEST_CASE("tensor-parallel ranks have whole experts or divide each", "[plan]") {
  PlanProblem given = problem();
  given.model = "moe:layers=4,hidden=512,heads=8,vocabulary=8192,sequence=512,experts=4";
  PlanModels models(given);
  std::map<std::string, int> counts;
  enumerate_plans(models, [&](const Plan& plan) {
    const std::string& divided = plan.text("expert_tensor");
    CHECK((divided.empty() || divided == plan.text("tensor")));
    ++counts[divided];
  });
  CHECK(counts.at("") > 50);
  CHECK(counts.at("2") > 10);
}

TEST_CASE("under graphs of layers plans recompute no whole blocks", "[plan]") {
  const TemporaryFolder folder;
  for (const std::string graph : {"none", "layer", "full"}) {
    PlanProblem given = problem();
    given.ranks = 2, given.samples = 4;
    given.like = folder.write(graph + ".yaml", "like: megatron\noptions: [{graph: " + graph + "}]\n");
    PlanModels models(given);
    std::set<std::string> recomputed;
    enumerate_plans(models, [&](const Plan& plan) {
      for (const Plan& smaller : smaller_plans(models, plan)) recomputed.insert(smaller.text("recompute"));
    });
    CHECK(recomputed.contains("selective"));
    CHECK(recomputed.contains("full") == (graph != "layer"));
    CHECK(recomputed.contains("every:2") == (graph != "layer"));
  }
}

TEST_CASE("NeMo runs Megatron, which recomputes modules and lacks ZB-H1", "[plan]") {
  PlanProblem given = problem();
  given.ranks = 2, given.samples = 4, given.like = "nemo@26.08";
  given.model = "moe:layers=4,hidden=256,sequence=1024";
  PlanModels models(given);
  CHECK(models.program() == "megatron");
  const Launcher nemo("nemo", models);
  CHECK(nemo.program() == "Megatron-LM");
  Plan of_modules;
  bool has_schedule = false;
  enumerate_plans(models, [&](const Plan& plan) {
    if (plan.text("schedule") == "zb-h1") has_schedule = has_schedule || nemo.obstacles(models, plan).empty();
    for (const Plan& smaller : smaller_plans(models, plan))
      if (smaller.text("recompute") == "layernorm+moe_act") of_modules = smaller;
  });
  CHECK_FALSE(has_schedule);
  const LaunchText text = nemo.text(models, of_modules);
  CHECK_THAT(text.lines, Catch::Contains("--recompute-granularity selective --recompute-modules layernorm "
                                         "moe_act\n"));
  CHECK(text.words.find("recompute") == std::string::npos);
  CHECK_FALSE(Launcher("torchtitan", models).obstacles(models, of_modules).empty());
}

TEST_CASE("plans that a convention's setting excludes are left out", "[plan]") {
  PlanProblem given = problem();
  given.like = "megatron";  // a ring for context parallelism, which windows exclude
  given.model = "decoder:layers=6,hidden=512,vocabulary=8192,sequence=1024,window=128";
  PlanModels models(given);
  std::size_t count = 0;
  enumerate_plans(models, [&](const Plan& plan) {
    CHECK(plan.number("context") == 1);
    CHECK(models.part(plan) != nullptr);
    ++count;
  });
  CHECK(count > 100);
}

TEST_CASE("plans as flags of Megatron-LM and configuration of torchtitan", "[plan]") {
  PlanProblem given = problem();
  given.precision = Precision::parse("bf16,gradients=fp32");
  PlanModels models(given);
  const auto launch_text = [](const char* name, PlanModels& of, const Plan& plan) {
    return Launcher(name, of).text(of, plan);
  };
  const Plan plan{{{"world-size", "8"},
                   {"pipeline", "2"},
                   {"context", "1"},
                   {"tensor", "2"},
                   {"sequence_parallel", "1"},
                   {"gather_again", "1"},
                   {"data", "2"},
                   {"strategy", "pipeline"},
                   {"micro-batches", "4"},
                   {"recompute", "every:2"},
                   {"schedule", "1f1b"},
                   {"split", "4-2"},
                   {"messages", "waited"},
                   {"bucket-cap", "100MiB"}}};
  const LaunchText megatron = launch_text("megatron", models, plan);
  for (const char* line :
       {"--tensor-model-parallel-size 2\n", "--sequence-parallel\n", "--pipeline-model-parallel-size 2\n",
        "--pipeline-model-parallel-layout 'Et*4|t*2L'\n", "--context-parallel-size 1\n",
        "--micro-batch-size 2\n", "--global-batch-size 16\n", "--seq-length 1024\n", "--bf16\n",
        "--recompute-granularity full\n", "--recompute-method uniform\n", "--recompute-num-layers 2\n",
        "--ddp-bucket-size 26214400\n"})
    CHECK_THAT(megatron.lines, Catch::Contains(line));
  CHECK(megatron.missing.empty());
  CHECK(megatron.obstacles.empty());
  const LaunchText torchtitan = launch_text("torchtitan", models, plan);
  for (const char* line :
       {"[parallelism]\n", "tensor_parallel_degree = 2\n", "pipeline_parallel_degree = 2\n",
        "pipeline_parallel_schedule = \"1F1B\"\n", "pipeline_parallel_microbatch_size = 2\n",
        "local_batch_size = 8\n", "pipeline_parallel_split_points = [\"layers.4\"]\n",
        "[activation_checkpoint]\nmode = \"full\"\n"})
    CHECK_THAT(torchtitan.lines, Catch::Contains(line));
  // Units of two blocks, replicas of a pipeline, the cap of buckets, inputs gathered again.
  CHECK(torchtitan.obstacles.size() == 4);
  CHECK(torchtitan.missing.size() == 2);  // gradients in fp32, waited messages
  CHECK_THAT(torchtitan.text(),
             Catch::StartsWith("# torchtitan cannot run this plan: ") && !Catch::Contains("[parallelism]"));

  Plan shared = plan;
  for (const char* zero : {"1", "2"}) {
    shared.values["zero"] = zero;
    CHECK_THAT(launch_text("megatron", models, shared).lines,
               Catch::Contains("--use-distributed-optimizer\n"));
    CHECK(launch_text("megatron", models, shared).obstacles.size() == (shared.number("zero") == 1 ? 0 : 1));
    CHECK(launch_text("torchtitan", models, shared).obstacles.size() == 5);
  }

  for (const bool ring : {false, true}) {
    PlanProblem other = given;
    other.model += ring ? ",ring=1" : ",ring=0";
    PlanModels round(other);
    Plan parts = plan;
    parts.values["context"] = "2";
    CHECK_THAT(launch_text("megatron", round, parts).lines,
               Catch::Contains(ring ? "--cp-comm-type p2p\n" : "--cp-comm-type all_gather\n"));
    CHECK_THAT(launch_text("torchtitan", round, parts).lines,
               Catch::Contains(ring ? "\"alltoall\"" : "\"allgather\""));
  }

  Plan inside = plan;
  inside.values["rank-order"] = kStagesInside;
  CHECK_THAT(launch_text("megatron", models, inside).lines, Catch::Contains("--use-tp-pp-dp-mapping\n"));
  CHECK(launch_text("torchtitan", models, inside).obstacles.size() == 5);
  CHECK_THAT(command_of(given, inside), Catch::Contains("--mesh data=2,pipeline=2,tensor=2"));

  const Plan sharded{{{"world-size", "8"},
                      {"data", "4"},
                      {"tensor", "2"},
                      {"sequence_parallel", "0"},
                      {"strategy", "fsdp"},
                      {"sharding", "full_shard"},
                      {"recompute", "full"}}};
  CHECK_THAT(launch_text("megatron", models, sharded).lines,
             Catch::Contains("--data-parallel-sharding-strategy optim_grads_params\n"));
  const LaunchText titan = launch_text("torchtitan", models, sharded);
  CHECK_THAT(titan.lines, Catch::Contains("data_parallel_shard_degree = 4\n") &&
                              Catch::Contains("fsdp_reshard_after_forward = \"always\"\n"));
  CHECK(titan.obstacles == std::vector<std::string>{"tensor parallelism without sequence parallelism"});

  Plan stage3 = sharded;
  stage3.values["data"] = "8", stage3.values["tensor"] = "1";
  for (const char* line : {"{\n", "  \"bf16\": {\"enabled\": true},\n", "\"stage\": 3", "  }\n}\n"})
    CHECK_THAT(launch_text("deepspeed", models, stage3).lines, Catch::Contains(line));
  CHECK_THAT(launch_text("hf", models, stage3).lines,
             Catch::Contains("fsdp_activation_checkpointing: true\n") &&
                 Catch::Contains("parallelism_config_dp_shard_size: 8\n"));
}

TEST_CASE("two plans that a program can run have different launch options", "[plan]") {
  PlanProblem given = problem();
  given.model = "llama:layers=4,hidden=512,vocabulary=8192,sequence=1024";
  given.ranks = 4, given.samples = 8;
  PlanModels models(given);
  std::vector<Plan> plans;
  std::size_t count = 0;
  enumerate_plans(models, [&](const Plan& plan) {
    plans.push_back(plan);
    if (count++ % 4 != 0) return;
    for (const auto& others : {smaller_plans(models, plan), variants_of(models, plan)})
      plans.insert(plans.end(), others.begin(), others.end());
  });
  for (const Launcher& launcher : launchers(models)) {
    std::map<std::string, OptionTexts> known;
    for (const Plan& plan : plans) {
      const LaunchText launch = launcher.text(models, plan);
      CHECK(launch.obstacles == launcher.obstacles(models, plan));
      if (!launch.obstacles.empty()) continue;
      const auto [found, is_new] = known.emplace(launch.text(), plan.values);
      INFO(launcher.program() << ": " << describe(plan) << " and " << describe({found->second}));
      CHECK((is_new || found->second == plan.values));
    }
    INFO(launcher.program());
    CHECK(known.size() > 20);
  }
}

}  // namespace stepcast::space_test

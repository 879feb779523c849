#include "sim/plan/launch.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/table.hpp"
#include "sim/plan/space.hpp"
#include "sim/strategies/pipeline_layout.hpp"

namespace stepcast {
namespace {

std::vector<int> blocks_by_stage(const Plan& plan) {
  return plan.text("split").empty() ? std::vector{0} : split_counts(plan.text("split"));
}

bool is_uneven(const Plan& plan) {
  const std::vector<int> stages = blocks_by_stage(plan);
  return std::any_of(stages.begin(), stages.end(), [&](int one) { return one != stages.front(); });
}

/// Blocks that are recomputed together; 0: none.
int recomputed(const Plan& plan) {
  return plan.text("recompute").empty() ? 0 : parse_recompute(plan.text("recompute")).blocks;
}

/// Replicas share their optimizer.
bool shares_optimizer(const Plan& plan) { return plan.number("zero") > 0 && !plan.text("zero").empty(); }

/// What a user's plan says that is no dimension of plans.
void add_unknown(const Plan& plan, LaunchText& launch) {
  for (const auto& [name, value] : plan.values)
    if (!value.empty() && find_dimension(name) == nullptr)
      launch.missing.push_back("--" + name + " " + value);
}

int sequence_of(PlanModels& models) { return static_cast<int>(models.whole().input.front()); }

/// Lines of one configuration.
class LaunchLines {
 public:
  void add(const std::string& line) { text_ += line + "\n"; }
  void flag(const std::string& name, const std::string& value = "") {
    add("--" + name + (value.empty() ? "" : " " + value));
  }
  void flag(const std::string& name, int value) { flag(name, std::to_string(value)); }
  void size(const std::string& name, int value) {
    if (value > 1) flag(name, value);
  }
  void key(const std::string& name, const std::string& value) { add(name + " = \"" + value + "\""); }
  void key(const std::string& name, int value) { add(name + " = " + std::to_string(value)); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// `Et*9|t*10|t*10|t*9L`
std::string layout_of(const Plan& plan) {
  std::vector<std::string> parts;
  for (const int blocks : blocks_by_stage(plan))
    parts.push_back(blocks > 0 ? "t*" + std::to_string(blocks) : "");
  return "E" + joined(parts, "|") + "L";
}

bool is_ring(PlanModels& models) {
  const auto found = models.whole().settings.find("ring");
  return found != models.whole().settings.end() && found->second != 0;
}

void add_megatron_data(const Plan& plan, LaunchLines& lines, LaunchText& launch) {
  static const std::map<std::string, std::string> kSharding{{"full_shard", "optim_grads_params"},
                                                            {"shard_grad_op", "optim_grads"}};
  const auto sharding = kSharding.find(plan.text("sharding"));
  if (sharding != kSharding.end()) {
    lines.flag("use-megatron-fsdp");
    lines.flag("data-parallel-sharding-strategy", sharding->second);
    lines.flag("use-distributed-optimizer");
    lines.flag("no-gradient-accumulation-fusion");
    lines.flag("ckpt-format", "fsdp_dtensor");
    lines.flag("overlap-param-gather");
    lines.size("num-distributed-optimizer-instances", plan.copies());
  }
  if (plan.number("data") * plan.number("context") == 1) return;
  if (shares_optimizer(plan)) lines.flag("use-distributed-optimizer");
  if (plan.text("zero") == "2") launch.missing.push_back("zero 2: Megatron's replicas keep whole gradients");
  lines.flag("overlap-grad-reduce");
  constexpr double kGradient = 4.0;  // bytes: Megatron reduces in fp32
  const std::string& cap = plan.text("bucket-cap");
  if (!cap.empty())
    lines.flag("ddp-bucket-size", static_cast<int>(parse_bytes(cap, "bucket-cap").count() / kGradient));
  else if (sharding == kSharding.end())
    launch.missing.push_back("buckets of 25MiB: --ddp-bucket-size, in parameters, has another default");
}

std::string precision_flag(const PlanProblem& problem, LaunchText& launch, LaunchLines& lines) {
  const bool float8 = problem.precision.products == "fp8";
  if (float8) lines.flag("fp8-format", "hybrid");
  if (problem.precision.gather == "fp8") lines.flag("fp8-param-gather");
  for (const char* name : {"bf16", "fp16"})
    if (problem.precision.compute == name) {
      Precision known = Precision::parse(float8 ? "fp8" : name);
      known.gather = problem.precision.gather;
      if (problem.precision != known) launch.missing.push_back("precision " + to_text(problem.precision));
      return name;
    }
  return "";
}

}  // namespace

LaunchText megatron_flags(PlanModels& models, const Plan& plan) {
  const PlanProblem& problem = models.problem();
  LaunchText launch;
  LaunchLines lines;
  lines.flag("tensor-model-parallel-size", plan.number("tensor"));
  if (plan.text("sequence_parallel") == "1") lines.flag("sequence-parallel");
  lines.flag("pipeline-model-parallel-size", plan.number("pipeline"));
  if (is_uneven(plan))
    lines.flag("pipeline-model-parallel-layout", "'" + layout_of(plan) + "'");
  else if (plan.number("virtual-stages") > 1)
    lines.flag("num-layers-per-virtual-pipeline-stage", blocks_by_stage(plan).front());
  if (is_uneven(plan) && plan.number("virtual-stages") > 1)
    lines.add("# the layout has the parts of all ranks in the order of the model");
  if (plan.stages_inside()) lines.flag("use-tp-pp-dp-mapping");
  lines.flag("context-parallel-size", plan.number("context"));
  if (plan.number("context") > 1) lines.flag("cp-comm-type", is_ring(models) ? "p2p" : "all_gather");
  lines.size("expert-model-parallel-size", plan.number("expert"));
  lines.flag("micro-batch-size", plan.micro_batch(problem));
  lines.flag("global-batch-size", problem.samples);
  if (models.whole().input_kind == "tokens") lines.flag("seq-length", sequence_of(models));
  if (const std::string flag = precision_flag(problem, launch, lines); !flag.empty()) lines.flag(flag);
  if (const int blocks = recomputed(plan); blocks > 0) {
    lines.flag("recompute-granularity", "full");
    lines.flag("recompute-method", "uniform");
    lines.flag("recompute-num-layers", blocks);
  }
  if (plan.text("recompute") == "selective") lines.flag("recompute-granularity", "selective");
  if (plan.text("recompute") == "per-op")
    launch.missing.push_back("recompute per-op: Megatron has no choice by operations");
  add_megatron_data(plan, lines, launch);
  if (plan.text("sequence_parallel") == "1" && plan.text("gather_again") != "1")
    launch.missing.push_back("gathered inputs that stay for the backward: Megatron gathers them again");
  if (const std::string schedule = plan.text("schedule"); schedule == "gpipe" || schedule == "zb-h1")
    launch.missing.push_back("schedule " + schedule + ": Megatron's is 1F1B");
  if (plan.text("sharding") == "no_shard")
    launch.missing.push_back("all-reduces by block: Megatron has buckets");
  for (const char* name : {"limit-all-gathers", "forward-prefetch"})
    if (!plan.text(name).empty())
      launch.missing.push_back(std::string(name) + ": Megatron FSDP has its own prefetching");
  add_unknown(plan, launch);
  launch.text = lines.text();
  return launch;
}

namespace {

void add_torchtitan_pipeline(PlanModels& models, const Plan& plan, LaunchLines& lines, LaunchText& launch) {
  static const std::map<std::string, std::string> kSchedules{{"1f1b", "1F1B"},
                                                             {"gpipe", "GPipe"},
                                                             {"interleaved", "Interleaved1F1B"},
                                                             {"zb-h1", "InterleavedZeroBubble"}};
  lines.key("pipeline_parallel_degree", plan.number("pipeline"));
  if (plan.number("pipeline") == 1) return;
  lines.key("pipeline_parallel_schedule", kSchedules.at(plan.text("schedule")));
  lines.key("pipeline_parallel_microbatch_size", plan.micro_batch(models.problem()));
  std::vector<std::string> points;
  int layer = 0;
  const std::vector<int> stages = blocks_by_stage(plan);
  const int blocks = std::accumulate(stages.begin(), stages.end(), 0);
  for (std::size_t stage = 0; stage + 1 < stages.size(); ++stage) {
    layer += stages[stage];
    points.push_back(layer == blocks ? "\"norm\"" : "\"layers." + std::to_string(layer) + "\"");
  }
  lines.add("pipeline_parallel_split_points = [" + joined(points) + "]");
  lines.add("# newer versions: module_fqns_per_model_part, with the same layers of each part");
  if (plan.stages_inside())
    launch.missing.push_back("order " + plan.text("rank-order") + ": torchtitan's stages are outermost");
  if (plan.number("data") > 1)
    launch.missing.push_back(
        "replicas of a pipeline that average by all-reduce: torchtitan shards them or refuses");
}

void add_torchtitan_data(const Plan& plan, LaunchLines& lines, LaunchText& launch) {
  const bool shards = plan.text("strategy") == "fsdp" && plan.text("sharding") != "no_shard";
  lines.key("data_parallel_replicate_degree", shards ? plan.copies() : plan.number("data"));
  lines.key("data_parallel_shard_degree", shards ? plan.number("data") / plan.copies() : 1);
  if (plan.number("expert") > 1) lines.key("expert_parallel_degree", plan.number("expert"));
  if (shards)
    lines.key("fsdp_reshard_after_forward", plan.text("sharding") == "full_shard" ? "always" : "never");
  if (plan.text("strategy") == "ddp" && plan.number("tensor") * plan.number("context") > 1)
    launch.missing.push_back("DDP beside tensor or context parallelism: torchtitan has neither");
  if (shares_optimizer(plan))
    launch.missing.push_back("zero " + plan.text("zero") + ": torchtitan's replicas share nothing");
  if (!plan.text("bucket-cap").empty()) launch.missing.push_back("bucket cap " + plan.text("bucket-cap"));
  if (!plan.text("limit-all-gathers").empty())
    launch.missing.push_back("all-gathers at once: FSDP2 prefetches one ahead");
}

}  // namespace

LaunchText torchtitan_toml(PlanModels& models, const Plan& plan) {
  const PlanProblem& problem = models.problem();
  LaunchText launch;
  LaunchLines lines;
  lines.add("[training]");
  const bool pipelined = plan.number("pipeline") > 1;
  lines.key("local_batch_size",
            pipelined ? problem.samples / plan.number("data") : plan.micro_batch(problem));
  lines.key("global_batch_size", problem.samples);
  if (models.whole().input_kind == "tokens") lines.key("seq_len", sequence_of(models));
  if (problem.precision.compute == "bf16") {
    lines.key("mixed_precision_param", "bfloat16");
    lines.key("mixed_precision_reduce", problem.precision.reduction == "bf16" ? "bfloat16" : "float32");
  } else if (problem.precision.compute != "fp32") {
    launch.missing.push_back("precision " + to_text(problem.precision));
  }
  if (problem.precision.products == "fp8") {
    lines.add("\n[quantize.linear.float8]");
    lines.add("enable_fsdp_float8_all_gather = " +
              std::string(problem.precision.gather == "fp8" ? "true" : "false"));
  }
  lines.add("\n[parallelism]");
  add_torchtitan_data(plan, lines, launch);
  lines.key("tensor_parallel_degree", plan.number("tensor"));
  lines.key("context_parallel_degree", plan.number("context"));
  if (plan.number("context") > 1)
    lines.key("context_parallel_rotate_method", is_ring(models) ? "alltoall" : "allgather");
  add_torchtitan_pipeline(models, plan, lines, launch);
  lines.add("\n[activation_checkpoint]");
  const int blocks = recomputed(plan);
  const bool by_operations = plan.text("recompute") == "per-op";
  lines.key("mode", blocks > 0 ? "full" : by_operations ? "selective" : "none");
  if (by_operations) lines.key("selective_ac_option", "op");
  if (plan.text("recompute") == "selective")
    launch.missing.push_back("recompute selective: torchtitan does not recompute attention alone");
  if (blocks > 1)
    launch.missing.push_back("recompute " + plan.text("recompute") +
                             ": torchtitan recomputes block by block");
  if (plan.number("tensor") > 1 && plan.text("sequence_parallel") != "1")
    launch.missing.push_back("tensor parallelism without sequence parallelism");
  if (plan.text("gather_again") == "1")
    launch.missing.push_back("inputs gathered again in the backward: torchtitan keeps them");
  add_unknown(plan, launch);
  launch.text = lines.text();
  return launch;
}

}  // namespace stepcast

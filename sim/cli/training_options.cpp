#include "sim/cli/training_options.hpp"

#include "sim/cli/option.hpp"
#include "sim/strategies/training_config.hpp"

namespace stepcast {
namespace {

/// `ddp, pipeline: dtype in which buckets travel: none or fp16`
std::string describe(const KnownOption& known) {
  const StrategyOption& option = known.option;
  return joined(known.strategies) + ": " + option.help +
         (option.choices.empty() ? "" : ": " + alternatives(option.choices));
}

po::value_semantic* value_of(const StrategyOption& option) {
  if (option.kind == OptionKind::kFlag) return po::bool_switch();
  auto* value = po::value<std::string>();
  return option.standard.empty() ? value : value->default_value("", option.standard);
}

}  // namespace

void declare_training_options(po::options_description& options) {
  options.add_options()("strategy", po::value<std::string>(),
                        with_entries("how the ranks share the work", strategies()).c_str())(
      "micro-batches", int_value(TrainingConfig{}.micro_batches),
      "equal parts of the batch whose gradients are accumulated; a pipeline passes them on")(
      "recompute", text_value("none"),
      "none, full (every block keeps its input alone, and its forward is recomputed before its backward), "
      "every:N blocks, first:N blocks of a stage (Megatron's method block), each:N, every Nth block alone "
      "(torchtitan's), selective (Megatron's: attention keeps q, k, v and its output, no scores and "
      "probabilities) or per-op (torchtitan's: a block keeps attention's output and that of every second "
      "GEMM with weights), or modules of Megatron joined by +: core_attn, layernorm, mla_up_proj, moe_act, "
      "shared_experts")(
      "offload", text_value("none"),
      "forecasts: what GPUs hold in memory of their hosts, joined by +: activations (of all blocks; =8 of "
      "the first 8 of a rank, =0.5 of half of them; with --recompute the inputs of units), optimizer "
      "(states, "
      "updated by the host; =0.5 half of them) or, with fsdp, parameters (shards, too)");
  for (const KnownOption& known : known_options())
    options.add_options()(known.option.name.c_str(), value_of(known.option), describe(known).c_str());
}

TrainingConfig training_config(const po::variables_map& values) {
  return training_config(given_options(values));
}

}  // namespace stepcast

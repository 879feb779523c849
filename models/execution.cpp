#include "models/execution.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/model.hpp"

namespace stepcast {

const std::vector<ExecutionOption>& execution_options() {
  static const std::vector<ExecutionOption> kOptions{
      {"attention",
       &Execution::attention,
       {"triton", "flash2", "flash3", "flash4", "cudnn", "cudnn-fp8", "cudnn-mxfp8", "ck", "aotriton"},
       true},
      {"experts", &Execution::experts, {"loop", "streams", "grouped", "fused"}},
      {"graph", &Execution::graph, {"none", "layer", "full"}},
      {"tensor-overlap", &Execution::tensor_overlap, {"none", "megatron", "userbuffers", "async"}},
      {"dispatch", &Execution::dispatch, {"alltoall", "flexN"}},
      {"dispatch-sms", &Execution::dispatch_sms, {"N"}},
      {"dispatch-overlap", &Execution::dispatch_overlap, {"none", "shared", "micro-batches"}},
      {"gradient-passes", &Execution::gradient_passes, {"none", "norm", "scale", "nan"}, true},
      {"update", &Execution::update, {"fused", "foreach"}},
      {"gathered", &Execution::gathered, {"views", "copied"}},
      {"logits", &Execution::logits, {"kept", "freed"}},
      {"recomputed", &Execution::recomputed, {"whole", "needed"}},
      {"reserved", &Execution::reserved, {"N"}},
      {"communicators", &Execution::communicators, {"none", "N"}},
  };
  return kOptions;
}

bool has_choice(const std::string& list, const std::string& choice) {
  return ('+' + list + '+').find('+' + choice + '+') != std::string::npos;
}

namespace {

/// True if `text` is the known value, whose `N` represents a whole number above 0.
bool is_value(const std::string& text, const std::string& known) {
  const std::size_t start = known.size() - 1;
  if (!known.ends_with('N')) return text == known;
  return text.starts_with(known.substr(0, start)) && number_in<int>(text.substr(start)).value_or(0) > 0;
}

/// Sets what a flexible dispatcher sends in place of an all-to-all, which sends k copies of a token: with e
/// ranks in one domain a token reaches e (1 - (1 - 1/e)^k) of them, with more domains as many of these; a
/// router that chooses groups of experts first reaches those places alone that have one of them. Its kernels'
/// time is known inside one domain alone; between domains the network decides.
void dispatch_flexibly(int domain, Model& model) {
  if (!model.has_experts())
    throw InputError("--dispatch flex{}: '{}' has no experts; leave it out", domain, model.specification);
  if (std::ranges::none_of(model.collectives, &LayerCollective::dispatches))
    throw InputError("--dispatch flex{}: needs --mesh expert=N; without it nothing is dispatched", domain);
  const double ranks = model.parallel.expert,
               domains = std::ceil(1.0 * model.parallel.expert_ranks() / domain);
  double reached = domains > 1.0 ? domains : ranks, missed = 1.0;
  const std::int64_t groups = value_or(model.settings, "groups", 1);
  const double own = std::max(1.0, static_cast<double>(groups) / reached);  // of a place
  for (std::int64_t i = 0; i < value_or(model.settings, "chosen_groups", 1); ++i)
    missed *= std::max(0.0, 1.0 - own / static_cast<double>(groups - i));
  reached *= 1.0 - missed;
  const auto copies = static_cast<double>(model.settings.at("active"));
  const double sent = reached * (1.0 - std::pow(1.0 - 1.0 / reached, copies)) / copies;
  for (LayerCollective& one : model.collectives) {
    if (!one.dispatches()) continue;
    one.per_sample = sent * one.per_sample;
    one.rows = domains > 1.0 ? 0.0 : sent * one.rows;
  }
}

/// What is left of the kernels between the GEMMs of routed experts if these do their work: the first GEMM
/// writes the cast activation beside its output, the gradient of the second one's input reads that output
/// and writes the cast gradient. \param written part of a cast's bytes \returns what clamps no longer keep
Bytes fuse(std::vector<LayerWork>& works, double written) {
  constexpr double kGate = 0.2;  // reads 2 of the 10 elements that the backward of the activation moves
  Bytes clamped;
  for (LayerWork& work : works)
    for (Kernel& kernel : work.kernels) {
      if (!kernel.is(KernelRole::kExpertActivation)) continue;
      const bool cast = kernel.moved == Moved::kQuantized, clamps = kernel.moved == Moved::kStrided;
      if (clamps) clamped += kernel.kept.size;
      kernel.forward = (cast ? written : 0.0) * kernel.forward;
      kernel.backward = (cast ? written : clamps ? 0.0 : kGate) * kernel.backward;
      kernel.launches = kernel.backward_launches = 0;
    }
  return clamped;
}

}  // namespace

void set_execution(const ExecutionOption& option, const std::string& text, Execution& execution) {
  const std::vector<std::string> parts = split(text, '+');
  for (const std::string& part : parts)
    if (std::ranges::none_of(option.known, [&](const std::string& known) { return is_value(part, known); }))
      throw InputError("{}", option.known.front() == "N"
                                 ? "expected a whole number from 1 on, found '" + part + "'"
                             : std::ranges::count(option.known, part) > 0
                                 ? "N of '" + part + "' stands for a number, as in flex8"
                                 : unknown_name("value", part, option.known));
  if (parts.size() > 1 && (!option.joins || has_choice(text, "none")))
    throw InputError("takes one value, found '{}'; known are {}", text, joined(option.known));
  if (parts.empty()) throw InputError("a value is missing; known are {}", joined(option.known));
  execution.*option.member = text;
}

std::optional<int> nvlink_domain(const Execution& execution) {
  if (!execution.dispatch.starts_with("flex")) return std::nullopt;
  return std::stoi(execution.dispatch.substr(4));
}

std::string to_text(const Execution& execution) {
  std::vector<std::string> changed;
  for (const ExecutionOption& option : execution_options())
    if (execution.*option.member != Execution().*option.member)
      changed.push_back(option.name + " " + execution.*option.member);
  return joined(changed, ", ");
}

/// The first kernel of a layer that is captured stands for the launch of its graph.
void apply(const Execution& execution, Model& model) {
  model.execution = execution;
  if (execution.tensor_overlap != "none" && model.parallel.tensor == 1)
    throw InputError("--tensor-overlap {}: has no effect without --mesh tensor=N; leave it out",
                     execution.tensor_overlap);
  if (execution.dispatch_overlap == "shared") {
    if (!model.has_kernel([](const Kernel& kernel) { return kernel.is(KernelRole::kSharedExpert); }))
      throw InputError("--dispatch-overlap shared: {} has no shared expert", model.specification);
    if (execution.dispatch != "alltoall")
      throw InputError("--dispatch-overlap shared: needs --dispatch alltoall, not {}", execution.dispatch);
    if (model.parallel.expert == 1)
      throw InputError("--dispatch-overlap shared: needs --mesh expert=N; without it nothing is dispatched");
  }
  const auto capture = [&](LayerWork& work, bool& first) {
    for (Kernel& kernel : work.kernels) {
      kernel.captured = execution.graph == "full" || (execution.graph == "layer" && !first);
      first = false;
    }
  };
  if (const std::optional<int> domain = nvlink_domain(execution)) dispatch_flexibly(*domain, model);
  const Recipe* recipe = recipe_of(model.precision.products);
  const bool fused = execution.experts == "fused", one_kernel = fused || execution.experts == "grouped";
  if (fused && (recipe == nullptr || (recipe->name != "mxfp8" && recipe->name != "nvfp4")))
    throw InputError("--experts fused: takes --precision mxfp8 or nvfp4, in which the fused kernels compute");
  if (fused && contains(model.recomputed_part, RecomputedPart::kExpertActivation))
    throw InputError("--experts fused: has no activation of its own for --recompute moe_act");
  for (Segment& segment : model.segments) {
    if (fused) {
      const double written = recipe->copies / recipe->casts.input,
                   part = bytes_of(model.precision.compute) / 4.0;
      // kernels count what they keep in fp32
      const Bytes kept = fuse(segment.work, written), recomputed = fuse(segment.recomputed.work, written);
      (recomputed > Bytes(0) ? segment.recomputed.saved : segment.saved).size -= part * kept;
    }
    bool first = true;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work})
      for (LayerWork& work : *works) {
        std::erase_if(work.kernels, [&](const Kernel& one) {
          return (execution.dispatch != "alltoall" && one.is(KernelRole::kSort)) ||
                 (one_kernel && one.is(KernelRole::kExpertBias));
        });
        int experts = 1;
        for (Kernel& kernel : work.kernels) {
          if (const Gemm* gemm = kernel.gemm(); gemm != nullptr && gemm->times > 1.0 && one_kernel) {
            if (gemm->expert) experts = static_cast<int>(gemm->times);
            kernel.launches = 1;
            kernel.backward_launches = std::min(kernel.backward_launches, 2);
          } else if (one_kernel) {
            kernel.launches /= kernel.experts;
            kernel.backward_launches /= kernel.experts;
          }
          if (kernel.is(KernelRole::kExpertActivation) && !model.transformer_engine())
            kernel.launches = std::max(1, kernel.launches / experts);  // of all experts together
        }
        if (execution.graph == "full" || (segment.repeated && !work.has_router())) capture(work, first);
      }
  }
}

}  // namespace stepcast

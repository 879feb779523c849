#include <algorithm>
#include <array>
#include <ranges>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/layer.hpp"

/// Recomputation of a part of a block in its backward.
namespace stepcast {
namespace {

/// Adds kernels of a forward to those that the backward recomputes first.
void add_recomputed(std::vector<Kernel> kernels, Bytes weights, Segment& segment) {
  segment.recomputed.work.push_back({.kernels = std::move(kernels), .forward_weights = weights});
}

struct Module {
  const char *name, *needs;
  RecomputedPart part;
  KernelRole role;
};
constexpr std::array<Module, 6> kModules{
    {{"core_attn", "", RecomputedPart::kCoreAttention, KernelRole::kCoreAttention},
     {"layernorm", "has neither experts nor latent attention", RecomputedPart::kNorm, KernelRole::kNorm},
     {"mla_up_proj", "has no latent attention", RecomputedPart::kUpProjection, KernelRole::kUpProjection},
     {"moe_act", "has no experts", RecomputedPart::kExpertActivation, KernelRole::kExpertActivation},
     {"shared_experts", "has no shared expert", RecomputedPart::kSharedExpert, KernelRole::kSharedExpert},
     {"moe", "has no experts", RecomputedPart::kExperts, KernelRole::kOther}}};

void move_kept(const Kernel& kernel, Segment& segment) {
  segment.saved.add(kernel.kept, -1.0);
  segment.recomputed.saved.add(kernel.kept);
}

/// Moves the bytes that kernels of this role save to the recomputed ones. Returns true if there are any.
bool recompute_kernels(KernelRole role, Segment& segment) {
  bool any = false;
  for (const LayerWork& work : segment.work) {
    std::vector<Kernel> again;
    Bytes weights;
    for (const Kernel& kernel : work.kernels) {
      if (!kernel.is(role)) continue;
      again.push_back(kernel);
      if (const Gemm* gemm = kernel.gemm(); gemm != nullptr && gemm->has_weight())
        weights += float32_bytes(gemm->columns * gemm->depth * gemm->times);
      move_kept(kernel, segment);
    }
    any = any || !again.empty();
    if (!again.empty()) add_recomputed(std::move(again), weights, segment);
  }
  return any;
}

/// Recomputes norms whose output only experts or latent attention save. Transformer Engine computes other
/// norms in one module with the next GEMM.
bool recompute_norms(const std::vector<Layer>& layers, Segment& segment) {
  bool any = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const std::vector<Layer>* branch : {&layers[i].body, &layers[i].shortcut})
      any = recompute_norms(*branch, segment) || any;
    if (layers[i].kind != "experts" && layers[i].kind != "latent_attention") continue;
    if (layers[i].frozen && adapter_rank(layers[i]) == 0) continue;  // they save no input
    const std::size_t before = i > 0 && layers[i - 1].kind == "tensor_enter" ? 2 : 1;
    if (i < before) continue;
    const Layer& norm = layers[i - before];
    if (norm.kind != "rms_norm" && norm.kind != "layer_norm") continue;
    const Bytes output = float32_bytes(norm.output);
    segment.saved.size -= output;
    segment.recomputed.saved.size += output;
    if (layers[i].kind == "latent_attention" && adapter_rank(layers[i]) == 0)
      segment.saved.gemm_inputs -= output;
    add_recomputed(cost_of(norm).kernels, Bytes(0), segment);
    any = true;
  }
  return any;
}

/// Returns the work without the GEMMs and the attention whose outputs are saved; `kept` grows by those. Of
/// experts and their router nothing is: grouped GEMMs are not on torchtitan's list, and it excludes routers.
LayerWork without_kept(LayerWork work, int& gemm_number, Bytes& kept) {
  if (work.has_router()) return work;
  std::erase_if(work.kernels, [&](const Kernel& kernel) {
    if (const Gemm* gemm = kernel.gemm(); gemm != nullptr && gemm->has_weight()) {
      if (++gemm_number % 2 == 0) return false;
      work.forward_weights -= float32_bytes(gemm->columns * gemm->depth);
      kept += float32_bytes(gemm->rows * gemm->columns);
      return true;
    }
    const FusedAttention* fused = kernel.attention();
    if (fused != nullptr) kept += float32_bytes(fused->heads * fused->rows * (fused->value_size + 1.0));
    return fused != nullptr;
  });
  return work;
}

/// Adds the collectives of a forward that `is_repeated` to its repetition.
void repeat_collectives(Model& model, Segment& segment, const auto& is_repeated) {
  std::vector<int> repeated;
  for (const int number : segment.collectives) {
    LayerCollective one = model.collectives[number];
    if (one.backward || !is_repeated(one)) continue;
    one.name += ".recomputed";
    one.backward = true;
    one.work = static_cast<int>(segment.work.size());
    one.ready = 0;
    repeated.push_back(static_cast<int>(model.collectives.size()));
    model.collectives.push_back(one);
  }
  const auto first = std::ranges::find_if(segment.collectives,
                                          [&](int number) { return model.collectives[number].backward; });
  segment.collectives.insert(first, repeated.begin(), repeated.end());
}

/// Recomputes layers of experts from their input on: the work of the router and GEMMs, and that of the copies
/// after it.
bool recompute_experts(Model& model, Segment& segment) {
  bool any = false;
  for (std::size_t i = 0; i + 1 < segment.work.size(); ++i) {
    if (!segment.work[i].has_router()) continue;
    any = true;
    for (const LayerWork* work : {&segment.work[i], &segment.work[i + 1]}) {
      for (const Kernel& kernel : work->kernels) move_kept(kernel, segment);
      add_recomputed(work->kernels, work->forward_weights, segment);
    }
  }
  repeat_collectives(model, segment, [](const LayerCollective& one) {
    return one.group == LayerCollectiveGroup::kExpert || one.group == LayerCollectiveGroup::kExpertTensor;
  });
  return any;
}

void recompute_operations(Model& model, Segment& segment) {
  const std::size_t end = segment.needed_works();
  Bytes kept = segment.output_size;
  int number = 0;
  // The result of a reduce-scatter is saved (repeat_collectives), and with it what its layer computes from
  // that.
  const auto is_scattered = [&](std::size_t work) {
    return std::ranges::any_of(segment.collectives, [&](int which) {
      const LayerCollective& one = model.collectives[which];
      return !one.backward && one.kind == LayerCollectiveKind::kReduceScatter &&
             one.work == static_cast<int>(work);
    });
  };
  for (std::size_t i = 0; i < end; ++i)
    if (LayerWork work = without_kept(segment.work[i], number, kept); !is_scattered(i))
      add_recomputed(std::move(work.kernels), work.forward_weights, segment);
  // Recomputation makes everything that a backward needs and that was not saved. Outputs after it are saved
  // too, without use, unless the block is compiled.
  SavedBytes& again = segment.recomputed.saved;
  again.size = std::max(Bytes(0), segment.saved.size - kept);
  for (std::size_t i = end; i < segment.work.size() && !model.compiled(); ++i)
    without_kept(segment.work[i], number, kept);
  // torchtitan saves what is scattered or sent.
  repeat_collectives(model, segment, [&](const LayerCollective& one) {
    if (one.group == LayerCollectiveGroup::kExpert) kept += one.per_sample;
    if (one.group != LayerCollectiveGroup::kTensor) return false;
    const bool scatters = one.kind == LayerCollectiveKind::kReduceScatter;
    if (scatters) kept += (1.0 / model.parallel.tensor) * one.per_sample;
    return !scatters && one.work <= static_cast<int>(end);
  });
  again.masks = std::exchange(segment.saved.masks, Bytes(0));
  again.float32 = std::exchange(segment.saved.float32, Bytes(0));
  segment.saved.size = kept;
}

}  // namespace

std::string to_text(RecomputedPart part) {
  if (part == RecomputedPart::kNothing) return "none";
  if (part == RecomputedPart::kOperations) return "per-op";
  if (part == RecomputedPart::kCoreAttention) return "selective";
  const auto holds = [&](const Module& module) { return contains(part, module.part); };
  return joined(transformed(kModules | std::views::filter(holds), &Module::name), "+");
}

std::optional<RecomputedPart> recomputed_part(const std::string& text) {
  for (const RecomputedPart one :
       {RecomputedPart::kNothing, RecomputedPart::kOperations, RecomputedPart::kCoreAttention})
    if (text == to_text(one)) return one;
  unsigned sum = 0;
  for (const std::string& name : split(text, '+')) {
    const auto* const found = std::ranges::find(kModules, name, [](const Module& one) { return one.name; });
    if (found == kModules.end()) return {};
    sum |= static_cast<unsigned>(found->part);
  }
  if (sum == 0) return {};
  return static_cast<RecomputedPart>(sum);
}

std::vector<std::string> recomputed_modules() {
  return transformed(kModules, [](const Module& module) { return std::string(module.name); });
}

Model recomputing(Model model, RecomputedPart part) {
  model.recomputed_part = part;
  if (part == RecomputedPart::kNothing) return model;
  const auto refuse = [&](const std::string& name, const std::string& why) {
    throw InputError("--recompute " + name + ": '" + model.specification + "' " + why);
  };
  if (model.has_fixed_times()) refuse("of a part", "declares times of whole segments, not of their parts");
  if (part == RecomputedPart::kOperations || contains(part, RecomputedPart::kCoreAttention)) {
    if (model.parallel.ulysses) refuse(to_text(part), "splits heads by all-to-alls; take full");
    if (model.parallel.ring) refuse(to_text(part), "uses ring attention; take full");
  }
  if (part != RecomputedPart::kOperations) {
    for (const Module& module : kModules) {
      const bool inside =
          module.part == RecomputedPart::kExpertActivation || module.part == RecomputedPart::kSharedExpert;
      if (!contains(part, module.part) || (inside && contains(part, RecomputedPart::kExperts))) continue;
      const bool is_attention = module.part == RecomputedPart::kCoreAttention;
      if (!is_attention && !model.transformer_engine())
        refuse(module.name, "has no modules of Megatron; it needs transformer_engine=1");
      bool any = false;
      for (Segment& segment : model.segments)
        if (segment.has_backward())
          any = (module.part == RecomputedPart::kNorm      ? recompute_norms(segment.layers, segment)
                 : module.part == RecomputedPart::kExperts ? recompute_experts(model, segment)
                                                           : recompute_kernels(module.role, segment)) ||
                any;
      if (!any)
        refuse(is_attention ? "selective" : module.name,
               is_attention ? "has no attention that could be recomputed" : module.needs);
    }
    return model;
  }
  bool any = false;
  for (Segment& segment : model.segments) {
    if (!segment.repeated || !segment.has_backward()) continue;
    if (segment.any([](const Kernel& one) { return one.is(KernelRole::kScan); }))
      refuse("per-op", "has state-space layers, whose saved tensors are not known");
    any = true;
    recompute_operations(model, segment);
  }
  if (!any) refuse("per-op", "repeats no blocks");
  if (model.parallel.expert_tensor > 1) refuse("per-op", "divides experts; take full");
  return model;
}

}  // namespace stepcast

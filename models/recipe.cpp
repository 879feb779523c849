#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "models/model.hpp"

/// GEMMs in 8 and 4 bit (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), as in Transformer
/// Engine and torchao.
namespace stepcast {
namespace {

constexpr double kGranule = 16.0;  // rows of an operand are a multiple of this many elements

bool fits(const Gemm& gemm) {
  return gemm.has_weight() && !gemm.chooses && !gemm.adapts && std::fmod(gemm.columns, kGranule) == 0.0 &&
         std::fmod(gemm.depth, kGranule) == 0.0;
}

/// Casts of the operands of a segment's GEMMs.
struct Casts {
  const Recipe& recipe;
  const bool copies;         ///< a cast writes a transposed copy, too
  const bool casts_weights;  ///< they do not arrive cast
  const double parts;        ///< ranks that cast their own positions of arrays between layers
  const double width;        ///< features of these arrays

  /// Adds casts of the input, of weights that do not arrive cast, and of the gradients of the outputs.
  void add(LayerWork& work) {
    std::vector<Kernel> casts;
    int of_experts = work.has_router() ? 0 : 2;  // GEMMs so far: gate and up, down, the shared expert's
    if (recipe.casts_weights_each_time ||
        work.any([](const Kernel& one) { return one.is(KernelRole::kNorm); }))
      last = {};
    for (Kernel& kernel : work.kernels) {
      after_norm = after_norm || kernel.is(KernelRole::kNorm);
      Gemm* gemm = kernel.gemm();
      if (gemm == nullptr || !fits(*gemm)) continue;
      gemm->low = true;
      const auto times = static_cast<int>(gemm->times);
      const double inputs = gemm->rows * gemm->depth * gemm->times;
      const bool is_cast = gemm->shares_input || last == std::pair(gemm->rows, gemm->depth);
      ++of_experts;
      if (!is_cast)
        casts.push_back(cast(bytes(gemm->depth) - (after_norm ? recipe.fused : 0.0), inputs, times, true));
      if (!is_cast && of_experts == 2) casts.back().role = KernelRole::kExpertActivation;
      last = {};
      after_norm = false;
      if (casts_weights && recipe.casts_weights_each_time) {
        work.forward_weights += Bytes(others * gemm->columns * gemm->depth * gemm->times);
        casts.push_back(cast(0.0, 0.0, times, true));
      }
      casts.push_back(cast(bytes(gemm->columns), gemm->rows * gemm->columns * gemm->times, times, false));
      if (of_experts == 1) casts.back().role = KernelRole::kExpertActivation;
    }
    // Transformer Engine joins the GEMMs of gate and value, which follow each other in two works.
    if (work.kernels.size() == 1 && work.kernels.front().gemm() != nullptr && !recipe.casts_weights_each_time)
      last = {work.kernels.front().gemm()->rows, work.kernels.front().gemm()->depth};
    else if (!casts.empty() || work.any(&Kernel::attention))
      last = {};
    work.kernels.insert(work.kernels.end(), casts.begin(), casts.end());
  }

  [[nodiscard]] double bytes(double features) const { return features == width ? hidden : others; }
  [[nodiscard]] Kernel cast(double bytes, double elements, int times, bool forward) const {
    Kernel kernel{.launches = 0, .backward_launches = 0, .moved = Moved::kQuantized};
    (forward ? kernel.forward : kernel.backward) = Bytes(bytes * elements);
    (forward ? kernel.launches : kernel.backward_launches) = recipe.launches * times;
    return kernel;
  }

  /// Bytes that a cast moves per element, of arrays between layers and of others.
  const double others = recipe.cast + (copies ? 1.0 : 0.0);
  const double hidden = parts > 1.0 ? recipe.cast / parts + (copies ? 2.0 : 0.0) : others;
  bool after_norm = false;
  std::pair<double, double> last{};  ///< rows and depth of the linear layer before, whose input is cast
};

bool is_weight(const Parameter& parameter, const Segment& segment) {
  const auto rows = static_cast<double>(parameter.shape.front()),
             depth = static_cast<double>(parameter.shape.back());
  bool holds = false, routes = false;
  for (const LayerWork& work : segment.work)
    work.for_each_gemm([&](const Gemm& one) {
      if (one.depth != depth) return;
      holds = holds || (one.low && one.frozen == parameter.frozen && one.columns >= rows);
      routes = routes || (one.chooses && one.columns == rows);
    });
  return parameter.shape.size() == 2 && holds && !routes;
}

/// All-gathers of tensor parallelism move float8, and so do the copies of gathered arrays.
void narrow_collectives(Model& model, Segment& segment, double part) {
  for (const int index : segment.collectives) {
    LayerCollective& one = model.collectives[index];
    if (one.kind != LayerCollectiveKind::kAllGather || one.group != LayerCollectiveGroup::kTensor) continue;
    one.per_sample = part * one.per_sample;
    if (!model.parallel.batch_first || one.work == static_cast<int>(segment.work.size())) continue;
    for (Kernel& copied : segment.work[one.work].kernels) {
      Bytes& moved = one.backward ? copied.backward : copied.forward;
      moved = part * moved;
    }
  }
}

}  // namespace

const std::vector<Recipe>& recipes() {
  // Bytes per element: from Transformer Engine's code. fp8: torchao's dynamic scaling.
  static const std::vector<Recipe> kRecipes{
      {.name = "fp8", .cast = 3.0, .transposed = true, .casts_weights_each_time = true, .saves_uncast = true},
      {.name = "fp8-delayed", .cast = 3.0, .fused = 4.0, .scaled_by_tensor = true, .saves_attended = true},
      {.name = "fp8-current", .cast = 5.0, .fused = 2.0, .launches = 3, .scaled_by_tensor = true},
      {.name = "fp8-blockwise", .bytes = 1.0 + 4.0 / 128.0, .cast = 4.06, .copies = 2.06},
      {.name = "mxfp8", .bytes = 1.0 + 1.0 / 32.0, .cast = 4.06, .copies = 2.0625, .gathers_half = true},
      {.name = "nvfp4", .dtype = "float4", .bytes = 0.5625, .cast = 5.1, .launches = 2, .copies = 1.125}};
  return kRecipes;
}

const Recipe* recipe_of(const std::string& products) {
  const auto found = std::ranges::find(recipes(), products, &Recipe::name);
  return found == recipes().end() ? nullptr : &*found;
}

void quantize(Model& model, bool transposes) {
  const Recipe& recipe = *recipe_of(model.precision.products);
  const double part = recipe.bytes / bytes_of(model.precision.compute);
  const bool gathered = model.precision.gather != "none";
  const bool in_parts = model.parallel.tensor > 1 && model.parallel.sequence_parallel;
  const double copies = recipe.scaled_by_tensor && !transposes ? recipe.bytes : recipe.copies;
  bool any = false;
  for (Segment& segment : model.segments) {
    if (!segment.repeated) continue;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work}) {
      Casts casts{.recipe = recipe,
                  .copies = recipe.transposed || (transposes && recipe.scaled_by_tensor),
                  .casts_weights = !gathered || recipe.gathers_half,
                  .parts = in_parts ? 1.0 * model.parallel.tensor : 1.0,
                  .width = static_cast<double>(segment.output.back())};
      for (LayerWork& work : *works) casts.add(work);
    }
    SavedBytes& inputs =
        model.recomputed_part == RecomputedPart::kOperations ? segment.recomputed.saved : segment.saved;
    const Bytes own = segment.saved.gemm_inputs;
    if (!recipe.saves_uncast)
      inputs.size += (recipe.saves_attended ? part : 0.0) * segment.saved.attended - (1.0 - part) * own;
    else if (model.compiled())
      inputs.size -= own;
    narrow_collectives(model, segment, part);
    for (const int index : segment.all_parameters()) {
      Parameter& parameter = model.parameters[index];
      parameter.quantized = is_weight(parameter, segment);
      if (!parameter.quantized) continue;
      any = true;
      const auto count = static_cast<double>(parameter.numel());
      if (!gathered) {
        parameter.copies = Bytes(copies * count);
        parameter.casts = Bytes(0);
        continue;
      }
      const Bytes sent = recipe.gathers_half ? parameter.size : Bytes(recipe.bytes * count);
      if (!recipe.casts_weights_each_time) parameter.size = Bytes(copies * count);
      parameter.not_gathered = parameter.size - sent;
    }
  }
  if (!any)
    throw InputError(
        "precision {}: '{}' has no blocks of a `repeat` with linear layers whose sizes are "
        "multiples of 16; take bf16",
        recipe.name, model.specification);
}

}  // namespace stepcast

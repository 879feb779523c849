#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "models/model.hpp"

/// GEMMs in 8 and 4 bit (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), as in Transformer
/// Engine and torchao.
namespace stepcast {
namespace {

constexpr double kGranule = 16.0;                  // rows of an operand are a multiple of this many elements
constexpr double kMicroScaled = 1.0 + 1.0 / 32.0;  // bytes with a scale of 1 B for 32 elements

bool covers(const std::string& scope, bool expert) {
  return scope == "both" || expert == (scope == "experts");
}

bool fits(const Gemm& gemm, const std::string& scope) {
  return covers(scope, gemm.expert) && gemm.has_weight() && !gemm.chooses && !gemm.adapts &&
         std::fmod(gemm.columns, kGranule) == 0.0 && std::fmod(gemm.depth, kGranule) == 0.0;
}

/// Casts of the operands of a segment's GEMMs.
struct Casts {
  const Recipe& recipe;
  const bool copies;         ///< a cast writes a transposed copy of 1 B, too
  const bool casts_weights;  ///< they do not arrive cast
  const double parts;        ///< ranks that cast their own positions of arrays between layers
  const double width;        ///< features of these arrays
  const std::string& scope;  ///< Precision::scope

  /// Adds casts of the input, of weights that do not arrive cast, and of the gradients of the outputs.
  void add(LayerWork& work) {
    std::vector<Kernel> casts;
    int of_experts = work.has_router() ? 0 : 2;  // GEMMs so far: gate and up, down, the shared expert's
    if (recipe.casts_each_time() || work.any([](const Kernel& one) { return one.is(KernelRole::kNorm); }))
      last = {};
    for (Kernel& kernel : work.kernels) {
      after_norm = after_norm || kernel.is(KernelRole::kNorm);
      Gemm* gemm = kernel.gemm();
      if (gemm == nullptr || !fits(*gemm, scope)) continue;
      gemm->low = true;
      const auto times = static_cast<int>(gemm->times);
      const double inputs = gemm->rows * gemm->depth * gemm->times;
      const bool is_cast = gemm->shares_input || last == std::pair(gemm->rows, gemm->depth);
      ++of_experts;
      if (!is_cast) {
        casts.push_back(cast(bytes(recipe.casts.input, gemm->depth) - (after_norm ? recipe.casts.fused : 0.0),
                             inputs, times, true));
        if (of_experts == 2) casts.back().role = KernelRole::kExpertActivation;
        if (recipe.casts.input_backward > 0.0 && gemm->trains_weight())
          casts.push_back(cast(recipe.casts.input_backward, inputs, times, false));
      }
      last = {};
      after_norm = false;
      if (recipe.casts_each_time()) add_weight(*gemm, work, casts);
      const bool rows_alone = recipe.casts_each_time() && !gemm->trains_weight();
      const double gradient = rows_alone ? recipe.casts.input : recipe.casts.gradient;
      casts.push_back(
          cast(bytes(gradient, gemm->columns), gemm->rows * gemm->columns * gemm->times, times, false));
      if (of_experts == 1) casts.back().role = KernelRole::kExpertActivation;
    }
    // Transformer Engine joins the GEMMs of gate and value, which follow each other in two works.
    if (work.kernels.size() == 1 && work.kernels.front().gemm() != nullptr && !recipe.casts_each_time())
      last = {work.kernels.front().gemm()->rows, work.kernels.front().gemm()->depth};
    else if (!casts.empty() || work.any(&Kernel::attention))
      last = {};
    work.kernels.insert(work.kernels.end(), casts.begin(), casts.end());
  }

  /// Casts of a weight; one that arrives cast is read and written by columns in the backward.
  void add_weight(const Gemm& gemm, LayerWork& work, std::vector<Kernel>& casts) const {
    const double elements = gemm.columns * gemm.depth * gemm.times;
    const auto times = static_cast<int>(gemm.times);
    if (casts_weights) {
      work.forward_weights += Bytes(recipe.casts.weight * elements);
      casts.push_back(cast(0.0, 0.0, times, true));
    }
    work.backward_weights +=
        Bytes((casts_weights ? recipe.casts.weight_backward : 2.0 * recipe.bytes) * elements);
    casts.push_back(cast(0.0, 0.0, times, false));
  }

  /// Bytes per element of an input or gradient. Arrays between layers are cast by all tensor-parallel ranks
  /// together, each its part.
  [[nodiscard]] double bytes(double moved, double features) const {
    const double transposed = copies ? 1.0 : 0.0;
    return features == width && parts > 1.0 ? moved / parts + 2.0 * transposed : moved + transposed;
  }
  [[nodiscard]] Kernel cast(double bytes, double elements, int times, bool forward) const {
    Kernel kernel{.launches = 0, .backward_launches = 0, .experts = times, .moved = Moved::kQuantized};
    (forward ? kernel.forward : kernel.backward) = Bytes(bytes * elements);
    (forward ? kernel.launches : kernel.backward_launches) = recipe.casts.launches * times;
    return kernel;
  }

  bool after_norm = false;
  std::pair<double, double> last{};  ///< rows and depth of the linear layer before, whose input is cast
};

/// Of the inputs that GEMMs with weights save, the part that is cast.
double cast_part(const Segment& segment) {
  double cast = 0.0, all = 0.0;
  for (const LayerWork& work : segment.work)
    work.for_each_gemm([&](const Gemm& one) {
      const double input = one.has_weight() && !one.shares_input ? one.rows * one.depth * one.times : 0.0;
      all += input;
      cast += one.low ? input : 0.0;
    });
  return all > 0.0 ? cast / all : 0.0;
}

bool is_weight(const Parameter& parameter, const Segment& segment, const std::string& scope) {
  const auto rows = static_cast<double>(parameter.shape.front()),
             depth = static_cast<double>(parameter.shape.back());
  bool holds = false, routes = false;
  for (const LayerWork& work : segment.work)
    work.for_each_gemm([&](const Gemm& one) {
      if (one.depth != depth) return;
      holds = holds || (one.low && one.frozen == parameter.frozen && one.columns >= rows);
      routes = routes || (one.chooses && one.columns == rows);
    });
  const bool expert = parameter.name.find(".experts.") != std::string::npos;
  return parameter.shape.size() == 2 && holds && !routes && covers(scope, expert);
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
  // Bytes per element (input in forward and backward, gradient, weight in both; what a norm saves), kernels:
  // from Transformer Engine's code. torchao, fp8: a pass for the largest element of a tensor, 2, and a cast,
  // 3, in the forward, a cast by columns in the backward, where gradients are read once for both; with scales
  // by rows the cast alone, and by columns a transposed copy in 16 bit, 4, before it.
  static const std::vector<Recipe> kRecipes{
      {.name = "fp8", .casts = {5.0, 3.0, 6.0, 5.0, 3.0, 0.0, 2}},
      {.name = "fp8-rowwise",
       .casts = {3.0, 7.0, 10.0, 3.0, 7.0, 0.0, 2},
       .rates = "fp8",
       .bytes = 1.001,
       .sends_half = true},
      {.name = "fp8-rowwise-gw-hp",
       .casts = {3.0, 0.0, 3.0, 3.0, 5.0},
       .rates = "fp8",
       .bytes = 1.001,
       .sends_half = true,
       .exact_gradients = true},
      {.name = "fp8-delayed", .casts = {.fused = 4.0}, .scaled_by_tensor = true, .saves_attended = true},
      {.name = "fp8-current",
       .casts = {.input = 5.0, .gradient = 5.0, .fused = 2.0, .launches = 3},
       .scaled_by_tensor = true},
      {.name = "fp8-blockwise",
       .casts = {.input = 4.06, .gradient = 4.06},
       .bytes = 1.0 + 4.0 / 128.0,
       .copies = 2.0 + 8.0 / (128.0 * 128.0)},
      {.name = "mxfp8",
       .casts = {.input = 4.06, .gradient = 4.06},
       .bytes = kMicroScaled,
       .copies = 2.0 * kMicroScaled,
       .gathers_half = true},
      {.name = "mxfp8-torchao",
       .casts = {3.03, 3.03, 6.06, 3.03, 3.03, 0.0, 2},
       .rates = "mxfp8",
       .bytes = kMicroScaled,
       .sends_half = true},
      {.name = "nvfp4",
       .casts = {.input = 5.1, .gradient = 5.1, .launches = 2},
       .dtype = "float4",
       .bytes = 0.5625,
       .copies = 1.125}};
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
  const bool one_copy = recipe.scaled_by_tensor && !transposes;
  const double copies = recipe.casts_each_time() ? 0.0 : one_copy ? recipe.bytes : recipe.copies;
  bool any = false;
  for (Segment& segment : model.segments) {
    if (!segment.repeated) continue;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work}) {
      Casts casts{.recipe = recipe,
                  .copies = transposes && recipe.scaled_by_tensor,
                  .casts_weights = !gathered || recipe.gathers_half,
                  .parts = in_parts && !recipe.sends_half ? 1.0 * model.parallel.tensor : 1.0,
                  .width = static_cast<double>(segment.output.back()),
                  .scope = model.precision.scope};
      for (LayerWork& work : *works) casts.add(work);
    }
    SavedBytes& inputs =
        model.recomputed_part == RecomputedPart::kOperations ? segment.recomputed.saved : segment.saved;
    const Bytes own = segment.saved.gemm_inputs;
    if (!recipe.casts_each_time())
      inputs.size += (recipe.saves_attended ? part : 0.0) * segment.saved.attended - (1.0 - part) * own;
    else if (model.compiled())
      inputs.size -= model.precision.scope == "both" ? own : cast_part(segment) * own;
    if (!recipe.sends_half && model.precision.scope != "experts") narrow_collectives(model, segment, part);
    for (const int index : segment.all_parameters()) {
      Parameter& parameter = model.parameters[index];
      parameter.quantized = is_weight(parameter, segment, model.precision.scope);
      if (!parameter.quantized) continue;
      any = true;
      const auto count = static_cast<double>(parameter.numel());
      if (!gathered) {
        parameter.copies = Bytes(copies * count);
        parameter.casts = Bytes(0);
        continue;
      }
      const Bytes sent = recipe.gathers_half ? parameter.size : Bytes(recipe.bytes * count);
      if (!recipe.casts_each_time()) parameter.size = Bytes(copies * count);
      parameter.not_gathered = parameter.size - sent;
    }
  }
  if (!any)
    throw InputError(
        "precision {}: '{}' has no blocks of a `repeat` with {} whose sizes are multiples of 16; take bf16",
        recipe.name, model.specification, model.precision.scope == "experts" ? "experts" : "linear layers");
}

}  // namespace stepcast

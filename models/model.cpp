#include "models/model.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/layer.hpp"
#include "models/muon.hpp"

namespace stepcast {

std::int64_t Parameter::numel() const { return stepcast::numel(shape); }

bool Segment::predicts_later_tokens() const {
  return std::ranges::any_of(layers, [](const Layer& layer) { return layer.kind == kNextTokens; });
}

std::vector<int> Segment::all_parameters() const {
  std::vector<int> all = parameters;
  all.insert(all.end(), frozen.own.begin(), frozen.own.end());
  return all;
}

double Segment::weight_part() const {
  if (!passes_gradient()) return 1.0;
  if (fixed || layers.front().kind == "traced") return trains() ? 0.5 : 0.0;
  const Flop all = sum_of(work, [](const LayerWork& one) { return one.backward() + one.recomputed(); }) +
                   sum_of(recomputed.work, &LayerWork::forward);
  return all > Flop(0) ? sum_of(work, &LayerWork::weight_gradients) / all : 0.0;
}

std::size_t Segment::needed_works() const {
  for (std::size_t i = work.size(); i-- > 0;) {
    if (work[i].has_router()) return work.size();
    // The second GEMM of an adapter reads what the first one gives.
    const auto adapts = [](const Kernel& one) { return one.gemm() != nullptr && one.gemm()->adapts; };
    if (work[i].has_weight()) return work[i].any(adapts) ? i + 1 : i;
    const auto saves = [](const Kernel& one) {
      return !one.is(KernelRole::kResidual) && !one.is(KernelRole::kLeave);
    };
    if (work[i].any(saves)) return i + 1;
  }
  return 0;
}

double Segment::needed_part() const {
  const Flop all = sum_of(work, &LayerWork::forward);
  return all > Flop(0) ? sum_of(std::span(work).first(needed_works()), &LayerWork::forward) / all : 1.0;
}

bool Segment::needs(const LayerCollective& one) const { return one.work <= static_cast<int>(needed_works()); }

Bytes Model::parameter_bytes() const { return sum_of(parameters, &Parameter::size); }

Bytes Model::parameter_bytes(const Segment& segment) const {
  return sum_of(segment.all_parameters(), [&](int i) { return parameters[i].size; });
}

Bytes Model::trained_bytes(const Segment& segment) const {
  return sum_of(segment.parameters, [&](int i) { return parameters[i].size; });
}

Bytes Model::gradient_bytes(const Segment& segment) const {
  return sum_of(segment.parameters, [&](int i) { return parameters[i].gradient; });
}

Bytes Model::update_traffic(double count) const {
  if (optimizer.kind == "none") return Bytes(0);
  const double kept = bytes_of(precision.master), written = bytes_of(precision.parameters);
  const double weights = kept > 0.0 ? 2.0 * kept + written : 2.0 * written;
  const double more = execution.update == "fused" ? 0.0 : optimizer.states() == 2 ? 13.0 : 3.0;
  const double states = (2.0 * optimizer.states() + (optimizer.states() > 0 ? more : 0.0));
  return Bytes((read_gradient() + weights + states * bytes_of(precision.optimizer)) * count);
}

double Model::read_gradient() const {
  const double passes = 1.0 + (has_choice(execution.gradient_passes, "norm") ? 1.0 : 0.0) +
                        (has_choice(execution.gradient_passes, "scale") ? 2.0 : 0.0);
  return passes * element_of_gradient();
}

double Model::host_gradient() const { return std::max(element_of_gradient(), bytes_of(precision.master)); }

Bytes Model::host_update_traffic(double count, bool reads_norm, bool writes) const {
  const bool norm_on_gpu = !reads_norm && has_choice(execution.gradient_passes, "norm");
  const double reads = read_gradient() / element_of_gradient() - (norm_on_gpu ? 1.0 : 0.0);
  const double written = writes ? 0.0 : bytes_of(precision.parameters);
  return update_traffic(count) + Bytes(count * (reads * host_gradient() - read_gradient() - written));
}

double Model::shard_update(bool gathers) const {
  if (optimizer.kind == "none" || optimizer.muon) return 1.0;
  const double master = bytes_of(precision.master), stored = bytes_of(precision.parameters);
  const bool casts = gathers && !transformer_engine();
  const double element = !casts ? bytes_of(precision.reduction) : master > 0.0 ? master : stored;
  const double read = read_gradient() * (element / element_of_gradient() - 1.0);
  return 1.0 + (read - (casts && master > 0.0 ? stored : 0.0)) / update_traffic(1.0).count();
}

Bytes Model::optimizer_bytes(double count, double muon_count) const {
  if (optimizer.kind == "none") return Bytes(0);
  const double state = bytes_of(precision.optimizer), states = optimizer.states();
  return Bytes((bytes_of(precision.master) + states * state) * count - (states - 1.0) * state * muon_count);
}

Bytes Model::update_traffic(const Segment& segment) const {
  double others = 0.0;
  Bytes traffic;
  for (const int index : segment.parameters)
    if (by_muon(parameters[index]))
      traffic += muon_update(*this, parameters[index]).traffic(true);
    else
      others += static_cast<double>(parameters[index].numel());
  return traffic + update_traffic(others);
}

std::int64_t Model::parameter_count() const { return sum_of(parameters, &Parameter::numel); }

std::int64_t Model::trained_count(const Segment& segment) const {
  return sum_of(segment.parameters, [&](int i) { return parameters[i].numel(); });
}

std::vector<int> Model::trained() const {
  return filtered(whole_numbers(0, parameters.size()), [&](int i) { return !parameters[i].frozen; });
}

std::int64_t Model::trained_count() const {
  return sum_of(parameters, [](const Parameter& one) { return one.frozen ? 0 : one.numel(); });
}

std::vector<int> Model::ready_order() const {
  std::vector<int> order;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment)
    order.insert(order.end(), segment->parameters.begin(), segment->parameters.end());
  return order;
}

Flop Model::forward_flop() const {
  return sum_of(segments, [](const Segment& one) { return one.flop.forward; });
}

std::vector<std::int64_t> Model::positions(int part, std::int64_t count) const {
  const std::int64_t chunk = parallel.ring ? count / 2 : count;
  std::vector<std::int64_t> result(count);
  std::iota(result.begin(), result.end(), part * chunk);
  if (parallel.ring)
    std::iota(result.begin() + chunk, result.end(), (2 * parallel.context - 1 - part) * chunk);
  return result;
}

int Model::ranks_of(const LayerCollective& collective) const {
  // In the order of LayerCollectiveGroup.
  const std::array sizes{parallel.tensor, parallel.context, parallel.expert, parallel.expert_tensor};
  return sizes.at(static_cast<std::size_t>(collective.group));
}

bool Model::shares_classes() const {
  const Shape& output = segments.back().output;
  return parallel.tensor > 1 && output.size() == 2 && parallel.tensor * output.back() == loss.classes;
}

Bytes Model::input_bytes() const {
  const double element = input.kind == "tokens" ? 8.0 : 4.0;  // int64, float32
  return input.shape.empty() ? Bytes(0) : Bytes(element * static_cast<double>(numel(input.shape)));
}

Bytes Model::buffer_bytes(int dtype_group) const {
  const bool integers = dtype_group == 1;
  return sum_of(buffers, [&](const Buffer& b) { return b.is_integer == integers ? b.size : Bytes(0); });
}

bool Model::transformer_engine() const { return value_or(settings, kTransformerEngine, 0) != 0; }

bool Model::compiled() const {
  const std::int64_t eager = value_or(settings, "eager_blocks", value_or(settings, "eager", 0));
  return value_or(settings, kCompiled, 0) != 0 && eager == 0;
}

bool Model::compiles_loss() const {
  return value_or(settings, kCompiled, 0) != 0 && !loss.eager && !shares_classes();
}

bool Model::has_experts() const { return has_kernel(&Kernel::is_router); }

Model in_precision(Model model, const Precision& precision, bool byte_masks, bool transposes) {
  model.precision = precision;
  for (Parameter& parameter : model.parameters) {
    const auto count = static_cast<double>(parameter.numel());
    parameter.size = Bytes(bytes_of(precision.parameters) * count);
    if (parameter.frozen) continue;
    parameter.gradient = Bytes(bytes_of(precision.gradients) * count);
    parameter.reduced = Bytes(bytes_of(precision.reduction) * count);
  }
  const double part = bytes_of(precision.compute) / bytes_of("fp32");
  if (part < 1.0 && bytes_of(precision.parameters) == bytes_of("fp32")) autocast(model);
  for (LayerCollective& one : model.collectives) {  // the loss computes in fp32
    if (one.segment >= 0 && !one.in_float32) one.per_sample = part * one.per_sample;
    // As Parameter::accumulated().
    one.fixed = std::min(1.0, bytes_of(precision.gradients) / bytes_of("fp32")) * one.fixed;
  }
  const double mask_part = byte_masks ? 1.0 / bytes_of("fp32") : part;
  const auto width = [&](Moved moved) {  // over that of fp32
    if (moved == Moved::kFloat32) return 1.0;
    if (moved == Moved::kCast) return part < 1.0 ? part + 1.0 : 0.0;
    return moved == Moved::kNoise && byte_masks ? 0.0 : part;
  };
  for (Segment& segment : model.segments) {
    for (SavedBytes* saved : {&segment.saved, &segment.recomputed.saved}) {
      saved->size =
          part * (saved->size - saved->float32 + (mask_part / part - 1.0) * saved->masks) + saved->float32;
      saved->masks = mask_part * saved->masks;
      for (Bytes* inputs : {&saved->gemm_inputs, &saved->attended}) *inputs = part * *inputs;
    }
    for (Bytes* bytes : {&segment.traffic.forward, &segment.traffic.backward, &segment.output_size,
                         &segment.saved.workspace.forward, &segment.saved.workspace.backward})
      *bytes = part * *bytes;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work})
      for (LayerWork& work : *works) {
        for (Kernel& kernel : work.kernels) {
          for (Bytes* bytes : {&kernel.forward, &kernel.backward}) *bytes = width(kernel.moved) * *bytes;
          if (kernel.moved == Moved::kCast) kernel.moved = Moved::kCompute;
        }
        for (Bytes* bytes : {&work.forward_weights, &work.backward_weights}) *bytes = part * *bytes;
      }
  }
  if (precision.products != "none") quantize(model, transposes);
  return model;
}

Model in_documents(Model model, int length) {
  if (length == 0) return model;
  const auto refuse = [&](const std::string& why) {
    throw UsageError("--documents {}: {} {}", length, model.specification, why);
  };
  if (model.input.kind != "tokens") refuse("has no sequences of tokens");
  const double sequence = static_cast<double>(model.input.shape.front()) * model.parallel.context;
  if (length > sequence) refuse(fmt::format("has sequences of {:.0f} tokens; take at most these", sequence));
  model.input.documents = length;
  bool masks = false;
  for (Segment& segment : model.segments)
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work})
      for (LayerWork& work : *works)
        for (Kernel& kernel : work.kernels) {
          auto* fused = std::get_if<FusedAttention>(&kernel.computes);
          if (fused == nullptr) continue;
          const double before = fused->seen();
          fused->documents = sequence / length;
          const Flop flop = std::exchange(kernel.flop, fused->seen() / before * kernel.flop);
          masks = true;
          if (works != &segment.work) continue;
          segment.flop.forward += kernel.useful * (kernel.flop - flop);
          segment.flop.backward += work.gradients * kernel.useful * (kernel.flop - flop);
        }
  if (!masks)
    refuse("has no attention in one kernel, which skips other documents (flash=1 where it can be set)");
  return model;
}

Model declared_for(const Model& model, int batch, int micro_batches) {
  const std::string& per = model.input.declared_per;
  if (per.empty() && (batch != 1 || micro_batches != 1))
    throw InputError(model.path + ": key 'per' is missing; batch " + std::to_string(batch) + " in " +
                     std::to_string(micro_batches) +
                     " micro-batches needs to know if declared times are per `sample` or per `batch`");
  const double part = 1.0 / micro_batches;
  const double time = per == "sample" ? batch * part : part;
  const double output = per == "batch" ? 1.0 / batch : 1.0;
  Model result = model;
  for (Segment& segment : result.segments) {
    segment.fixed->forward *= time;
    segment.fixed->backward *= time;
    segment.output_size = output * segment.output_size;
  }
  return result;
}

bool Model::has_fixed_times() const {
  return std::ranges::all_of(segments, [](const Segment& s) { return s.fixed.has_value(); });
}

}  // namespace stepcast

#include "models/model.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "models/layer.hpp"

namespace stepcast {

std::int64_t Parameter::numel() const { return stepcast::numel(shape); }

namespace {

/// Of what `part` takes of each of the things.
template <class Things, class Part>
auto total(const Things& things, Part part) {
  std::decay_t<std::invoke_result_t<Part, typename Things::const_reference>> sum{};
  for (const auto& thing : things) sum += std::invoke(part, thing);
  return sum;
}

}  // namespace

double LayerWork::weight_products() const {
  return total(products, [](const Gemm& one) { return one.heads > 0.0 ? 0.0 : one.times; });
}

Flop LayerWork::weight_gradients() const {
  return total(products, [](const Gemm& one) {
    return Flop(one.heads > 0.0 ? 0.0 : 2.0 * one.rows * one.columns * one.depth * one.times);
  });
}

double LayerWork::product_outputs() const {
  return total(products,
               [](const Gemm& one) { return one.heads > 0.0 ? 0.0 : one.rows * one.columns * one.times; });
}

double Segment::weight_part(bool hands_on) const {
  if (!hands_on) return 1.0;
  if (fixed_backward) return trains() ? 0.5 : 0.0;
  const Flop all = total(work, [](const LayerWork& one) { return one.backward + one.again; }) +
                   total(recomputed, &LayerWork::forward);
  return all > Flop(0) ? total(work, &LayerWork::weight_gradients) / all : 0.0;
}

int Optimizer::states() const { return kind == "adam" ? 2 : kind == "sgd" && momentum > 0.0 ? 1 : 0; }

Bytes Model::parameter_bytes() const { return total(parameters, &Parameter::size); }

Bytes Model::parameter_bytes(const Segment& segment) const {
  return total(segment.parameters, [&](int i) { return parameters[static_cast<std::size_t>(i)].size; });
}

Bytes Model::gradient_bytes() const { return total(parameters, &Parameter::gradient); }

Bytes Model::gradient_bytes(const Segment& segment) const {
  return total(segment.parameters, [&](int i) { return parameters[static_cast<std::size_t>(i)].gradient; });
}

Bytes Model::update_traffic(double count) const {
  if (optimizer.kind == "none") return Bytes(0);
  const double kept = bytes_of(precision.master);
  const double written = bytes_of(precision.parameters);
  const double weights = kept > 0.0 ? 2.0 * kept + written : 2.0 * written;
  return Bytes(
      (bytes_of(precision.gradients) + weights + 2.0 * optimizer.states() * bytes_of(precision.optimizer)) *
      count);
}

Bytes Model::optimizer_bytes(double count) const {
  if (optimizer.kind == "none") return Bytes(0);
  return Bytes((bytes_of(precision.master) + optimizer.states() * bytes_of(precision.optimizer)) * count);
}

std::int64_t Model::parameter_count(const Segment& segment) const {
  return total(segment.parameters, [&](int i) { return parameters[static_cast<std::size_t>(i)].numel(); });
}

std::int64_t Model::parameter_count() const { return total(parameters, &Parameter::numel); }

Flop Model::forward_flop() const { return total(segments, &Segment::forward); }

std::vector<std::int64_t> Model::positions(int part, std::int64_t count) const {
  const std::int64_t chunk = ring ? count / 2 : count;
  std::vector<std::int64_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), part * chunk);
  if (ring) std::iota(result.begin() + chunk, result.end(), (2 * context - 1 - part) * chunk);
  return result;
}

int Model::ranks_of(const LayerCollective& exchange) const {
  switch (exchange.group) {
    case ExchangeGroup::kTensor:
      return tensor;
    case ExchangeGroup::kContext:
      return context;
    case ExchangeGroup::kExpert:
      break;
  }
  return expert;
}

bool Model::shares_classes() const {
  const Shape& output = segments.back().output;
  return tensor > 1 && output.size() == 2 && tensor * output.back() == classes;
}

Bytes Model::input_bytes() const {
  const double element = input_kind == "tokens" ? 8.0 : 4.0;  // int64, float32
  return input.empty() ? Bytes(0) : Bytes(element * static_cast<double>(numel(input)));
}

Bytes Model::buffer_bytes(int dtype_group) const {
  const bool integers = dtype_group == 1;
  return total(buffers, [&](const Buffer& b) { return b.is_integer == integers ? b.size : Bytes(0); });
}

Model in_precision(Model model, const Precision& precision, bool byte_masks) {
  model.precision = precision;
  for (Parameter& parameter : model.parameters) {
    const auto count = static_cast<double>(parameter.numel());
    parameter.size = Bytes(bytes_of(precision.parameters) * count);
    parameter.gradient = Bytes(bytes_of(precision.gradients) * count);
    parameter.reduced = Bytes(bytes_of(precision.reduction) * count);
  }
  const double part = bytes_of(precision.compute) / bytes_of("fp32");
  for (LayerCollective& exchange : model.exchanges) {  // the loss computes in fp32
    if (exchange.segment >= 0) exchange.per_sample = part * exchange.per_sample;
    exchange.fixed = bytes_of(precision.gradients) / bytes_of("fp32") * exchange.fixed;
  }
  const double mask_part = byte_masks ? 1.0 / bytes_of("fp32") : part;
  const double cast = part < 1.0 ? bytes_of(precision.compute) + bytes_of("fp32") : 0.0;
  const auto narrow = [&](Bytes& traffic, double in_float32, double casts) {
    const Bytes stays(bytes_of("fp32") * in_float32);
    traffic = part * (traffic - stays) + stays + Bytes(cast * casts);
  };
  for (Segment& segment : model.segments) {
    for (const auto& [size, mask_size, float32_size] :
         {std::tuple{&segment.saved_size, &segment.mask_size, segment.float32_size},
          {&segment.recomputed_size, &segment.recomputed_mask_size, segment.recomputed_float32_size}}) {
      const Bytes masks = *mask_size;
      *mask_size = mask_part * masks;
      *size = part * (*size - float32_size + (mask_part / part - 1.0) * masks) + float32_size;
    }
    for (Bytes* bytes :
         {&segment.forward_traffic, &segment.backward_traffic, &segment.output_size, &segment.linear_size})
      *bytes = part * *bytes;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed})
      for (LayerWork& work : *works) {
        if (byte_masks) {
          work.forward_traffic = work.forward_traffic - std::exchange(work.forward_cpu_only, Bytes(0));
          work.backward_traffic = work.backward_traffic - std::exchange(work.backward_spared, Bytes(0));
        }
        const InFloat32& wide = work.in_float32;
        narrow(work.forward_traffic, wide.forward, wide.forward_casts);
        narrow(work.backward_traffic, wide.backward, wide.backward_casts);
        for (Bytes* bytes : {&work.forward_weights, &work.backward_weights}) *bytes = part * *bytes;
      }
  }
  if (precision.products == "fp8") multiply_in_float8(model);
  return model;
}

Model declared_for(const Model& model, int batch, int micro_batches) {
  if (model.per.empty() && (batch != 1 || micro_batches != 1))
    throw InputError(model.path + ": key 'per' is missing; batch " + std::to_string(batch) + " in " +
                     std::to_string(micro_batches) +
                     " parts needs to know whether declared times are of one `sample` or of a whole `batch`");
  const double part = 1.0 / micro_batches;
  const double time = model.per == "sample" ? batch * part : part;
  const double output = model.per == "batch" ? 1.0 / batch : 1.0;
  Model result = model;
  for (Segment& segment : result.segments) {
    *segment.fixed_forward *= time;
    *segment.fixed_backward *= time;
    segment.output_size = output * segment.output_size;
  }
  return result;
}

bool Model::has_fixed_times() const {
  return std::ranges::all_of(segments, [](const Segment& s) { return s.fixed_forward.has_value(); });
}

}  // namespace stepcast

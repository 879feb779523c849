#include "models/model.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "models/layer.hpp"

namespace stepcast {

std::int64_t Parameter::numel() const { return stepcast::numel(shape); }

double Optimizer::update_accesses() const {
  if (kind == "none") return 0.0;
  if (kind == "adam") return 7.0;
  return momentum > 0.0 ? 5.0 : 3.0;
}

Bytes Model::parameter_bytes() const {
  Bytes total;
  for (const Parameter& parameter : parameters) total += parameter.size;
  return total;
}

Bytes Model::parameter_bytes(const Segment& segment) const {
  Bytes total;
  for (const int index : segment.parameters) total += parameters[static_cast<std::size_t>(index)].size;
  return total;
}

std::int64_t Model::parameter_count() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters) total += parameter.numel();
  return total;
}

Flop Model::forward_flop() const {
  Flop total;
  for (const Segment& segment : segments) total += segment.forward;
  return total;
}

Bytes Model::input_bytes() const {
  const double element = input_kind == "tokens" ? 8.0 : 4.0;  // int64, float32
  return input.empty() ? Bytes(0) : Bytes(element * static_cast<double>(numel(input)));
}

Bytes Model::buffer_bytes(int dtype_group) const {
  Bytes total;
  for (const Buffer& buffer : buffers)
    if (buffer.is_integer == (dtype_group == 1)) total += buffer.size;
  return total;
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
  return std::all_of(segments.begin(), segments.end(),
                     [](const Segment& s) { return s.fixed_forward.has_value(); });
}

}  // namespace stepcast

#include "models/operators.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <ranges>

#include "core/enum_table.hpp"
#include "core/yaml.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

enum class Form : std::uint8_t {
  kMoves,
  kView,
  kLinear,
  kMatrix,
  kBatched,
  kConvolution,
  kTransposed,
  kAttention
};

struct OperatorRow : ElementCost {
  Form form = Form::kMoves;
};

using OperatorRows = std::map<std::string, OperatorRow>;

OperatorRows read_rows() {
  constexpr auto kForms = enum_names<Form>("moves", "view", "linear", "matrix", "batched", "convolution",
                                           "transposed", "attention");
  OperatorRows rows;
  for (const YamlNode& node : YamlNode::shipped("models/operators/operators.yaml").items()) {
    node.allow_only({"form", "flop", "forward", "backward", "kept", "names"});
    const OperatorRow row{read_element_cost(node), value_of(kForms, "form", node.text_or("form", "moves"))};
    for (const YamlNode& name : node.items("names")) rows[name.text()] = row;
  }
  return rows;
}

const OperatorRow* row_named(std::string name) {
  static const OperatorRows kRows = read_rows();
  while (name.size() > 1 && name.ends_with('_')) name.pop_back();  // in place
  const auto found = kRows.find(name);
  return found == kRows.end() ? nullptr : &found->second;
}

double product(const Shape& shape, std::size_t from = 0) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(std::min(from, shape.size())),
                         shape.end(), 1.0, std::multiplies());
}
double last(const Shape& shape, std::size_t place = 1) {
  return shape.size() < place ? 1.0 : static_cast<double>(shape[shape.size() - place]);
}

/// Batched product of two activations, or of an activation and a weight.
Gemm batched(const OperatorCall& call, const OperatorTensor& a, const OperatorTensor& b, double batch) {
  const double columns = last(call.output.shape), depth = last(a.shape);
  if (b.weight || b.shape.size() < 3)
    return {.rows = product(call.output.shape) / columns / batch, .columns = columns, .depth = depth};
  const double rows = last(call.output.shape, 2);
  return {.rows = rows,
          .columns = columns,
          .depth = depth,
          .heads = product(call.output.shape) / (rows * columns) / batch};
}

Gemm gemm_of(const OperatorCall& call, Form form, double batch) {
  const std::vector<OperatorTensor>& in = call.inputs;
  const double outputs = product(call.output.shape);
  if (form == Form::kLinear)
    return {outputs / last(call.output.shape) / batch, last(call.output.shape), last(in.at(1).shape)};
  if (form == Form::kConvolution || form == Form::kTransposed) {
    const auto channels = static_cast<double>(in.at(1).shape.at(0));
    const double others = product(in[1].shape, 1);
    if (form == Form::kConvolution) return {outputs / channels / batch, channels, others};
    return {product(in[0].shape) / channels / batch, others, channels};
  }
  const std::size_t first = in.size() > 2 ? 1 : 0;  // of addmm and baddbmm behind what is added
  return batched(call, in.at(first), in.at(first + 1), batch);
}

FusedAttention attention_of(const OperatorCall& call, double batch) {
  const Shape &q = call.inputs.at(0).shape, &k = call.inputs.at(1).shape, &v = call.inputs.at(2).shape;
  const auto heads = [&](const Shape& shape) {
    return product(shape) / last(shape) / last(shape, 2) / batch;
  };
  return {.heads = heads(q),
          .kv_heads = heads(k),
          .rows = last(q, 2),
          .keys = last(k, 2),
          .head_size = last(q),
          .value_size = last(v),
          .causal = call.causal};
}

}  // namespace

bool knows_operator(const std::string& name) { return row_named(name) != nullptr; }

bool has_operands(const OperatorCall& call) {
  const OperatorRow* known = row_named(call.name);
  if (known == nullptr || known->form == Form::kMoves || known->form == Form::kView) return true;
  const bool matrices = known->form == Form::kMatrix || known->form == Form::kBatched;
  const std::size_t first = matrices && call.inputs.size() > 2 ? 1 : 0;
  const std::size_t count = known->form == Form::kAttention ? 3 : 2;
  if (call.inputs.size() < first + count) return false;
  const std::size_t dimensions = matrices || known->form == Form::kLinear ? 1 : 2;
  const auto is_filled = [](const Shape& shape) {
    return std::ranges::all_of(shape, [](auto extent) { return extent > 0; });
  };
  return std::ranges::all_of(call.inputs | std::views::drop(first) | std::views::take(count),
                             [&](const OperatorTensor& tensor) {
                               return tensor.shape.size() >= dimensions && is_filled(tensor.shape);
                             }) &&
         is_filled(call.output.shape);
}

OperatorCost cost_of(const OperatorCall& call, double batch) {
  const OperatorRow* known = row_named(call.name);
  OperatorCost cost;
  double in = 0.0, all = 0.0, weights = 0.0;
  for (const OperatorTensor& tensor : call.inputs) (tensor.weight ? weights : all) += tensor.numbers;
  if (!call.inputs.empty() && !call.inputs.front().weight) in = call.inputs.front().numbers;
  const double out = call.output.numbers;
  cost.weights = float32_bytes(weights);
  if (known == nullptr) {
    cost.kernel = moves((all + out) / batch, 2.0 * (all + out) / batch);
    return cost;
  }
  cost.view = known->form == Form::kView;
  cost.kept = known->kept;
  if (cost.view) return cost;
  cost.kernel = moves((known->forward.in * in + known->forward.out * out) / batch,
                      (known->backward.in * in + known->backward.out * out) / batch);
  cost.kernel.flop = Flop(known->flop * out / batch);
  if (known->form == Form::kMoves) {
    if (names_norm(call.name)) cost.kernel.role = KernelRole::kNorm;
    return cost;
  }
  if (known->form == Form::kAttention) {
    cost.kernel.compute(attention_of(call, batch));
    cost.kernel.role = KernelRole::kCoreAttention;
    return cost;
  }
  const Gemm gemm = gemm_of(call, known->form, batch);
  if (gemm.heads > 0.0) {
    cost.kernel.forward = float32_bytes((all + out) / batch);
    cost.kernel.backward = 2.0 * cost.kernel.forward;
  }
  cost.kernel.compute(gemm);
  return cost;
}

}  // namespace stepcast

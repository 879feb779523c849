#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <ranges>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "models/given_layer.hpp"
#include "models/layer_kinds.hpp"

namespace stepcast {
namespace {

using Kind = LayerCollectiveKind;
using Group = LayerCollectiveGroup;

/// Visits the layers of one segment once, in forward order.
struct SegmentAccount {
  Model& model;
  const int segment_index;
  bool needs_gradient;  ///< of the output so far

  /// Adds everything up. Returns true if gradients flow into the layers after the segment.
  bool run() {
    activations.push_back({float32_bytes(segment.layers.front().input), false, false});
    int current = 0;
    for (const Layer& layer : segment.layers) {
      current = walk(layer, current);
      segment.parameters.insert(segment.parameters.begin(), ready.begin(), ready.end());
      ready.clear();
    }
    // Gathered before the backward of the head.
    if (!open.empty()) note(open + kRegather, Kind::kAllGather, true, shared_input);
    activations[current].kept = true;
    if (!needs_gradient && has_frozen()) std::erase_if(noted, &LayerCollective::backward);
    add_collectives();
    for (const Activation& one : activations) {
      if (!one.allocated_here || !(one.kept || one.multiplied || one.attended)) continue;
      segment.saved.size += one.size;
      if (one.multiplied && !one.kept)
        (one.attended ? segment.saved.attended : segment.saved.gemm_inputs) += one.size;
    }
    const Layer& last = segment.layers.back();
    segment.output_size =
        last.sizes.contains("output") ? Bytes(number(last, "output")) : float32_bytes(segment.output);
    return needs_gradient;
  }

  struct Activation {
    Bytes size;
    bool allocated_here = true, kept = false;
    bool multiplied = false;  ///< saved by GEMMs with weights
    bool attended = false;    ///< saved by the fused attention that made it
  };

  /// Leaves the layer's parameters in `ready`, in the order in which their gradients become ready.
  int walk(const Layer& layer, int input) {
    const LayerKind& kind = layer_kind(layer.kind);
    std::vector<int> order;
    int from_body = input, from_shortcut = input;
    if (!kind.branches.empty()) {
      const bool needed = needs_gradient;
      from_body = walk_all(layer.body, input, order);
      const bool needed_after_body = std::exchange(needs_gradient, needed);
      std::vector<int> shortcut_order;
      from_shortcut = walk_all(layer.shortcut, input, shortcut_order);
      needs_gradient = needs_gradient || needed_after_body;
      order.insert(order.begin(), shortcut_order.begin(), shortcut_order.end());
    }
    ready = std::move(order);
    note_collectives(layer);
    const bool exchanges = shares_experts(layer), needed = needs_gradient;
    if (exchanges) note_experts(layer, "dispatch", needs_gradient, 1);  // after the router
    if (layer.kind == "latent_attention") walk_inside(layer, input, needed || !trained(layer).empty());
    const int output = charge(layer, from_body);
    if (splits_heads(layer)) {
      const auto count = static_cast<int>(trained(layer).size());
      for (const bool backward : {false, true})
        note(layer.name + ".positions", Kind::kAllToAll, backward, float32_bytes(layer.output), {},
             Group::kContext, count);
    }
    if (exchanges) {
      const std::vector<LayerTensor> own = trained(layer);
      const auto count = static_cast<int>(own.size());
      const auto of_all_tokens = static_cast<int>(
          std::find_if(own.rbegin(), own.rend(), [](const LayerTensor& one) { return one.expert; }) -
          own.rbegin());
      note_experts(layer, "combine", true, count - of_all_tokens);
      for (int i = count - of_all_tokens; i < count; ++i) note_sum(layer, own[i], count);
    }
    if (layer.kind == "experts") walk_inside(layer, input, needed);
    if (!kind.branches.empty() && kind.each.kept == Kept::kInput && needs_gradient)
      activations[from_shortcut].kept = true;
    register_tensors(layer);
    return output;
  }

  /// Walks the collectives inside a layer, see place_collectives(). \param needed true if the first one has a
  /// gradient to pass on
  void walk_inside(const Layer& layer, int input, bool needed) {
    const std::vector<LayerTensor> own = trained(layer);
    const auto divided = std::ranges::find_if(own, [&](const LayerTensor& one) {
      return !one.expert && shared_dimension(layer, one) >= 0;  // has its gradient before the first of these
    });
    const int registered =
        std::exchange(registered_count, registered_count + static_cast<int>(divided - own.begin()));
    const bool before = std::exchange(needs_gradient, needed);
    for (const Layer& border : layer.body) {
      input = walk(border, input);
      activations[input].multiplied = border.kind == "tensor_enter" && !layer.frozen;
      registered_count = registered + static_cast<int>(own.size());
    }
    registered_count = registered;
    needs_gradient = before;
  }

  /// Parameters of a layer that have gradients.
  static std::vector<LayerTensor> trained(const Layer& layer) {
    return filtered(parameters_of(layer), std::not_fn(&LayerTensor::frozen));
  }

  int walk_all(const std::vector<Layer>& layers, int input, std::vector<int>& order) {
    for (const Layer& layer : layers) {
      input = walk(layer, input);
      order.insert(order.begin(), ready.begin(), ready.end());
    }
    return input;
  }

  /// Adds the layer's own cost; returns its output.
  int charge(const Layer& layer, int input) {
    const LayerCost cost = cost_of(layer);
    WeightElements weights;
    for (const LayerTensor& tensor : parameters_of(layer))
      (tensor.frozen ? weights.frozen : weights.trained) += numel(tensor.shape);
    const bool trains = weights.trained > 0;
    // dx and dw, or dw alone; with adapters also what lies between these and the output
    const double gradients = needs_gradient || (trains && adapter_rank(layer) > 0) ? 2.0 : trains ? 1.0 : 0.0;
    const bool needed = std::exchange(needs_gradient, needs_gradient || trains);
    bool multiplies = false, chooses = false, attends = false;
    cost.for_each([&](const Kernel& kernel) {
      if (layer.given == nullptr) {
        segment.flop.forward += kernel.useful * kernel.flop;
        segment.flop.backward += kernel.useful * kernel.backward_flop(gradients);
      }
      if (kernel.moved != Moved::kCast) {
        segment.traffic.forward += kernel.forward;
        if (gradients > 0.0 || !layer.frozen) segment.traffic.backward += kernel.backward;
      }
      multiplies = multiplies || kernel.has_weight();
      chooses = chooses || kernel.is_router();
      attends = attends || kernel.attention() != nullptr;
      if (!keeps(layer, gradients)) return;
      segment.saved.add(kernel.kept);
    });
    if (layer.given != nullptr)
      add_operators(*layer.given, needed);
    else if (!cost.is_view)
      add_work(layer, cost, gradients, weights);
    segment.saved.workspace.forward = std::max(segment.saved.workspace.forward, cost.workspace.forward);
    segment.saved.workspace.backward = std::max(segment.saved.workspace.backward, cost.workspace.backward);
    // Its input goes into GEMMs with weights, none of which is a router's, or is gathered for them.
    if (cost.saves_input && keeps(layer, gradients))
      ((multiplies || cost.regathers) && !chooses && adapter_rank(layer) == 0 ? activations[input].multiplied
                                                                              : activations[input].kept) =
          true;
    if (layer.texts.contains("to"))
      (layer.frozen ? segment.frozen.tied : segment.tied).push_back(parameter_index(layer.texts.at("to")));
    if (cost.is_view) return input;
    activations.push_back({.size = float32_bytes(layer.output),
                           .allocated_here = !cost.regathers,
                           .kept = cost.saves_output && keeps(layer, gradients),
                           .attended = attends && keeps(layer, gradients)});
    return static_cast<int>(activations.size()) - 1;
  }

  /// False for frozen layers before all trained ones, of which autograd saves nothing.
  [[nodiscard]] bool keeps(const Layer& layer, double gradients) const {
    return gradients > 0.0 || (!layer.frozen && !has_frozen());
  }
  [[nodiscard]] bool has_frozen() const { return std::ranges::any_of(model.parameters, &Parameter::frozen); }

  /// Numbers in the weights of a layer.
  struct WeightElements {
    std::int64_t trained = 0, frozen = 0;
  };

  /// Forward reads the weights; backward reads them again and writes their gradient. Of an embedding's tables
  /// forward reads the rows that are looked up, which are in its traffic, and backward makes a gradient of
  /// the whole table.
  void add_work(const Layer& layer, const LayerCost& cost, double gradients, WeightElements elements) {
    if (layer.kind == "tied_linear" || layer.kind == kOwnHead)
      (layer.frozen ? elements.frozen : elements.trained) = size(layer, "rows") * size(layer, "columns");
    const Bytes trained = float32_bytes(static_cast<double>(elements.trained));
    const Bytes weights = trained + float32_bytes(static_cast<double>(elements.frozen));
    LayerWork work{.kernels = cost.kernels, .gradients = gradients};
    if (layer.kind != "embedding") work.forward_weights = weights;
    if (gradients > 0.0) work.backward_weights = weights + trained;
    const int both = elements.trained > 0 && gradients > 1.0 ? 2 : 1;
    const auto add = [&](LayerWork one, int launches) {
      for (Kernel& kernel : one.kernels)
        if (kernel.backward_launches < 0) kernel.backward_launches = launches * kernel.launches;
      segment.work.push_back(std::move(one));
    };
    add(std::move(work), both);
    for (const Kernel& step : cost.steps) add({.kernels = {step}, .gradients = gradients}, both);
    if (!cost.separate.empty()) add({.kernels = cost.separate, .gradients = gradients}, 1);
  }

  /// Each operator has a roofline of its own. Those before the first weight need no gradients.
  void add_operators(const GivenLayer& given, bool needed) {
    for (const std::string& name : given.tied) segment.tied.push_back(parameter_index(name));
    for (const GivenOperator& one : given.operators) {
      const bool weighs = one.weights > Bytes(0);
      const bool looks_up = one.name == "embedding";  // the rows are in its traffic
      LayerWork work{.kernels = {one.kernel},
                     .gradients = needed   ? 2.0
                                  : weighs ? 1.0
                                           : 0.0,
                     .forward_weights = looks_up ? Bytes(0) : one.weights,
                     .backward_weights = weighs ? 2.0 * one.weights : Bytes(0)};
      work.kernels.front().backward_launches = weighs && needed ? 2 : 1;
      needed = needed || weighs;
      segment.flop.forward += work.forward();
      segment.flop.backward += work.backward();
      segment.work.push_back(std::move(work));
    }
  }

  /// Notes a collective before the next work. \param before parameters of the layer that have their gradients
  /// after it
  LayerCollective& note(const std::string& name, Kind kind, bool backward, Bytes per_sample, Bytes fixed = {},
                        Group group = Group::kTensor, int before = 0) {
    return noted.emplace_back(LayerCollective{name, kind, segment_index, backward, per_sample, fixed,
                                              static_cast<int>(segment.work.size()),
                                              registered_count + before, group});
  }

  /// Tokens on their way to their experts, or back; the router counts as computed after the first. Ranks that
  /// divide an expert gather what arrived at each, and sum the results.
  void note_experts(const Layer& layer, const std::string& name, bool in_backward, int before) {
    const Bytes rows = float32_bytes(static_cast<double>(expert_rows(layer) * expert_width(layer)));
    const bool arrive = name == "dispatch";
    const auto divided = [&](bool backward) {
      if (model.parallel.expert_tensor > 1)
        note(layer.name + (arrive ? ".gather" : ".sum"),
             arrive != backward ? Kind::kAllGather : Kind::kReduceScatter, backward,
             number(layer, "tensor") * rows, {}, Group::kExpertTensor, before);
    };
    for (const bool backward : {false, true}) {
      if (backward && !in_backward) continue;
      if (!arrive) divided(backward);
      if (size(layer, "ranks") > 1)
        note(layer.name + "." + name, Kind::kAllToAll, backward, rows, {}, Group::kExpert, before).rows =
            static_cast<double>(expert_rows(layer));
      if (arrive) divided(backward);
    }
  }

  /// Notes the collectives of tensor and context parallelism around this layer, which comes next.
  void note_collectives(const Layer& layer) {
    if (model.parallel.tensor == 1 && model.parallel.context == 1) return;
    const Bytes input = float32_bytes(layer.input), output = float32_bytes(layer.output);
    const bool in_parts = value_or(layer.sizes, "sequence", 0) != 0;
    const Kind sum = in_parts ? Kind::kReduceScatter : Kind::kAllReduce;
    if (layer.kind == "tensor_enter") {
      if (!open.empty()) note(open + kRegather, Kind::kAllGather, true, shared_input);  // of an own_head
      if (in_parts) note(layer.name, Kind::kAllGather, false, output);
      if (needs_gradient) note(layer.name, sum, true, output);
      shared_input = output;
      open = flag(layer, "regather") ? layer.name : "";
    } else if (layer.kind == "tensor_leave") {
      note(layer.name, sum, false, input);
      if (flag(layer, "regather")) note(layer.name + kRegather, Kind::kAllGather, true, shared_input);
      open.clear();
      if (in_parts) note(layer.name, Kind::kAllGather, true, input);
    }
    const std::vector<LayerTensor> own = trained(layer);
    if (shares_experts(layer)) {
      if (!own.empty()) note_sum(layer, own.front(), 1);  // of the router
      return;
    }
    const int before = std::exchange(registered_count, registered_count + static_cast<int>(own.size()));
    for (const LayerTensor& tensor : own) note_sum(layer, tensor, 0);
    // Its backward precedes those of head norms.
    if (value_or(layer.sizes, "context", 1) > 1) note_context(layer);
    registered_count = before;
  }

  static bool shares_experts(const Layer& layer) {
    return layer.kind == "experts" && size(layer, "ranks") * size(layer, "tensor") > 1;
  }

  /// Notes the sum of a parameter's gradient over tensor-parallel ranks, if there is one. \param before as in
  /// note()
  void note_sum(const Layer& layer, const LayerTensor& tensor, int before) {
    if (is_summed(layer, tensor))
      note(full_name(layer, tensor.suffix), Kind::kAllReduce, true, {}, float32_bytes(tensor.shape),
           Group::kTensor, before);
  }

  void note_context(const Layer& layer) {
    const std::int64_t head = layer.output[1] / size(layer, "heads"), kv_heads = size(layer, "kv_heads");
    const std::int64_t sent = splits_heads(layer) ? std::max(kv_heads, size(layer, "context")) : kv_heads;
    const std::int64_t width = flag(layer, "repeat_kv") ? layer.output[1] : sent * head;
    const Bytes part = float32_bytes(2.0 * static_cast<double>(layer.input[0] * width));
    const std::string name = layer.name + ".context";
    if (splits_heads(layer)) {
      const Bytes all = part + float32_bytes(layer.output);  // of q, k and v
      for (const bool backward : {false, true})
        note(layer.name + ".heads", Kind::kAllToAll, backward, all, {}, Group::kContext);
      return;
    }
    if (model.parallel.ring) return note_ring(name, part);
    const Bytes gathered = number(layer, "context") * part;
    note(name, Kind::kAllGather, false, gathered, {}, Group::kContext);
    const bool again = flag(layer, "gather_kv_again");
    // PyTorch sums them in fp32: torch/distributed/tensor/experimental/_attention.py.
    note(name, Kind::kReduceScatter, true, gathered, {}, Group::kContext).in_float32 =
        again && !model.transformer_engine();
    if (again)  // before the sum: the backward reads from the last to the first
      note(name + ".again", Kind::kAllGather, true, gathered, {}, Group::kContext);
  }

  /// Shifts of a ring of c ranks. Forward: keys and values, `own` bytes, are sent in all steps but the last,
  /// for the next step. Backward: they are sent again from the second step on, so that each rank's own are
  /// the last, and gradients of those of a step go with the next: 1, 2, ..., 2 and 1 times `own` in c steps.
  void note_ring(const std::string& name, Bytes own) {
    const auto step = [&](int index, bool backward, Bytes sent, int from, int to) {
      const std::string full = name + "." + std::to_string(index);
      // Sent after the projections.
      note(full, Kind::kShift, backward, sent, {}, Group::kContext).work += 1 + from;
      note(full + ".end", Kind::kWait, backward, {}, {}, Group::kContext).work += 1 + to;
      if (backward) std::swap(noted.back(), *(noted.end() - 2));  // read from the last to the first
    };
    const int steps = model.parallel.context;
    for (int i = 0; i + 1 < steps; ++i) step(i, false, own, i, i + 1);
    for (int i = steps; i-- > 0;)
      step(i, true, ((i > 0 ? 1.0 : 0.0) + (i + 1 < steps ? 1.0 : 0.0)) * own, steps - i, steps - i - 1);
  }

  /// True for norms of heads, because each rank has some of the heads, and for layers that see parts of the
  /// sequence.
  [[nodiscard]] bool is_summed(const Layer& layer, const LayerTensor& tensor) const {
    if (layer.texts.contains(kShared)) return shared_dimension(layer, tensor) < 0;
    if (tensor.expert || tensor.divided >= 0) return false;  // averaged by the ranks that have the same part
    return model.parallel.tensor > 1 && model.parallel.sequence_parallel;
  }

  /// Adds those of the forward, then those of the backward, which visits the layers from the last to the
  /// first.
  void add_collectives() {
    const auto add = [&](LayerCollective& one) {
      one.ready = registered_count - one.ready;
      segment.collectives.push_back(static_cast<int>(model.collectives.size()));
      model.collectives.push_back(one);
    };
    for (LayerCollective& one : noted)
      if (!one.backward) add(one);
    for (LayerCollective& one : noted | std::views::reverse)
      if (one.backward) add(one);
  }

  /// \pre an earlier segment has registered it
  [[nodiscard]] int parameter_index(const std::string& name) const {
    const auto found = std::ranges::find(model.parameters, name, &Parameter::name);
    assert(found != model.parameters.end());
    return static_cast<int>(found - model.parameters.begin());
  }

  void register_tensors(const Layer& layer) {
    const LayerKind& kind = layer_kind(layer.kind);
    std::vector<int> own;
    for (const LayerTensor& tensor : parameters_of(layer)) {
      (tensor.frozen ? segment.frozen.own : own).push_back(static_cast<int>(model.parameters.size()));
      if (!tensor.frozen) ++registered_count;
      const Bytes bytes = float32_bytes(tensor.shape), gradient = tensor.frozen ? Bytes(0) : bytes;
      model.parameters.push_back({.name = full_name(layer, tensor.suffix),
                                  .shape = tensor.shape,
                                  .segment = segment_index,
                                  .size = bytes,
                                  .gradient = gradient,
                                  .reduced = gradient,
                                  .shared_dimension = shared_dimension(layer, tensor),
                                  .summed = !tensor.frozen && is_summed(layer, tensor),
                                  .expert = tensor.expert,
                                  .frozen = tensor.frozen});
    }
    if (kind.ready_order == ReadyOrder::kReversed) std::ranges::reverse(own);
    if (kind.ready_order == ReadyOrder::kGiven)
      std::ranges::transform(layer.given->ready, own.begin(),
                             [this](const std::string& name) { return parameter_index(name); });
    if (kind.ready_order == ReadyOrder::kFirstLast && !own.empty())
      std::rotate(own.begin(), own.begin() + 1, own.end());
    ready.insert(ready.begin(), own.begin(), own.end());
    for (const LayerTensor& tensor : kind.buffers(layer))
      model.buffers.push_back({full_name(layer, tensor.suffix), tensor.shape, tensor.is_integer,
                               segment_index,
                               (tensor.is_integer ? kInt64 / 4.0 : 1.0) * float32_bytes(tensor.shape)});
  }

  Segment& segment = model.segments[segment_index];
  std::vector<Activation> activations{};
  std::vector<int> ready{};
  std::vector<LayerCollective> noted{};  ///< in forward order; `ready` is the number of parameters before it
  Bytes shared_input{};                  ///< input of the layers that ranks share
  std::string open{};        ///< layers that ranks share up to here, if their input is gathered again
  int registered_count = 0;  ///< parameters
};

}  // namespace

std::string complete(Model& model) {
  bool needs_gradient = false;
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    place_collectives(model, model.segments[i].layers);
    const bool only_frozen = !needs_gradient && std::ranges::any_of(model.parameters, &Parameter::frozen);
    model.segments[i].frozen.all_before = i == 0 || only_frozen;
    needs_gradient = SegmentAccount{model, static_cast<int>(i), needs_gradient}.run();
  }
  add_loss_costs(model);
  if (model.loss.chunks > 1) {  // their outputs exist one after the other
    Segment& head = model.segments.back();
    const Bytes chunk = (1.0 / model.loss.chunks) * head.output_size;
    head.saved.size -= head.output_size - chunk;
    head.output_size = chunk;
  }
  return repeated_name(model.parameters).value_or("");
}

}  // namespace stepcast

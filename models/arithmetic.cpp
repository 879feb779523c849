#include <algorithm>
#include <cassert>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "models/layer.hpp"

namespace stepcast {
namespace {

/// Goes once through the layers of one segment, in forward order.
class SegmentAccount {
 public:
  SegmentAccount(Model& model, int segment, bool input_needs_gradient)
      : model_(model), index_(segment), needs_gradient_(input_needs_gradient) {}

  /// Adds everything up. Returns whether gradients flow into what comes after the segment.
  bool run() {
    Segment& segment = model_.segments[static_cast<std::size_t>(index_)];
    activations_.push_back({float32_bytes(segment.input), false, false});
    int current = 0;
    for (const Layer& layer : segment.layers) {
      current = walk(segment, layer, current);
      segment.parameters.insert(segment.parameters.begin(), ready_.begin(), ready_.end());
      ready_.clear();
    }
    activations_[static_cast<std::size_t>(current)].kept = true;
    add_exchanges(segment);
    for (const Activation& activation : activations_) {
      if (!activation.allocated_here || (!activation.kept && !activation.multiplied)) continue;
      segment.saved_size += activation.size;
      if (!activation.kept) segment.linear_size += activation.size;
    }
    const Layer& last = segment.layers.back();
    segment.output_size = last.kind == "fixed" ? Bytes(static_cast<double>(last.sizes.at("output")))
                                               : float32_bytes(segment.output);
    return needs_gradient_;
  }

 private:
  struct Activation {
    Bytes size;
    bool allocated_here = true;
    bool kept = false;
    bool multiplied = false;  ///< kept by products with weights
  };

  /// Leaves the layer's parameters in `ready_`, in the order in which their gradients become ready.
  int walk(Segment& segment, const Layer& layer, int input) {
    std::vector<int> order;
    int from_body = input, from_shortcut = input;
    if (!layer_kind(layer.kind).branches.empty()) {
      const bool needed = needs_gradient_;
      from_body = walk_all(segment, layer.body, input, order);
      const bool needed_after_body = std::exchange(needs_gradient_, needed);
      std::vector<int> shortcut_order;
      from_shortcut = walk_all(segment, layer.shortcut, input, shortcut_order);
      needs_gradient_ = needs_gradient_ || needed_after_body;
      order.insert(order.begin(), shortcut_order.begin(), shortcut_order.end());
    }
    ready_ = std::move(order);
    if (model_.tensor > 1 || model_.context > 1) note_exchanges(segment, layer);
    const bool shares_experts = layer.kind == "experts" && layer.sizes.at("ranks") > 1;
    if (shares_experts) note_experts(segment, layer, "dispatch", needs_gradient_, 1);  // behind the router
    const int output = charge(segment, layer, from_body);
    if (shares_experts) {
      const int to_others = layer.sizes.at("shared") > 0 ? 3 : 0;  // gate, up and down of all tokens
      note_experts(segment, layer, "combine", true,
                   static_cast<int>(layer_kind(layer.kind).parameters(layer).size()) - to_others);
    }
    const LayerKind& kind = layer_kind(layer.kind);
    if (!kind.branches.empty() && kind.saves_input)
      activations_[static_cast<std::size_t>(from_shortcut)].kept = true;
    register_tensors(segment, layer);
    return output;
  }

  int walk_all(Segment& segment, const std::vector<Layer>& layers, int input, std::vector<int>& order) {
    for (const Layer& layer : layers) {
      input = walk(segment, layer, input);
      order.insert(order.begin(), ready_.begin(), ready_.end());
    }
    return input;
  }

  /// Adds the layer's own cost and row; returns its output.
  int charge(Segment& segment, const Layer& layer, int input) {
    const LayerKind& kind = layer_kind(layer.kind);
    const LayerCost cost = cost_of(layer);
    std::int64_t parameters = 0;
    for (const LayerTensor& tensor : kind.parameters(layer)) parameters += numel(tensor.shape);
    const bool has_parameters = parameters > 0;
    const double gradients = needs_gradient_ ? 2.0 : (has_parameters ? 1.0 : 0.0);  // dx and dw, or dw alone
    segment.forward += cost.forward;
    segment.backward += gradients * cost.forward;
    needs_gradient_ = needs_gradient_ || has_parameters;
    add_work(segment, layer, cost, gradients, parameters);
    segment.forward_traffic += cost.forward_traffic;
    segment.backward_traffic += cost.backward_traffic;
    segment.saved_size += cost.saved_besides;
    segment.mask_size += cost.masks;
    segment.float32_size += float32_bytes(cost.in_float32.kept);
    if (Activation& taken = activations_[static_cast<std::size_t>(input)]; cost.saves_input)
      (is_multiplied_alone(cost) ? taken.multiplied : taken.kept) = true;
    if (layer.kind == "tied_linear") segment.tied.push_back(parameter_index(layer.texts.at("to")));
    if (kind.rows)
      std::ranges::copy(kind.rows(layer), std::back_inserter(segment.rows));
    else if (!kind.torch_class.empty() && !layer.name.empty())
      segment.rows.push_back({layer.name, kind.torch_class, layer.output, parameters, cost.forward});
    if (cost.is_view) return input;
    activations_.push_back({float32_bytes(layer.output), !cost.gathers_again, cost.saves_output});
    return static_cast<int>(activations_.size()) - 1;
  }

  /// Whether the input goes into products with weights, and none is a router's.
  static bool is_multiplied_alone(const LayerCost& cost) {
    return std::ranges::any_of(cost.products, [](const Gemm& one) { return one.heads <= 0.0; }) &&
           std::ranges::none_of(cost.products, &Gemm::chooses);
  }

  /// Forward reads the weights; backward reads them again and writes their gradient. Of an embedding's tables
  /// forward reads the rows that are looked up, which are in its traffic, and backward makes a gradient of
  /// the whole table.
  static void add_work(Segment& segment, const Layer& layer, const LayerCost& cost, double gradients,
                       std::int64_t elements) {
    if (cost.is_view) return;
    if (layer.kind == "tied_linear") elements = layer.sizes.at("rows") * layer.sizes.at("columns");
    const Bytes weights = float32_bytes(static_cast<double>(elements));
    const bool computes_backward = gradients > 0.0;
    LayerWork work;
    work.forward = cost.forward;
    work.backward = gradients * cost.forward;
    if (computes_backward) work.again = cost.again;
    work.forward_traffic = cost.forward_traffic - cost.forward_memory_bound;
    if (computes_backward) work.backward_traffic = cost.backward_traffic - cost.backward_memory_bound;
    if (layer.kind != "embedding") work.forward_weights = weights;
    if (computes_backward) work.backward_weights = 2.0 * weights;
    work.forward_kernels = cost.kernels;
    if (computes_backward) work.backward_kernels = (elements > 0 && gradients > 1.0 ? 2 : 1) * cost.kernels;
    work.products = cost.products;
    work.needs_input_gradient = gradients > 1.0;
    work.attention = cost.attention;
    work.in_float32 = cost.in_float32;
    if (!computes_backward) work.in_float32.backward = work.in_float32.backward_casts = 0.0;
    const bool has_aside = cost.forward_memory_bound > Bytes(0);
    LayerWork aside;  // its kernels are among those of the layer
    LayerWork& noisy = has_aside ? aside : work;
    noisy.forward_cpu_only = cost.forward_cpu_only;
    if (computes_backward) noisy.backward_spared = cost.backward_spared;
    for (const LayerWork& step : cost.steps) {
      work.forward -= step.forward;
      work.backward -= gradients * step.forward;
      work.again -= step.again;
      work.forward_traffic -= step.forward_traffic;
      work.backward_traffic -= step.backward_traffic;
    }
    segment.work.push_back(work);
    for (LayerWork step : cost.steps) {
      step.backward = gradients * step.forward;
      segment.work.push_back(step);
    }
    if (!has_aside) return;
    aside.forward_traffic = cost.forward_memory_bound;
    if (computes_backward) aside.backward_traffic = cost.backward_memory_bound;
    segment.work.push_back(aside);
  }

  void note(const Segment& segment, const std::string& name, ExchangeKind kind, bool backward,
            Bytes per_sample, Bytes fixed, ExchangeGroup group = ExchangeGroup::kTensor, int before = 0) {
    noted_.push_back({name, kind, index_, backward, per_sample, fixed, static_cast<int>(segment.work.size()),
                      registered_ + before, group});
  }

  /// Tokens on their way to their experts, or back; the router counts as computed behind the first.
  /// \param before of the layer's parameters, that have their gradients after it
  void note_experts(const Segment& segment, const Layer& layer, const std::string& name, bool in_backward,
                    int before) {
    const Bytes rows = float32_bytes(static_cast<double>(expert_rows(layer) * layer.input[1]));
    for (const bool backward : {false, true})
      if (!backward || in_backward)
        note(segment, layer.name + "." + name, ExchangeKind::kAllToAll, backward, rows, Bytes(0),
             ExchangeGroup::kExpert, before);
  }

  /// What the ranks that share the model's layers or sequences put together around this layer, which comes next.
  void note_exchanges(const Segment& segment, const Layer& layer) {
    const auto note = [&](auto&&... what) { this->note(segment, what...); };
    const Bytes input = float32_bytes(layer.input), output = float32_bytes(layer.output);
    const auto sequence = layer.sizes.find("sequence");
    const bool in_parts = sequence != layer.sizes.end() && sequence->second != 0;
    if (layer.kind == "tensor_enter") {
      if (in_parts) note(layer.name, ExchangeKind::kAllGather, false, output, Bytes(0));
      if (needs_gradient_)
        note(layer.name, in_parts ? ExchangeKind::kReduceScatter : ExchangeKind::kAllReduce, true, output,
             Bytes(0));
      gathered_ = output;
    } else if (layer.kind == "tensor_leave") {
      note(layer.name, in_parts ? ExchangeKind::kReduceScatter : ExchangeKind::kAllReduce, false, input,
           Bytes(0));
      if (layer.sizes.at("again") != 0)
        note(layer.name + kAgain, ExchangeKind::kAllGather, true, gathered_, Bytes(0));
      if (in_parts) note(layer.name, ExchangeKind::kAllGather, true, input, Bytes(0));
    }
    const std::vector<LayerTensor> own = layer_kind(layer.kind).parameters(layer);
    const int before = std::exchange(registered_, registered_ + static_cast<int>(own.size()));
    for (const LayerTensor& tensor : own)
      if (is_summed(layer, tensor))
        note(full_name(layer, tensor.suffix), ExchangeKind::kAllReduce, true, Bytes(0),
             float32_bytes(tensor.shape));
    // Its backward comes before those of the norms of heads.
    if (const auto context = layer.sizes.find("context");
        context != layer.sizes.end() && context->second > 1) {
      const bool copied = layer.sizes.at("repeat_kv") != 0;
      const std::int64_t head = layer.output[1] / layer.sizes.at("heads");
      const std::int64_t width = copied ? layer.output[1] : layer.sizes.at("kv_heads") * head;
      const Bytes part = float32_bytes(2.0 * static_cast<double>(layer.input[0] * width));
      const Bytes gathered = static_cast<double>(context->second) * part;
      const std::string name = layer.name + ".context";
      if (model_.ring) {
        note_ring(segment, name, part);
      } else {
        note(name, ExchangeKind::kAllGather, false, gathered, Bytes(0), ExchangeGroup::kContext);
        note(name, ExchangeKind::kReduceScatter, true, gathered, Bytes(0), ExchangeGroup::kContext);
      }
    }
    registered_ = before;
  }

  /// Around a ring of c ranks. Forward, keys and values go on in all steps but the last, `own` bytes, to be there for the next.
  /// In the backward they are sent again from the second step's on, so that each rank's own are the last, and gradients of
  /// those of a step go with the next: 1, 2, ..., 2 and 1 times `own` in c steps.
  void note_ring(const Segment& segment, const std::string& name, Bytes own) {
    const auto step = [&](int index, bool backward, Bytes sent, int from, int to) {
      const std::string full = name + "." + std::to_string(index);
      note(segment, full, ExchangeKind::kShift, backward, sent, Bytes(0), ExchangeGroup::kContext);
      noted_.back().work += 1 + from;  // behind the projections
      note(segment, full + ".end", ExchangeKind::kWait, backward, Bytes(0), Bytes(0),
           ExchangeGroup::kContext);
      noted_.back().work += 1 + to;
      if (backward) std::swap(noted_.back(), *(noted_.end() - 2));  // read from the last to the first
    };
    const int steps = model_.context;
    for (int i = 0; i + 1 < steps; ++i) step(i, false, own, i, i + 1);
    for (int i = steps; i-- > 0;)
      step(i, true, ((i > 0 ? 1.0 : 0.0) + (i + 1 < steps ? 1.0 : 0.0)) * own, steps - i, steps - i - 1);
  }

  /// Norms of heads, of which each rank has some; and whatever sees parts of the sequence.
  [[nodiscard]] bool is_summed(const Layer& layer, const LayerTensor& tensor) const {
    if (layer.texts.contains(kShared)) return shared_dimension(layer, tensor) < 0;
    return model_.tensor > 1 && model_.sequence_parallel;
  }

  /// Those of the forward, then those of the backward, which runs through the layers from the last to the first.
  void add_exchanges(Segment& segment) {
    const auto add = [&](LayerCollective& exchange) {
      exchange.ready = registered_ - exchange.ready;
      segment.exchanges.push_back(static_cast<int>(model_.exchanges.size()));
      model_.exchanges.push_back(exchange);
    };
    for (LayerCollective& exchange : noted_)
      if (!exchange.backward) add(exchange);
    for (auto exchange = noted_.rbegin(); exchange != noted_.rend(); ++exchange)
      if (exchange->backward) add(*exchange);
  }

  /// \pre an earlier segment has registered it
  [[nodiscard]] int parameter_index(const std::string& name) const {
    const auto found = std::ranges::find(model_.parameters, name, &Parameter::name);
    assert(found != model_.parameters.end());
    return static_cast<int>(found - model_.parameters.begin());
  }

  void register_tensors(Segment& segment, const Layer& layer) {
    const LayerKind& kind = layer_kind(layer.kind);
    std::vector<int> own;
    for (const LayerTensor& tensor : kind.parameters(layer)) {
      own.push_back(static_cast<int>(model_.parameters.size()));
      ++registered_;
      model_.parameters.push_back({full_name(layer, tensor.suffix), tensor.shape, index_,
                                   float32_bytes(tensor.shape), float32_bytes(tensor.shape),
                                   float32_bytes(tensor.shape), shared_dimension(layer, tensor),
                                   is_summed(layer, tensor), tensor.expert});
    }
    if (kind.ready_order == ReadyOrder::kReversed) std::reverse(own.begin(), own.end());
    if (kind.ready_order == ReadyOrder::kFirstLast) std::rotate(own.begin(), own.begin() + 1, own.end());
    ready_.insert(ready_.begin(), own.begin(), own.end());
    for (const LayerTensor& tensor : kind.buffers(layer)) {
      segment.buffers.push_back(static_cast<int>(model_.buffers.size()));
      const double int64_size = 2.0;  // in float32s
      model_.buffers.push_back({full_name(layer, tensor.suffix), tensor.shape, tensor.is_integer, index_,
                                (tensor.is_integer ? int64_size : 1.0) * float32_bytes(tensor.shape)});
    }
  }

  Model& model_;
  int index_;
  bool needs_gradient_;
  std::vector<Activation> activations_;
  std::vector<int> ready_;
  std::vector<LayerCollective> noted_;  ///< in forward order; `ready` is how many parameters come before
  Bytes gathered_{};                    ///< where the layers began that ranks share
  int registered_ = 0;                  ///< parameters
};

/// A segment is called by the kind of its costliest layer; of equals by the last. An embedding has no flop
/// but most of its segment's bytes.
std::string segment_kind(const Segment& segment) {
  if (segment.layers.front().kind == "embedding") return "embedding";
  std::string kind;
  double most = -1.0;
  for (const Layer& layer : segment.layers) {
    double flop = cost_of(layer).forward.count();
    for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
      for (const Layer& inner : *branch) flop += cost_of(inner).forward.count();
    if (flop < most) continue;
    most = flop;
    kind = layer.kind;
  }
  return kind;
}

}  // namespace

namespace {

/// Megatron's vocabulary-parallel cross entropy: of every position the largest output, that of the target, and the sum of
/// the exponentials.
void add_loss_exchanges(Model& model) {
  const Bytes each = float32_bytes(static_cast<double>(model.segments.back().output.front()));
  model.exchanges.push_back({"loss.maximum", ExchangeKind::kMaximum, -1, false, each});
  for (const char* name : {"loss.target", "loss.sum"})
    model.exchanges.push_back({name, ExchangeKind::kAllReduce, -1, false, each});
}

}  // namespace

std::string complete(Model& model) {
  bool needs_gradient = false;
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    model.segments[i].kind = segment_kind(model.segments[i]);
    needs_gradient = SegmentAccount(model, static_cast<int>(i), needs_gradient).run();
  }
  if (model.shares_classes()) add_loss_exchanges(model);
  for (auto segment = model.segments.rbegin(); segment != model.segments.rend(); ++segment)
    std::ranges::copy(segment->parameters, std::back_inserter(model.ready_order));
  std::set<std::string> names;
  for (const Parameter& parameter : model.parameters)
    if (!names.insert(parameter.name).second) return parameter.name;
  return "";
}

}  // namespace stepcast

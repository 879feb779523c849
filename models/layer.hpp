#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"

// clang-format off
/// The table of layer kinds: what a layer may say of itself in YAML, and the arithmetic that follows from it.
///
/// | kind                | attributes (numbers in `Layer::sizes`, names in `Layer::texts`)   | PyTorch class     |
/// |---------------------|-------------------------------------------------------------------|-------------------|
/// | `conv`              | `out`, `kernel`, `stride` = 1, `padding` = 0, `bias` = true       | Conv2d            |
/// | `batch_norm`        | –                                                                 | BatchNorm2d       |
/// | `relu`              | –                                                                 | ReLU              |
/// | `max_pool`          | `kernel`, `stride` = kernel                                       | MaxPool2d         |
/// | `adaptive_avg_pool` | `out` = 1                                                         | AdaptiveAvgPool2d |
/// | `flatten`           | –                                                                 | a view            |
/// | `linear`            | `out`, `bias` = true; acts on the last dimension                  | Linear            |
/// | `residual`          | lists `body`, `shortcut`: y = body(x) + shortcut(x)               | an addition       |
/// | `product`           | lists `gate`, `value`: y = gate(x) * value(x), by element         | a multiplication  |
/// | `fixed`             | `forward` and `backward` (times, in ns), `parameter` (bytes), `output` = 0 (bytes; 0: not said) | times declared    |
/// | `embedding`         | `vocabulary`, `positions` (0: no table of them), `types` = 0, `out`; names of the tables: `word`, `position`, `type` | Embedding, one per table |
/// | `position_embedding` | `positions`                                                      | Embedding         |
/// | `layer_norm`        | `bias` = true                                                     | LayerNorm         |
/// | `rms_norm`          | `eager` = false                                                   | RMSNorm           |
/// | `gelu`, `silu`, `tanh` | –                                                              | GELU, SiLU, Tanh  |
/// | `dropout`           | `percent`; 0 is the identity                                      | Dropout           |
/// | `self_attention`    | `heads`, `kv_heads` = heads, `head_size` = 0 (width / heads), `bias` = true, `causal`, `rotary`, `norms`, `fused`, `flash`, `eager`, `repeat_kv`, `fused_softmax` = false, `dropout` = 0 (percent, of the probabilities), `context` = 1, `ring` = false; names: `query`, `key`, `value` | Linear: `query`, `key` and `value`, or fused `c_attn` |
/// | `latent_attention`  | `heads`, `q_rank` = 0 (none), `kv_rank`, `nope`, `rope`, `value` (sizes of a head's parts), `flash` = false | Linear and RMSNorm: those of DeepSeek-V3 |
/// | `experts`           | `experts`, `active`, `feed_forward`, `shared` = 0, `capacity` = 0 (percent), `ranks` = 1, `sigmoid` = false, `groups` = 1, `chosen_groups` = groups; names: `router`, `gate`, `up`, `down` | Linear: the router, and three of each expert |
/// | `first_token`       | –                                                                 | a view            |
/// | `tied_linear`       | `to`: the weight of an earlier segment, y = x weight^T            | Linear            |
/// | `tensor_enter`, `tensor_leave` | made by `tensor_parallel`, see below                     | –                 |
///
/// `tensor_parallel` is no layer but says that `ranks` share its `layers`: attention by heads, the others by columns, the
/// last one by rows, or by columns too where `output: split`; an embedding by rows of its table. Around them stand
/// `tensor_enter` (its backward sums the gradients over the ranks) and `tensor_leave` (its forward sums the parts, and adds
/// the bias of the last layer); with `sequence`, ranks have parts of the sequence outside: enter gathers them and leave
/// scatters its sums (Korthikanti et al., "Reducing Activation Recomputation", 2023). Of one rank it is its layers.
///
/// Attention: q heads of a key and value each (`kv_heads`: of several), `rotary` positions, `norms`: an RMSNorm over each
/// head's q and k; `fused`: one projection for q, k and v; `flash`: probabilities are never stored; `eager`: norms and rotary
/// positions are PyTorch's kernels one by one (so is an `rms_norm`); `repeat_kv`: with `flash`, keys and values are copied for
/// every head of q that reads them; `context`: the input is
/// one of so many ranks' parts of the sequence, and keys and values of all parts are gathered (Llama 3; the work of causal
/// ones is taken to be balanced over the ranks); with `ring` each part goes round the ranks instead, while they attend to the
/// one before: it needs `flash`, and no dropout of probabilities.
/// Experts: of each token the router chooses `active` of `experts` feed-forward layers with SiLU gates; one of width
/// `shared` sees every token. The choice is taken to be even. With `capacity` an expert takes of each sequence s no more than
/// that part of its even share, ceil(capacity s active/experts), the first ones that chose it; the others pass it by, and
/// what is left free is computed too, as zeros, so that sizes do not depend on the choice. `ranks` have an equal part of the
/// experts each; two all-to-alls take tokens there and back (Lepikhin et al., "GShard", 2020, whose groups are here sequences).
///
/// Square kernels only; images are channels x height x width, sequences positions x features.
// clang-format on
namespace stepcast {

/// What a number in a model file means; settings and attributes of one unit go together.
enum class Unit : std::uint8_t { kCount, kFlag, kBytes, kNanoseconds, kName };
std::string to_text(Unit unit);

struct Attribute {
  std::string key;
  Unit unit = Unit::kCount;
  std::optional<std::int64_t> standard{};  ///< value when it is left out; none: it is due, or `same_as`
  std::int64_t least = 0;
  std::string same_as{};        ///< an earlier attribute whose value it takes when it is left out
  std::string standard_name{};  ///< of unit kName, when it is left out; "": it is due
};

/// A parameter or a buffer of one layer.
struct LayerTensor {
  std::string suffix;  ///< `weight`; the full name is `<layer>.weight`
  Shape shape{};
  bool is_integer = false;
  bool expert = false;  ///< where ranks share experts: of one that only this rank has
};

/// Tokens of one sequence that an expert takes at most; 0: there is no limit.
std::int64_t expert_capacity(const Layer& layer);
/// Tokens of one sequence that experts compute, each once for every expert that takes it, free places among them.
std::int64_t expert_rows(const Layer& layer);

/// By what ranks share a layer, in Layer::texts.
inline constexpr const char* kShared = "shared by";
/// The dimension of a parameter along which they do; -1 for what each has whole.
int shared_dimension(const Layer& layer, const LayerTensor& tensor);

/// What one layer costs per sample, in float32 (4 B per element). Parameters' own bytes are not in the
/// traffic.
/// Behind the name of what leaves shared layers: the exchange that gathers their input again.
inline constexpr const char* kAgain = ".again";

struct LayerCost {
  /// 2 per multiply-add; batch norm and RMS norm 4, layer norm 8, ReLU, GELU, SiLU, tanh and products 1 per element; pooling, additions,
  /// softmax, rotary positions, dropout and looking up embeddings 0.
  Flop forward{};
  Bytes forward_traffic{};  ///< activations read and written once each; batch norm reads twice (statistics,
                            ///< then scaling)
  Bytes backward_traffic{};
  bool is_view = false;      ///< the output is the input's memory
  bool saves_input = false;  ///< autograd keeps the input for the backward
  bool saves_output = false;
  bool gathers_again = false;  ///< the output does not stay for the backward, whoever saves it
  Flop again{};                ///< that the backward computes a second time
  Bytes saved_besides{};  ///< kept beside activations: max pooling's int64 indices, 8 B per output element
  Bytes masks{};          ///< of that, dropout's noise, of which a GPU keeps one byte per element
  /// Kernels that an eager framework launches on a GPU in the forward; a view launches none.
  int kernels = 1;
  /// Of a layer that is several kernels: the part of the traffic that kernels of their own move, which
  /// compute next to nothing (attention's copies, softmax and dropout).
  Bytes forward_memory_bound{}, backward_memory_bound{};
  Bytes forward_cpu_only{}, backward_spared{};  ///< of the traffic, what a GPU's dropout does not move
  std::vector<Gemm> products{};                 ///< whose flop and traffic are among the above
  std::optional<FusedAttention> attention{};
  InFloat32 in_float32{};
  /// Of attention, what lies between q, k, v and its output: what it computes, keeps, and of that dropout's noise.
  std::vector<LayerWork> core{};
  Bytes core_saved{}, core_masks{};
  /// Of attention around a ring, its steps in the order of the forward, the last ones of the layer: their flop and traffic are
  /// among the above, their kernels are not.
  std::vector<LayerWork> steps{};
};

/// The order in which autograd accumulates the gradients of one layer's parameters.
enum class ReadyOrder : std::uint8_t {
  kRegistered,  ///< Conv2d, BatchNorm2d, norms: weight, bias
  kReversed,    ///< Linear: bias, weight; attention: value, key, query; experts: the last one first
  kFirstLast    ///< embedding: position, type, word, since the words are looked up first
};

/// What an input must be: so many dimensions.
struct InputForm {
  std::size_t least = 0, most = 3;
  std::string words{};   ///< `channels x height x width`
  std::string remedy{};  ///< `; put a flatten before it`
};

/// A sum over the elements of the input and those of the output.
struct PerElement {
  double in = 0.0, out = 0.0;
};

struct LayerKind {
  std::string name;
  std::string torch_class{};  ///< `Conv2d`; "" for what is no module in PyTorch and has no row
  std::vector<Attribute> attributes{};
  InputForm input{};
  std::vector<std::string> branches{};  ///< keys of two lists of layers: Layer::body and Layer::shortcut
  /// From input shape and sizes; the input's unless set. \throws InputError when they do not fit each other
  std::function<Shape(const Layer&)> output{};
  std::function<std::vector<LayerTensor>(const Layer&)> parameters = no_tensors;  ///< in registration order
  std::function<std::vector<LayerTensor>(const Layer&)> buffers = no_tensors;     ///< in registration order
  double flop = 0.0;  ///< per element of the output; or, of a layer that is a product of matrices, 2 m n k:
  Gemm (*product)(const Layer&) = nullptr;
  PerElement forward{}, backward{};  ///< elements of 4 B that are read or written
  bool is_view = false, saves_input = false, saves_output = false;
  /// What the numbers above do not say of the cost.
  std::function<void(const Layer&, LayerCost&)> adjust{};
  ReadyOrder ready_order = ReadyOrder::kRegistered;
  /// Of a layer that is several modules in PyTorch; else the layer has one row, or none without a name.
  std::function<std::vector<LayerRow>(const Layer&)> rows{};
  bool needs_no_name = false;  ///< parameters may be called after their suffix alone: `wte.weight`

  static std::vector<LayerTensor> no_tensors(const Layer& /*layer*/) { return {}; }
};

/// From input shape and sizes. \throws InputError when the input does not fit
Shape output_of(const Layer& layer);
LayerCost cost_of(const Layer& layer);

/// `<layer>.<suffix>`, or the suffix alone where the layer has no name.
std::string full_name(const Layer& layer, const std::string& suffix);

const std::vector<LayerKind>& layer_kinds();
std::vector<std::string> layer_kind_names();

/// \pre `name` is in the table
const LayerKind& layer_kind(const std::string& name);

std::int64_t numel(const Shape& shape);

/// Of that many float32.
constexpr Bytes float32_bytes(double count) { return Bytes(4.0 * count); }
inline Bytes float32_bytes(const Shape& shape) { return float32_bytes(static_cast<double>(numel(shape))); }

/// Fills, for every segment, parameters, buffers, rows and per-sample costs, and the model's lists of them.
///
/// Parameters and buffers are registered in forward order, a residual's body before its shortcut, as a
/// PyTorch module lists them. Gradients become ready in the opposite order of the layers, a shortcut's before
/// its body's (autograd runs the later node first), and within a layer as LayerKind says.
///
///     backward flop = 2 forward flop; layers up to the first one with parameters need no gradient of their
///     input, and take 1 forward flop
///
/// Saved bytes are what a segment's forward allocates and leaves behind for the backward: activations that a
/// layer keeps (each once, however many layers keep it), its own output, and pooling's indices. The input
/// belongs to the segment before. Transient workspace and allocator rounding are left out; `measure` observes
/// the real figure.
///
/// \pre every layer has its input and output shapes
/// \returns the name of a tensor that two layers share, or "" when all names are unique
std::string complete(Model& model);

}  // namespace stepcast

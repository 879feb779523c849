#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.hpp"

/// Kinds of layers. models/operators/layers.yaml lists them with their attributes, which are numbers in
/// `Layer::sizes` and names in `Layer::texts`; functions in the `*_layers.cpp` contain the arithmetic that
/// follows. Images are channels x height x width, sequences positions x features. Kinds are the modules of
/// PyTorch with their names, but for
///
/// | kind               | meaning                                                                          |
/// |--------------------|----------------------------------------------------------------------------------|
/// | `residual`         | y = body(x) + shortcut(x)                                                        |
/// | `product`          | y = gate(x) * value(x), by element                                               |
/// | `fixed`            | declared times and sizes                                                         |
/// | `embedding`        | one table each of words, positions and types; 0 positions: none of positions     |
/// | `relu2`            | the square of ReLU                                                               |
/// | `dropout`          | of a percentage; 0 is the identity                                               |
/// | `linear`           | on the last dimension; `lora` is the rank of an adapter                          |
/// | `latent_attention` | of DeepSeek-V3; `nope`, `rope` and `value` are sizes of the parts of a head      |
/// | `mamba`            | Mamba 2; `conv` is the number of taps                                            |
/// | `tied_linear`      | y = x weight^T with the weight of the earlier segment `to`                       |
/// | `next_tokens`      | norms of x and of the next tokens' embeddings, joined; `to` has the embedding    |
/// | `own_head`         | head and loss once more, y = x                                                   |
/// | `operators`        | tensors and costs of somebody's own: models/given_layer.hpp                      |
///
/// `tensor_parallel` contains `layers` that `ranks` share: attention by heads, the others by columns, the
/// last layer by rows, or by columns too with `output: split`; an embedding by rows of its table. The reader
/// puts `tensor_enter` before them (its backward sums the gradients over the ranks) and `tensor_leave` after
/// them (its forward sums the parts and adds the bias of the last layer). With `sequence`, ranks have parts
/// of the sequence outside: enter gathers them and leave scatters its sums (Korthikanti et al., "Reducing
/// Activation Recomputation", 2023). With one rank only its layers remain.
///
/// Attention: `kv_heads`: each key and value serves heads / kv_heads heads of q; `rotary`: rotary positions;
/// `norms`: an RMSNorm over each head's q and k; `fused`: one projection for q, k and v; `flash`:
/// probabilities are never stored; `eager`: norms and rotary positions are separate PyTorch kernels (so is an
/// `rms_norm`); `repeat_kv`: with `flash`, keys and values are copied for every head of q that reads them;
/// `output_copied`: the output of FlashAttention is copied into another order of dimensions and saved twice;
/// `context`: the input is one of that many ranks' parts of the sequence, and keys and values of all parts
/// are gathered (Llama 3; work of causal attention counts as balanced). With `ring` each part rotates through
/// the ring instead, while ranks attend to the part before. Ring attention requires `flash` and no dropout of
/// probabilities.
///
/// `window`: a position sees so many keys, its own included (sliding window; 0: all before it), but in every
/// `full_every`-th block all of them.
///
/// Experts: for each token the router chooses `active` of `experts` feed-forward layers with SiLU gates, or
/// without gates with GELU or squared ReLU, evenly; one of width `shared` sees every token. With `latent` the
/// others see a projection of that width. With `capacity` an expert takes at most that share of its
/// even part of a sequence of s tokens, ceil(capacity s active/experts), the first that chose it. The others
/// skip it, and free places are computed as zeros, so sizes do not depend on the choice. `ranks` have equal
/// parts of the experts; two all-to-alls move tokens there and back (Lepikhin et al., "GShard", 2020, whose
/// groups are sequences here).
namespace stepcast {

/// Unit of a number in a model file; settings and attributes must agree in it.
enum class Unit : std::uint8_t { kCount, kFlag, kBytes, kNanoseconds, kName };
std::string to_text(Unit unit);

/// An attribute is required if it has no default value, no `same_as` and no default name.
struct Attribute {
  std::string key;
  Unit unit = Unit::kCount;
  std::optional<std::int64_t> default_value{};
  std::int64_t least = 0;
  std::string same_as{};  ///< earlier attribute that provides the default
  std::string default_name{};

  [[nodiscard]] bool required() const { return !default_value && same_as.empty() && default_name.empty(); }
};

/// A parameter or a buffer of one layer.
struct LayerTensor {
  std::string suffix;  ///< `weight`; the full name is `<layer>.weight`
  Shape shape{};
  bool is_integer = false;
  bool expert = false;  ///< true if only this one of the expert-parallel ranks has it
  int divided = -1;     ///< dimension along which ranks divide this expert; -1: none
  bool frozen = false;  ///< true if it has no gradient
};

/// Rank of the adapters beside a layer's weights; 0 if there are none.
std::int64_t adapter_rank(const Layer& layer);

/// Parameters of a layer in registration order. Beside each weight W of `out` x `in` a layer with adapters of
/// rank r has A (r x in) and B (out x r): y = W x + scale B (A x) (Hu et al., "LoRA", 2021).
std::vector<LayerTensor> parameters_of(const Layer& layer);

/// Maximum number of tokens of one sequence that an expert takes; 0: unlimited.
std::int64_t expert_capacity(const Layer& layer);
/// Tokens of one sequence that experts compute, counted once per expert that takes them, free places
/// included; of the rank with the most.
std::int64_t expert_rows(const Layer& layer);
/// Features of what experts receive.
std::int64_t expert_width(const Layer& layer);

/// Key in Layer::texts: by what tensor-parallel ranks divide a layer.
inline constexpr const char* kShared = "shared by";
/// Dimension of a parameter along which these ranks, or those of an expert, divide it; -1: each rank has it
/// whole.
int shared_dimension(const Layer& layer, const LayerTensor& tensor);

/// Kinds of multi-token prediction: the input of a module, and its use of the head.
inline constexpr const char *kNextTokens = "next_tokens", *kOwnHead = "own_head";

/// GEMMs of an expert in the order of registration: gate, up and down, or without `gated` up and down.
std::vector<const char*> expert_parts(const Layer& layer);

/// Suffix of the all-to-all that takes tokens to their experts.
inline constexpr const char* kDispatch = ".dispatch";

/// Suffix of the collective that gathers the input of shared layers again in the backward.
inline constexpr const char* kRegather = ".regather";

/// Attributes that the model sets, not the file: Model::transformer_engine, Model::compiled.
inline constexpr const char *kTransformerEngine = "transformer_engine", *kCompiled = "compiled";

/// Cost of one layer per sample in float32 (4 B per element), without the traffic of parameters.
struct LayerCost {
  /// Flop: 2 per multiply-add; batch norm and RMS norm 4, layer norm 8, ReLU, GELU, SiLU, tanh and products 1
  /// per element; pooling, additions, softmax, rotary positions, dropout and embeddings 0. Traffic:
  /// activations read and written once each; batch norm reads twice (statistics, then scaling).
  std::vector<Kernel> kernels{};
  /// Memory-bound ones with a roofline of their own: copies, softmax, dropout.
  std::vector<Kernel> separate{};
  std::vector<Kernel> steps{};  ///< of ring attention in the order of the forward
  bool is_view = false;         ///< the output is the input's memory
  bool saves_input = false;     ///< autograd saves the input for the backward
  bool saves_output = false;
  /// True if the backward gathers the output again. The output then never counts as saved, even if a later
  /// layer saves its input.
  bool regathers = false;
  Workspace workspace{};

  void for_each(const auto& visit) const {
    for (const std::vector<Kernel>* list : {&kernels, &steps, &separate})
      for (const Kernel& kernel : *list) visit(kernel);
  }
};

/// The order in which autograd accumulates the gradients of one layer's parameters.
enum class ReadyOrder : std::uint8_t {
  kRegistered,  ///< Conv2d, BatchNorm2d, norms: weight, bias
  kReversed,    ///< Linear: bias, weight; attention: value, key, query; experts: the last one first
  kGiven,       ///< listed: GivenLayer::ready
  kFirstLast    ///< embedding: position, type, word, since the words are looked up first
};

/// Number of dimensions of an input.
struct InputForm {
  long long least = 0, most = 3;
  std::string words{};   ///< `channels x height x width`
  std::string remedy{};  ///< `; put a flatten before it`
};

/// A sum over the elements of the input and those of the output.
struct PerElement {
  double in = 0.0, out = 0.0;
};

/// What autograd saves for the backward.
enum class Kept : std::uint8_t { kNothing, kInput, kOutput };

struct ElementCost {
  double flop = 0.0;                 ///< per element of the output
  PerElement forward{}, backward{};  ///< elements of 4 B that are read or written
  Kept kept = Kept::kNothing;
};

/// Functions of a kind, and what models/operators/layers.yaml has of it. A kind without functions here works
/// on each element alone.
struct LayerKind {
  std::string name;
  /// From input shape and sizes; the input's unless set. \throws InputError if they do not fit each other
  std::function<Shape(const Layer&)> output{};
  std::function<std::vector<LayerTensor>(const Layer&)> parameters = no_tensors;  ///< in registration order
  /// Costs that the members below do not express.
  std::function<void(const Layer&, LayerCost&)> adjust{};
  std::function<std::vector<LayerTensor>(const Layer&)> buffers = no_tensors;  ///< in registration order
  Gemm (*gemm)(const Layer&) = nullptr;  ///< of a layer that is a GEMM: 2 m n k flop

  std::vector<Attribute> attributes{};
  InputForm input{};
  std::vector<std::string> branches{};  ///< keys of two lists of layers: Layer::body and Layer::shortcut
  ElementCost each{};
  bool is_view = false;
  ReadyOrder ready_order = ReadyOrder::kRegistered;
  bool needs_no_name = false;  ///< parameters may be called after their suffix alone: `wte.weight`
  std::string shared_by{};     ///< by what tensor-parallel ranks divide it: `heads`; "": they do not
  /// Attributes that these ranks divide, and their names in messages.
  std::vector<std::pair<std::string, std::string>> divided{};

  static std::vector<LayerTensor> no_tensors(const Layer& /*layer*/) { return {}; }
};

/// From input shape and sizes. \throws InputError if the input does not fit
Shape output_of(const Layer& layer);
LayerCost cost_of(const Layer& layer);

/// `<layer>.<suffix>`, or the suffix alone if the layer has no name.
std::string full_name(const Layer& layer, const std::string& suffix);

const std::vector<LayerKind>& layer_kinds();

/// \pre `name` is in the table
const LayerKind& layer_kind(const std::string& name);

std::int64_t numel(const Shape& shape);

/// Bytes of `count` float32.
constexpr Bytes float32_bytes(double count) { return Bytes(4.0 * count); }
inline Bytes float32_bytes(const Shape& shape) { return float32_bytes(static_cast<double>(numel(shape))); }

/// Fills, for every segment, parameters and per-sample costs, and the model's lists of parameters and
/// buffers.
///
/// Parameters and buffers are registered in forward order, a residual's body before its shortcut, as a
/// PyTorch module lists them. Gradients become ready in the opposite order of the layers, a shortcut's before
/// its body's (autograd runs the later node first), and within a layer as LayerKind specifies.
///
///     backward flop = 2 forward flop; layers up to the first one with parameters need no gradient of their
///     input, and take 1 forward flop
///
/// Saved bytes are those that a segment's forward allocates and leaves for the backward: activations that a
/// layer saves (each once, however many layers save it), its own output, and pooling's indices. The input
/// belongs to the segment before. Transient workspace and allocator rounding are left out; `measure` observes
/// the real figure.
///
/// \pre every layer has its input and output shapes
/// \returns the name of a tensor that two layers share, or "" if all names are unique
std::string complete(Model& model);

}  // namespace stepcast

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "models/execution.hpp"
#include "models/kernel.hpp"
#include "models/precision.hpp"

/// A model is described once, in YAML, as segments of layers. The arithmetic below and the LibTorch module of
/// the runner both follow from that description.
namespace stepcast {

using Shape = std::vector<std::int64_t>;  ///< per sample, without the batch dimension

struct GivenLayer;

/// A layer of the YAML file. `kind` names a kind of models/operators/layers.yaml.
struct Layer {
  std::string kind{};
  /// Name as in PyTorch: `layer4.1.conv2`; parameters are `<name>.weight`, `<name>.bias`. Empty: no
  /// parameters.
  std::string name{};
  std::map<std::string, std::int64_t> sizes{};  ///< numbers (`out`, `kernel`, ...), defaults filled in
  std::map<std::string, std::string> texts{};   ///< attributes that are names: of tables, of a tied parameter
  Shape input{}, output{};
  std::vector<Layer> body{};      ///< first branch of `residual` (y = body(x) + shortcut(x)) or `product`
  std::vector<Layer> shortcut{};  ///< second branch; empty: the identity
  std::shared_ptr<const GivenLayer> given{};  ///< of kind `operators`
  bool frozen = false;  ///< true if its parameters, but those of adapters, have no gradients
};

struct Parameter {
  std::string name;
  Shape shape;
  int segment = 0;
  Bytes size;      ///< in the dtype of parameters
  Bytes gradient;  ///< in the dtype of gradients; 0 if it is frozen
  Bytes reduced;   ///< of the gradient in the dtype of reductions between ranks
  /// Dimension along which tensor-parallel ranks divide it evenly, of an expert those of `expert_tensor`; -1:
  /// every rank has the whole parameter.
  int shared_dimension = -1;
  /// True if tensor-parallel ranks sum its gradient, because each sees a part of the tokens or heads it acts
  /// on.
  bool summed = false;
  bool expert = false;     ///< true if only one of the expert-parallel ranks has it
  bool frozen = false;     ///< true if it has no gradient and is never updated
  bool quantized = false;  ///< true for a weight whose GEMMs run in 8 or 4 bit
  Bytes not_gathered{};    ///< part of `size` that an all-gather of shards does not send (`gather=fp8`)
  Bytes copies{};          ///< cast copies that GEMMs read, on a rank that has the whole parameter
  Bytes casts{};           ///< copies that autocast makes in every forward
  /// Size in an all-gather of shards.
  [[nodiscard]] Bytes gathered() const { return size - not_gathered; }
  [[nodiscard]] std::int64_t numel() const;
  /// The array of its gradient that is reduced: of two (bf16+fp32) the accumulators.
  [[nodiscard]] Bytes accumulated() const {
    return std::min(gradient, Bytes(4.0 * static_cast<double>(numel())));
  }
};

/// A named buffer (batch norm's running statistics). Not trained, broadcast by DDP.
struct Buffer {
  std::string name;
  Shape shape;
  bool is_integer = false;  ///< int64 (num_batches_tracked), else float32
  int segment = 0;
  Bytes size;
};

/// Collectives inside a layer. kMaximum is an all-reduce of the largest elements. kShift sends to the next
/// rank of a ring and receives from the previous one, concurrently with compute until the next kWait.
enum class LayerCollectiveKind : std::uint8_t {
  kAllReduce,
  kMaximum,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kShift,
  kWait
};

/// Ranks of a collective inside a layer: tensor-parallel, context-parallel, expert-parallel, or those that
/// divide an expert.
enum class LayerCollectiveGroup : std::uint8_t { kTensor, kContext, kExpert, kExpertTensor };

/// A collective of tensor parallelism (Shoeybi et al., "Megatron-LM", 2019), context parallelism or expert
/// parallelism (Lepikhin et al., "GShard", 2020) inside a segment's forward, backward or loss. The segment
/// blocks on it. Ring attention's shifts overlap with compute instead.
struct LayerCollective {
  std::string name;  ///< of the layer; unique together with `backward`
  LayerCollectiveKind kind = LayerCollectiveKind::kAllReduce;
  int segment = -1;  ///< -1: of the loss
  bool backward = false;
  /// Whole array, as in nccl-tests; of an all-to-all and a shift what one rank sends, its own block included.
  Bytes per_sample{};
  Bytes fixed{};  ///< the same, for the part that does not grow with the samples
  int work = 0;   ///< number of entries of Segment::work before it, in forward order
  int ready = 0;  ///< in a backward: number of entries of Segment::parameters with gradients before it
  LayerCollectiveGroup group = LayerCollectiveGroup::kTensor;
  double rows = 0.0;        ///< per sample, of tokens on their way to experts or back
  bool in_float32 = false;  ///< in every precision

  /// True for tokens on their way to experts or back.
  [[nodiscard]] bool dispatches() const {
    return group == LayerCollectiveGroup::kExpert && kind == LayerCollectiveKind::kAllToAll;
  }
};

/// Bytes per sample that a kernel holds while it runs, above what it finds and what it leaves.
struct Workspace {
  Bytes forward{}, backward{};
};

/// Bytes per sample that a forward allocates and leaves for the backward; estimated, `measure` observes them.
struct SavedBytes : KeptBytes {
  Bytes attended{};  ///< part of `size`: inputs of GEMMs with weights that the attention before them saves
  Workspace workspace{};  ///< not part of `size`: of the layer that needs most
};

/// Work that the backward does first because its results were not saved (see recomputing()).
struct RecomputedWork {
  std::vector<LayerWork> work;
  SavedBytes saved;  ///< allocated again for the backward
};

/// Declared times of kind `fixed`: a synthetic model that needs no trace.
struct FixedTimes {
  Seconds forward{0}, backward{0};  ///< per sample or per batch: ModelInput::declared_per
};

/// The unit of measurement, of pipeline stages and of FSDP wrapping. Autograd runs segment by segment,
/// detached at the boundaries. Flop and bytes are per sample.
struct Segment {
  std::string name;
  std::vector<Layer> layers;    ///< in forward order
  std::vector<int> parameters;  ///< indices into Model::parameters in the order their gradients become ready
  std::vector<int> tied;        ///< parameters that it uses but an earlier segment owns (a tied head)
  struct Frozen {
    std::vector<int> own;    ///< its parameters without gradients, in registration order
    std::vector<int> tied;   ///< parameters without gradients that it uses but an earlier segment owns
    bool all_before = true;  ///< true if nothing before it is trained
  } frozen;
  std::vector<int> collectives;  ///< indices into Model::collectives: of the forward, then of the backward
  std::vector<LayerWork> work;   ///< layer by layer, in forward order
  RecomputedWork recomputed;
  /// One of the equal blocks of a `repeat`, which a pipeline distributes over its stages.
  bool repeated = false;
  Shape output;
  struct Flops {
    Flop forward, backward;
  } flop;  ///< backward = 2 forward, less without a gradient of the input or of frozen weights
  struct Traffic {
    Bytes forward, backward;
  } traffic;          ///< activations read and written, without parameters
  Bytes output_size;  ///< sent over a pipeline boundary
  SavedBytes saved;
  std::optional<FixedTimes> fixed{};

  /// True if a kernel of its forward fulfils `condition`.
  [[nodiscard]] bool any(const auto& condition) const {
    return std::ranges::any_of(work, [&](const LayerWork& one) { return one.any(condition); });
  }
  /// True for a module of multi-token prediction, which belongs to the last stage of a pipeline.
  [[nodiscard]] bool predicts_later_tokens() const;
  /// Its own parameters, those without gradients last.
  [[nodiscard]] std::vector<int> all_parameters() const;
  /// True if its backward computes gradients of parameters, its own or an earlier segment's.
  [[nodiscard]] bool trains() const { return !parameters.empty() || !tied.empty(); }
  /// True if its backward computes the gradient of its input.
  [[nodiscard]] bool passes_gradient() const { return !frozen.all_before; }
  /// False for frozen segments before all trained ones.
  [[nodiscard]] bool has_backward() const {
    return passes_gradient() || trains() || (frozen.own.empty() && frozen.tied.empty());
  }
  /// Share of the backward that computes weights' gradients and can be deferred: 1 if no gradient is passed
  /// on, one half of declared times, else by flop.
  [[nodiscard]] double weight_part() const;
  /// Number of leading works that a recomputation runs if it ends once everything is there that the backward
  /// reads: those before the last GEMM with weights. With adapters that GEMM is included, and so is a later
  /// kernel that saves its input. A segment with a router runs all works.
  [[nodiscard]] std::size_t needed_works() const;
  /// Their part of the forward, by flop.
  [[nodiscard]] double needed_part() const;
  /// True if a collective of its forward is part of such a recomputation.
  [[nodiscard]] bool needs(const LayerCollective& one) const;
};

struct Optimizer {
  std::string kind;  ///< `sgd`, `adam`, `none`
  double learning_rate = 0.01, momentum = 0.0, weight_decay = 0.0;
  bool muon = false;  ///< Muon updates the weights of blocks, see models/muon.hpp; `kind` updates the others

  /// Numbers that it keeps for each parameter: SGD 0, with momentum 1, Adam 2.
  [[nodiscard]] int states() const { return kind == "adam" ? 2 : kind == "sgd" && momentum > 0.0 ? 1 : 0; }
  /// True if it updates each element alone, so that ranks can update parts of an array.
  [[nodiscard]] bool is_elementwise() const { return kind != "none" && !muon; }
};

/// Parts of a block that its backward recomputes: one, or a sum of several. Recomputation of whole blocks is
/// the strategies' (--recompute full).
enum class RecomputedPart : std::uint8_t {
  kNothing = 0,
  kOperations = 1,         ///< `per-op`: all but attention and every second GEMM with weights; alone
  kCoreAttention = 2,      ///< `core_attn`, alone `selective`: from q, k and v to attention's output
  kNorm = 4,               ///< `layernorm`: of the input of experts and of latent attention
  kUpProjection = 8,       ///< `mla_up_proj`: from latents to q, k and v
  kExpertActivation = 16,  ///< `moe_act`
  kSharedExpert = 32,      ///< `shared_experts`
  kExperts = 64            ///< `moe`: from the norm's output on, with the all-to-alls
};

/// True if a module is one of those.
[[nodiscard]] inline bool contains(RecomputedPart modules, RecomputedPart one) {
  return (static_cast<unsigned>(modules) & static_cast<unsigned>(one)) != 0;
}
/// `none`, `selective`, `per-op`, or modules joined by `+`.
std::string to_text(RecomputedPart part);
/// The part of these texts; empty if it is not known.
std::optional<RecomputedPart> recomputed_part(const std::string& text);
/// Names of Megatron's modules.
std::vector<std::string> recomputed_modules();

struct ModelInput {
  Shape shape;         ///< per sample
  std::string kind;    ///< `image`, `features` (any numbers), `tokens`, `none`
  int vocabulary = 0;  ///< of tokens: ids are 0 ... vocabulary - 1
  /// Unit of declared times and outputs: `sample`, `batch` (of one rank, whatever its samples), or empty: not
  /// declared.
  std::string declared_per;
  int documents = 0;  ///< tokens of each of the documents in a sequence, see in_documents(); 0: one document
};

struct Loss {
  /// `cross_entropy`, `binary_cross_entropy`, `none`; of a network of one's own `mean_square` (mean over all
  /// squared outputs) or `own` (the output is the loss)
  std::string kind;
  /// Of cross_entropy. The output is [classes] per sample, or [sequence, classes]: one prediction per
  /// position.
  int classes = 0;
  bool in_place = false;  ///< softmax and gradient overwrite the fp32 copy of the outputs
  /// The same by a compiler, which copies what is overwritten (Megatron's native fusion).
  bool compiled = false;
  bool eager = false;  ///< PyTorch's kernels one by one, not compiled or fused
  bool fused = false;  ///< no copy of the outputs; the gradient overwrites them (Transformer Engine)
  int chunks = 1;  ///< parts of the positions; outputs and loss of one exist at a time (torchtitan, Liger)
};

/// Ranks that share one copy of a model. Everything in a Model is one rank's part; the others' parts are
/// equal.
struct ModelParallel {
  int tensor = 1;                  ///< ranks that share layers
  bool sequence_parallel = false;  ///< outside the shared layers each rank has a part of the sequence
  bool batch_first = false;        ///< tensors are copied before a reduce-scatter and after an all-gather
  int context = 1;                 ///< ranks with equal parts of every sequence and whole parameters
  bool ring = false;               ///< keys and values rotate through the ring instead of being gathered
  bool ulysses = false;            ///< each of these ranks attends with some heads over the whole sequence
  int expert = 1;  ///< of the data-, context- and tensor-parallel ranks: those with different experts each
  int expert_tensor = 1;  ///< ranks that divide the matrices of each expert
  int host = 8;           ///< GPUs of a host or rack, in one NVLink domain
  /// By settings of models, which are dimensions of a mesh, too.
  [[nodiscard]] std::array<std::pair<const char*, int>, 4> degrees() const {
    return {{{"context", context}, {"expert", expert}, {"expert_tensor", expert_tensor}, {"tensor", tensor}}};
  }
  /// Ranks with all experts together.
  [[nodiscard]] int expert_ranks() const { return expert * expert_tensor; }
};

struct Model {
  std::string name;  ///< `netflix-mlp`
  /// Canonical, with the values that differ from the defaults: `netflix-mlp:hidden=256`.
  std::string specification;
  std::string path;                              ///< of the YAML file
  std::map<std::string, std::int64_t> settings;  ///< resolved: counts, bytes or nanoseconds
  ModelInput input;
  Loss loss;
  Optimizer optimizer;
  Precision precision;  ///< of all bytes
  Execution execution;
  RecomputedPart recomputed_part = RecomputedPart::kNothing;
  std::vector<Segment> segments;
  std::vector<Parameter> parameters;         ///< in registration order, as PyTorch's `parameters()`
  std::vector<Buffer> buffers;               ///< in registration order
  std::vector<LayerCollective> collectives;  ///< empty if ranks share nothing
  ModelParallel parallel;

  [[nodiscard]] Bytes parameter_bytes() const;
  /// Of the parameters that a segment of this model owns, those without gradients too.
  [[nodiscard]] Bytes parameter_bytes(const Segment& segment) const;
  /// Of those of them that have gradients.
  [[nodiscard]] Bytes trained_bytes(const Segment& segment) const;
  [[nodiscard]] Bytes gradient_bytes(const Segment& segment) const;
  /// Bytes that an update of `count` parameters moves: the gradient read, the weights (the master copy's, if
  /// there is one) and each state read and written, the parameters written. fp32: SGD 12 B each, with
  /// momentum 20, Adam 28; with a kernel per operation (`foreach`) momentum 32, Adam with decay 80, as
  /// measured (docs/research/own-h100.md). Clipping reads the gradient once more, and may read and write it.
  [[nodiscard]] Bytes update_traffic(double count) const;
  /// The same for the parameters of a segment, with those that Muon updates.
  [[nodiscard]] Bytes update_traffic(const Segment& segment) const;
  /// Bytes of an element of gradients on the host: in the dtype of what they update.
  [[nodiscard]] double host_gradient() const;
  /// Bytes that the host moves to update parameters. \param reads_norm reads the gradients once more for
  /// their norm \param writes parameters beside the master copy
  [[nodiscard]] Bytes host_update_traffic(double count, bool reads_norm, bool writes) const;
  /// Bytes of an element of the gradients that the optimizer reads: accumulators alone.
  [[nodiscard]] double element_of_gradient() const {
    return std::min(bytes_of(precision.gradients), bytes_of("fp32"));
  }
  /// Bytes per element that one read by the optimizer and the passes over the gradients move.
  [[nodiscard]] double read_gradient() const;
  /// Bytes that the update of a shard moves, over update_traffic(): it reads reduced gradients.
  /// \param gathers parameters are in shards, too: PyTorch's FSDP has the master copy's dtype in both, and
  /// casts them when it gathers
  [[nodiscard]] double shard_update(bool gathers) const;
  /// Bytes that the optimizer keeps for `count` parameters: its states and the master copy. Muon updates
  /// `muon_count` of them.
  [[nodiscard]] Bytes optimizer_bytes(double count, double muon_count = 0.0) const;
  /// True for a weight of two dimensions inside a block, if the optimizer has Muon.
  [[nodiscard]] bool by_muon(const Parameter& parameter) const {
    return optimizer.muon && !parameter.frozen && parameter.shape.size() == 2 &&
           segments[parameter.segment].repeated;
  }
  /// Elements of a parameter that Muon updates: all or none.
  [[nodiscard]] double muon_elements(const Parameter& parameter) const {
    return by_muon(parameter) ? static_cast<double>(parameter.numel()) : 0.0;
  }
  /// Number of states that the optimizer keeps for each element.
  [[nodiscard]] int states_of(const Parameter& parameter) const {
    return by_muon(parameter) ? 1 : optimizer.states();
  }
  [[nodiscard]] std::int64_t parameter_count() const;
  /// Indices of the parameters with gradients, in registration order.
  [[nodiscard]] std::vector<int> trained() const;
  [[nodiscard]] std::int64_t trained_count() const;
  [[nodiscard]] std::int64_t trained_count(const Segment& segment) const;
  /// Parameter indices in the order their gradients become ready.
  [[nodiscard]] std::vector<int> ready_order() const;
  [[nodiscard]] Flop forward_flop() const;  ///< per sample
  /// Positions of a sequence on rank `part` of `context`, `count` of them: those from part * count on; in a
  /// ring the chunks `part` and 2c - 1 - part of 2c, so that causal attention is equal work on every rank.
  [[nodiscard]] std::vector<std::int64_t> positions(int part, std::int64_t count) const;
  [[nodiscard]] int ranks_of(const LayerCollective& collective) const;
  /// Number of ranks with this parameter, of `ranks` data-parallel ones.
  [[nodiscard]] int replicas(const Parameter& parameter, int ranks) const {
    return parameter.expert ? ranks * parallel.tensor / parallel.expert_ranks() : ranks;
  }
  /// True if the output is one rank's part of the classes, so that the loss needs collectives.
  [[nodiscard]] bool shares_classes() const;
  [[nodiscard]] Bytes input_bytes() const;  ///< per sample: float32, tokens int64
  /// Length of a sequence; 0 if samples are not sequences.
  [[nodiscard]] double tokens_per_sample() const {
    return input.kind == "tokens" ? static_cast<double>(input.shape.front()) : 0.0;
  }
  /// Bytes of the buffers of one dtype: group 0 float32, group 1 int64, the order in which DDP broadcasts
  /// them.
  [[nodiscard]] Bytes buffer_bytes(int dtype_group) const;
  /// True if layers have the kernels and buffers of Transformer Engine, as Megatron calls it.
  [[nodiscard]] bool transformer_engine() const;
  /// True if torch.compile decides what blocks save: of element-wise functions what a GEMM reads alone, and
  /// with torchao's fp8 not even that, since the backward makes and casts it again
  /// (torch/_functorch/partitioners.py, min_cut_rematerialization_partition, of torch 2.11).
  [[nodiscard]] bool compiled() const;
  /// True if torch.compile's graph of the loss reads the outputs and writes their gradient in their dtype.
  [[nodiscard]] bool compiles_loss() const;
  /// True if the loss is a cross entropy of single kernels, whose backward reads log-softmax in fp32 alone.
  [[nodiscard]] bool has_eager_loss() const {
    return loss.kind == "cross_entropy" && !loss.fused && !loss.in_place && !loss.compiled &&
           !compiles_loss();
  }
  /// True for sums of gradients over ranks that Megatron makes once per step: those of replicated weights
  /// (megatron/core/distributed/finalize_model_grads.py).
  [[nodiscard]] bool sums_in_last_micro_batch(const LayerCollective& collective) const {
    return transformer_engine() && collective.backward && collective.per_sample == Bytes(0);
  }
  /// True if a kernel of the forward fulfils `condition`.
  [[nodiscard]] bool has_kernel(const auto& condition) const {
    return std::ranges::any_of(segments, [&](const Segment& segment) { return segment.any(condition); });
  }
  /// True if a router chooses among experts.
  [[nodiscard]] bool has_experts() const;
  /// True if the YAML declares times, so that a prediction needs no trace.
  [[nodiscard]] bool has_fixed_times() const;
};

/// Returns a model with declared times whose times and outputs are those of a micro-batch of
/// batch/micro_batches samples, outputs per sample: \pre has_fixed_times()
///
///     per: sample     time = declared * batch/micro_batches      output = declared
///     per: batch      time = declared / micro_batches            output = declared / batch
///
/// A micro-batch costs its share of the batch: lower efficiency of small kernels is left out.
/// \throws InputError if the model has no `per` and a batch or micro-batches make it matter
Model declared_for(const Model& model, int batch, int micro_batches);

/// Returns the model in another precision: activations, their traffic and the weights that GEMMs read in
/// `compute`, tensors in their own parts. Dropout's noise has the compute dtype if a CPU draws it, and one
/// byte if `byte_masks`, as in PyTorch's GPU kernels. \pre model.precision is fp32 throughout, and times are
/// not declared \param transposes the device needs a transposed copy of operands in fp8 (before Blackwell)
Model in_precision(Model model, const Precision& precision, bool byte_masks = false, bool transposes = true);

/// Returns the model for sequences of packed documents, whose tokens attend to their own document alone. All
/// have `length` tokens: of d = sequence / length documents attention computes 1/d of the products. Of
/// documents of several lengths that is the sum of their squares over their sum. Context-parallel ranks have
/// equal parts of every document. Saved bytes and messages are those of whole sequences.
/// \pre no precision yet \throws UsageError for models whose attention is not in one kernel, and documents
/// longer than a sequence
Model in_documents(Model model, int length);

/// Adds the casts of PyTorch's autocast to a model with weights in fp32 and GEMMs in 16 bit (ATen/
/// autocast_mode.h): those of weights in every forward, whose copies stay for the backward, of their
/// gradients, and of inputs in fp32. Norms, softmax, powers and sums with them are in fp32, and what these
/// keep. \pre no bytes are in 16 bit yet
void autocast(Model& model);

/// Marks the GEMMs that a recipe runs in 8 or 4 bit, and adds their casts. \pre bytes are those of the other
/// parts, and `products` names a recipe
void quantize(Model& model, bool transposes);

/// Returns the model with a part of its blocks recomputed:
///
/// - `selective`, of Megatron (Korthikanti et al., "Reducing Activation Recomputation", 2023): attention's
///   scores and probabilities; q, k, v and the output are saved. With s positions, width h, a heads and b
///   samples a layer of GPT saves 34 s b h bytes in 16 bit, instead of 34 s b h + 5 a s^2 b with stored
///   probabilities. Keys and values that ranks gathered stay.
/// - `per-op`, of torchtitan (apply_ac, selective_ac_option = "op"): a block saves the outputs of attention,
///   of the first, third, ... GEMM with weights and of reduce-scatters, and its own. The rest runs again up
///   to the last GEMM, or to the last dropout, with its all-gathers and all-reduces. All of it lives to the
///   end of the backward.
/// - modules of Megatron (`--recompute-modules`), of layers with Transformer Engine's kernels: their outputs
///   are not saved, and their kernels run again.
///
/// \pre no precision yet \throws InputError for a model without attention, without such a module, or
/// (`per-op`) without blocks or with experts
Model recomputing(Model model, RecomputedPart part);

/// Loads `name[:key=value[,key=value]]` or a path to a YAML file with the same suffix.
/// \throws InputError for an unknown model, key, kind or value; the message names the nearest known one.
Model load_model(const std::string& specification);

}  // namespace stepcast

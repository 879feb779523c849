#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "models/precision.hpp"

/// A model is described once, in YAML, as segments of layers. The arithmetic below and the LibTorch module of
/// the runner both come from that one description.
namespace stepcast {

using Shape = std::vector<std::int64_t>;  ///< per sample, without the batch dimension

/// One layer as written in the YAML. `kind` names an entry of the layer table (models/layer.hpp); `sizes`
/// holds its integer attributes (`out`, `kernel`, `padding`, `stride`, `bias`, ...), defaults filled in.
struct Layer {
  std::string kind;
  /// As in PyTorch: `layer4.1.conv2`; parameters are `<name>.weight`, `<name>.bias`. Empty for a function
  /// without parameters and without a row.
  std::string name;
  std::map<std::string, std::int64_t> sizes;
  std::map<std::string, std::string> texts;  ///< attributes that are names: of tables, of a tied parameter
  Shape input;                               ///< per sample
  Shape output;                              ///< per sample
  std::vector<Layer> body;      ///< first branch of kind `residual` (y = body(x) + shortcut(x)) or `product`
  std::vector<Layer> shortcut;  ///< the second; an empty one is the identity
};

struct Parameter {
  std::string name;
  Shape shape;
  int segment = 0;
  Bytes size;      ///< in the dtype of parameters
  Bytes gradient;  ///< its gradient's, in their dtype
  Bytes reduced;   ///< the same on its way between ranks
  /// Of a model that ranks share: the dimension along which they do, each an equal part of it; -1: all have the whole.
  int shared_dimension = -1;
  /// Every rank of those that share the model sees a part of the tokens (or heads) that this one acts on, so that its
  /// gradient is the sum over them.
  bool summed = false;
  /// Of an expert: of the ranks that share the experts no other one has it.
  bool expert = false;
  bool float8 = false;  ///< a weight whose products are computed in float8
  Bytes spared{};       ///< of `size`, what does not travel to ranks that have a shard of it
  Bytes copies{};       ///< of a rank that has the whole: in float8, which products read in place of it
  /// On its way to ranks that have a shard of it.
  [[nodiscard]] Bytes gathered() const { return size - spared; }
  [[nodiscard]] std::int64_t numel() const;
};

/// A named buffer (batch norm's running statistics). Not trained, broadcast by DDP.
struct Buffer {
  std::string name;
  Shape shape;
  bool is_integer = false;  ///< int64 (num_batches_tracked), else float32
  int segment = 0;
  Bytes size;
};

/// One layer's row in the table that `models/` and papers print.
struct LayerRow {
  std::string name;
  std::string type;  ///< PyTorch's class name: `Conv2d`
  Shape output;
  std::int64_t parameters = 0;
  Flop forward;  ///< per sample, 2 per multiply-add
};

/// A product of matrices of the forward, C[m,n] = A[m,k] B[k,n], m = rows * samples. Where `heads` is not 0, every sample has so
/// many products of its own, m = rows. Its gradients are dA = dC B^T and dB = A^T dC.
struct Gemm {
  double rows = 0.0, columns = 0.0, depth = 0.0;  ///< m (of a sample), n, k
  double heads = 0.0;
  double times = 1.0;    ///< one after the other, as experts are
  bool chooses = false;  ///< a router's, which is in no lower precision than activations are
  bool float8 = false;   ///< A, B and the gradients of C are cast for it: see multiply_in_float8()
};

/// Attention in one kernel, of each sample: softmax(q k^T / sqrt(d)) v of every head.
struct FusedAttention {
  double heads = 0.0, kv_heads = 0.0;        ///< of q, and of k and v, each of which several heads may read
  double rows = 0.0, keys = 0.0;             ///< q is rows x d, k keys x d, v keys x w
  double head_size = 0.0, value_size = 0.0;  ///< d, w
  bool causal = false;                       ///< half of the products are computed
};

/// What kernels of PyTorch's eager code move and keep in fp32 whatever activations are: numbers per sample.
struct InFloat32 {
  double forward = 0.0, backward = 0.0;  ///< moved; in the traffic too
  double forward_casts = 0.0,
         backward_casts = 0.0;  ///< read in one dtype and written in the other, unless that is fp32 too
  double kept = 0.0;            ///< for the backward; in what is saved too
};

/// What one kernel, or several that are much alike, must do: the input of a roofline, and of laws that know shapes.
struct LayerWork {
  Flop forward{}, backward{};  ///< per sample; backward 0 where no gradient is needed
  Flop again{};                ///< per sample: of the forward, that the backward computes a second time
  Bytes forward_traffic{}, backward_traffic{};  ///< per sample: activations read and written
  Bytes forward_weights{}, backward_weights{};  ///< whatever the batch: weights read, their gradients written
  Bytes forward_cpu_only{},
      backward_spared{};              ///< of the samples' traffic, what a GPU's dropout does not move
  int forward_kernels = 0;            ///< launched on a GPU
  int backward_kernels = 0;           ///< two for each forward one of a layer with weights: dx and dw
  std::vector<Gemm> products{};       ///< among the kernels; flop and traffic are counted above
  bool needs_input_gradient = false;  ///< both gradients of a product are computed, else that of B alone
  std::optional<FusedAttention> attention{};
  InFloat32 in_float32{};

  /// Of the products of activations with weights, those without heads: how many, flop per sample of the gradients of their
  /// weights, which a pipeline may put off, and elements per sample of the output's gradients that it keeps for that.
  [[nodiscard]] double weight_products() const;
  [[nodiscard]] Flop weight_gradients() const;
  [[nodiscard]] double product_outputs() const;
};

/// How ranks that share a model's layers put their parts together; kMaximum is an all-reduce of the largest elements. A
/// kShift sends to the next rank around a ring and receives from the one before, beside what is computed until the kWait
/// that comes after it.
enum class ExchangeKind : std::uint8_t {
  kAllReduce,
  kMaximum,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kShift,
  kWait
};

/// Who does: those that share layers, have parts of the sequence all the way, or have some of the experts each.
enum class ExchangeGroup : std::uint8_t { kTensor, kContext, kExpert };

/// A collective in the middle of a segment's forward or backward (or of the loss), which cannot go on without it but for a
/// shift, among
/// the ranks that share the model's layers (tensor parallelism: Shoeybi et al., "Megatron-LM", 2019), among those that
/// have parts of the sequence all the way (context parallelism), or among those that have some of the experts each (expert
/// parallelism: Lepikhin et al., "GShard", 2020).
struct LayerCollective {
  std::string name;  ///< of the layer; unique together with `backward`
  ExchangeKind kind = ExchangeKind::kAllReduce;
  int segment = -1;  ///< -1: of the loss
  bool backward = false;
  Bytes
      per_sample{};  ///< the whole array, as in nccl-tests; of an all-to-all and a shift what one rank sends, its own block too
  Bytes fixed{};  ///< the same, of what does not grow with the samples
  int work = 0;   ///< how many of Segment::work lie before it in forward order
  int ready = 0;  ///< of a backward: how many of Segment::parameters have their gradients before it
  ExchangeGroup group = ExchangeGroup::kTensor;
};

/// The unit of measurement, of pipeline stages and of FSDP wrapping. Autograd runs segment by segment,
/// detached at the boundaries.
struct Segment {
  std::string name;
  std::string kind;             ///< `conv`, `residual`, `linear`, `fixed`
  std::vector<Layer> layers;    ///< in forward order
  std::vector<int> parameters;  ///< indices into Model::parameters in the order their gradients become ready
  std::vector<int> tied;     ///< parameters that it uses but an earlier one owns (a tied language model head)
  std::vector<int> buffers;  ///< indices into Model::buffers
  std::vector<int>
      exchanges;  ///< indices into Model::exchanges, in the order of the forward, then of the backward
  std::vector<LayerRow> rows;
  std::vector<LayerWork> work;  ///< layer by layer, in forward order
  /// Of the forward, what the backward computes first, since it was not kept (see recomputing()).
  std::vector<LayerWork> recomputed;
  bool repeated = false;  ///< one of the equal blocks of a `repeat`, which a pipeline deals out to its stages
  Shape input, output;    ///< per sample
  Flop forward, backward;  ///< per sample; backward = 2 forward, first segment less: no input gradient
  /// Per sample: activations read and written; parameters come on top.
  Bytes forward_traffic, backward_traffic;
  Bytes output_size;   ///< per sample: what a pipeline boundary sends
  Bytes saved_size;    ///< per sample: kept for the backward, estimated; `measure` observes it
  Bytes mask_size;     ///< of that, dropout's noise
  Bytes float32_size;  ///< of that, what is fp32 in every precision
  Bytes linear_size;   ///< of that, inputs that nothing keeps but products with weights
  Bytes recomputed_size, recomputed_mask_size,
      recomputed_float32_size;  ///< per sample: what `recomputed` makes anew for the backward
  /// Declared times of kind `fixed` (a synthetic model that needs no trace), of what Model::per says.
  std::optional<Seconds> fixed_forward, fixed_backward;

  /// Whether its backward makes gradients of parameters, its own or those of an earlier segment.
  [[nodiscard]] bool trains() const { return !parameters.empty() || !tied.empty(); }
  /// The part of the backward that weights' gradients are, which can be put off: all where nothing is handed on, of
  /// declared times half, else by flop.
  [[nodiscard]] double weight_part(bool hands_on) const;
};

struct Optimizer {
  std::string kind;  ///< `sgd`, `adam`, `none`
  double learning_rate = 0.01;
  double momentum = 0.0;
  double weight_decay = 0.0;

  /// Numbers that it keeps for each parameter: SGD 0, with momentum 1, Adam 2.
  [[nodiscard]] int states() const;
};

/// What of a block runs again in its backward, whoever trains it; units of whole blocks are the strategies' (--recompute full).
enum class RecomputedPart : std::uint8_t {
  kNothing,
  kCoreAttention,  ///< `selective`: from q, k and v to attention's output
  kOperations      ///< `per-op`: all but attention and every second product with weights
};

/// `none`, `selective` or `per-op`.
std::string to_text(RecomputedPart part);

struct Model {
  std::string name;  ///< `netflix-mlp`
  /// Canonical, with the values that differ from the defaults: `netflix-mlp:hidden=256`.
  std::string specification;
  std::string path;  ///< of the YAML file
  std::string description;
  /// Resolved settings of the YAML: counts, bytes or nanoseconds.
  std::map<std::string, std::int64_t> settings;
  Shape input;             ///< per sample
  std::string input_kind;  ///< `image`, `features`, `tokens`, `none`
  int vocabulary = 0;      ///< of tokens: ids are 0 ... vocabulary - 1
  /// Of cross_entropy. The output is [classes] per sample, or [sequence, classes]: one prediction per
  /// position.
  int classes = 0;
  std::string loss;  ///< `cross_entropy`, `binary_cross_entropy`, `none`
  bool loss_in_place =
      false;  ///< softmax and gradient of a cross entropy overwrite the fp32 copy of the outputs
  bool loss_eager = false;  ///< a cross entropy of PyTorch's kernels one by one, not compiled or fused
  Optimizer optimizer;
  Precision precision;  ///< of all bytes below
  RecomputedPart recomputed_part = RecomputedPart::kNothing;
  /// What declared times and outputs are of: `sample`, or `batch`, the whole one of a rank however many
  /// samples it has; "": not said.
  std::string per;
  std::vector<Segment> segments;
  std::vector<Parameter> parameters;       ///< in registration order, as PyTorch's `parameters()`
  std::vector<Buffer> buffers;             ///< in registration order
  std::vector<int> ready_order;            ///< parameter indices in the order their gradients become ready
  std::vector<LayerCollective> exchanges;  ///< none where ranks share no layers
  /// Ranks that share the layers: everything in this model is one rank's part. The others' parts are alike.
  int tensor = 1;
  bool sequence_parallel = false;  ///< outside the shared layers each rank has its part of the sequence
  bool batch_first = false;        ///< which is copied where it is gathered or scattered
  /// Ranks that have equal parts of every sequence, and whole parameters; `input` is a part.
  int context = 1;
  bool ring = false;  ///< where keys and values go round among them, instead of being gathered
  /// Ranks that have so many different parts of the experts each, and everything else whole; each has its own samples.
  int expert = 1;

  [[nodiscard]] Bytes parameter_bytes() const;
  /// Of the parameters that a segment of this model owns.
  [[nodiscard]] Bytes parameter_bytes(const Segment& segment) const;
  [[nodiscard]] Bytes gradient_bytes() const;
  [[nodiscard]] Bytes gradient_bytes(const Segment& segment) const;
  /// Read and written by an update of so many parameters: the gradient read, the weights (the master copy's, where there
  /// is one) and each state read and written, the parameters written. fp32: SGD 12 B each, with momentum 20, Adam 28.
  [[nodiscard]] Bytes update_traffic(double count) const;
  /// What the optimizer keeps of so many parameters: its states, and the master copy.
  [[nodiscard]] Bytes optimizer_bytes(double count) const;
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] std::int64_t parameter_count(const Segment& segment) const;
  [[nodiscard]] Flop forward_flop() const;  ///< per sample
  /// Which positions of a sequence rank `part` of `context` has, `count` of them in order: those from part * count on; around a
  /// ring the chunks `part` and 2c - 1 - part of 2c, so that causal attention is as much work on every rank.
  [[nodiscard]] std::vector<std::int64_t> positions(int part, std::int64_t count) const;
  [[nodiscard]] int ranks_of(const LayerCollective& exchange) const;
  /// Of `ranks` that train beside each other, those that have this parameter.
  [[nodiscard]] int replicas(const Parameter& parameter, int ranks) const {
    return parameter.expert ? ranks / expert : ranks;
  }
  /// Whether the output is one rank's part of the classes, so that the loss takes exchanges.
  [[nodiscard]] bool shares_classes() const;
  [[nodiscard]] Bytes input_bytes() const;  ///< per sample: float32, tokens int64
  /// Bytes of the buffers of one dtype: group 0 float32, group 1 int64, the order in which DDP broadcasts
  /// them.
  [[nodiscard]] Bytes buffer_bytes(int dtype_group) const;
  /// True when times are declared in the YAML, so that a prediction needs no trace.
  [[nodiscard]] bool has_fixed_times() const;
};

/// A model with declared times, these and its outputs as those of a micro-batch of batch/micro_batches
/// samples, outputs per sample: \pre has_fixed_times()
///
///     per: sample     time = declared * batch/micro_batches      output = declared
///     per: batch      time = declared / micro_batches            output = declared / batch
///
/// A micro-batch is taken to cost its part of the batch: that small kernels run less efficiently is left out.
/// \throws InputError where the model does not say `per` and a batch or micro-batches make it matter
Model declared_for(const Model& model, int batch, int micro_batches);

/// The same model in another precision: activations, their traffic and the weights that products read in `compute`,
/// tensors in their own parts. Dropout's noise is of the compute dtype where a CPU draws it, and one byte where
/// `byte_masks`, as PyTorch's kernels keep it on GPUs. \pre model.precision is fp32 throughout, and times are not declared
Model in_precision(Model model, const Precision& precision, bool byte_masks = false);

/// Marks what the policy `fp8` multiplies in float8, and adds what that moves. \pre bytes are those of the other parts
void multiply_in_float8(Model& model);

/// The same model, a part of whose blocks is computed again:
///
/// - `selective`, of Megatron (Korthikanti et al., "Reducing Activation Recomputation", 2023): attention's scores and
///   probabilities; kept are q, k, v and the output. With s positions, width h, a heads and b samples a layer of GPT keeps
///   34 s b h bytes in 16 bit, instead of 34 s b h + 5 a s^2 b with stored probabilities. Keys and values that ranks
///   gathered stay.
/// - `per-op`, of torchtitan (apply_ac, selective_ac_option = "op"): a block keeps the outputs of attention, of the first,
///   third, ... product with weights and of reduce-scatters, and its own; the rest runs again up to the last product, or to
///   the last dropout, with the all-gathers and all-reduces in it. All of it is held to the end of the backward.
///
/// \pre no precision yet \throws InputError for a model without attention, or (`per-op`) without blocks or with experts
Model recomputing(Model model, RecomputedPart part);

/// Loads `name[:key=value[,key=value]]` or a path to a YAML file with the same suffix.
/// \throws InputError for an unknown model, key, kind or value; the message names the nearest known one.
Model load_model(const std::string& specification);

/// Names of the shipped models, sorted.
std::vector<std::string> model_names();

}  // namespace stepcast

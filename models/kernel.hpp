#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "core/units.hpp"

/// Kernels of a layer: what each computes, how it is launched, and what it keeps for the backward. Precision,
/// recomputation and tensor parallelism transform this list; time, memory, flop and launches are read from
/// it.
namespace stepcast {

/// Matrix multiplication of the forward, C[m,n] = A[m,k] B[k,n], m = rows * samples. If `heads` is not 0,
/// every sample has `heads` multiplications of its own, m = rows. Gradients: dA = dC B^T and dB = A^T dC.
struct Gemm {
  double rows = 0.0, columns = 0.0, depth = 0.0;  ///< m (of a sample), n, k
  double heads = 0.0;
  double times = 1.0;         ///< repetitions one after the other, one per expert
  bool shares_input = false;  ///< true if A is that of the GEMM before
  bool chooses = false;       ///< true for a router, whose precision is never below that of activations
  bool adapts = false;        ///< true for a matrix of an adapter, whose precision is never below either
  bool expert = false;        ///< true for a GEMM of routed experts
  bool frozen = false;        ///< true if B is a frozen weight: dB is not computed
  bool low = false;           ///< true if A, B and the gradients of C are cast to 8 or 4 bit: see quantize()
  /// True if B is a weight.
  [[nodiscard]] bool has_weight() const { return heads <= 0.0; }
  /// True if B is a weight whose gradient is computed.
  [[nodiscard]] bool trains_weight() const { return has_weight() && !frozen; }
  [[nodiscard]] double flop() const {
    return 2.0 * rows * columns * depth * times * (heads > 0.0 ? heads : 1.0);
  }
};

/// Attention in one kernel, per sample: softmax(q k^T / sqrt(d)) v of every head.
struct FusedAttention {
  double heads = 0.0, kv_heads = 0.0;        ///< of q; of k and v, each of which several heads may read
  double rows = 0.0, keys = 0.0;             ///< q is rows x d, k keys x d, v keys x w
  double head_size = 0.0, value_size = 0.0;  ///< d, w
  bool causal = false;                       ///< half of the products are computed
  double window = 0.0;  ///< keys that a position of causal attention sees, its own included; 0: all before it
  double documents = 1.0;  ///< equal ones in a sequence; rows see keys of their own alone
  bool sinks = false;      ///< true if the backward computes gradients of learned sinks
  /// Mean number of keys that a row sees.
  [[nodiscard]] double seen() const;
  [[nodiscard]] double flop() const { return 2.0 * heads * rows * seen() * (head_size + value_size); }
};

/// What a memory-bound kernel moves: its dtype, and whether fewer bytes per second than most kernels do.
enum class Moved : std::uint8_t {
  kCompute,     ///< that of activations
  kFloat32,     ///< fp32 in every precision
  kCast,        ///< between fp32 and a narrower one; nothing in fp32
  kNoise,       ///< dropout's noise, which kernels of GPUs do not move
  kTransposed,  ///< activations whose dimensions are exchanged, with fewer bytes per second
  kStrided,     ///< halves of the rows of activations, with fewer bytes per second
  kQuantized    ///< casts to 8 or 4 bit, with fewer bytes per second
};

/// Bytes per sample that a kernel leaves for the backward, beside inputs and outputs of its layer.
struct KeptBytes {
  Bytes size{};
  Bytes masks{};        ///< part of `size`: dropout's noise, of which a GPU keeps one byte per element
  Bytes float32{};      ///< part of `size`: fp32 in every precision
  Bytes gemm_inputs{};  ///< part of `size`: inputs that only GEMMs with weights save

  /// Adds `factor` times these.
  void add(const KeptBytes& more, double factor = 1.0) {
    for (const auto part :
         {&KeptBytes::size, &KeptBytes::masks, &KeptBytes::float32, &KeptBytes::gemm_inputs})
      this->*part += factor * (more.*part);
  }
};

/// What a kernel does for its layer, where that matters to a recomputation, a recipe or a framework.
enum class KernelRole : std::uint8_t {
  kOther,
  kNorm,
  kCoreAttention,     ///< between q, k, v and attention's output
  kUpProjection,      ///< from the latents of multi-head latent attention to q, k and v
  kExpertActivation,  ///< between the two GEMMs of routed experts
  kSharedExpert,      ///< the expert that sees every token
  kSort,              ///< of tokens by expert, which flexible dispatchers do on the way
  kScan,              ///< of state-space layers, over chunks of the sequence
  kBatchFirst,  ///< copies between sequence-first and batch-first arrays, which equal those of one sample
  kExpertBias,  ///< added to the outputs of experts, weighted
  kPromoted,    ///< one that autocast computes in fp32: embeddings, powers
  kLeave,       ///< after the layers that tensor-parallel ranks share; it saves nothing
  kResidual     ///< a sum, which autocast computes in the dtype of its widest input
};

/// A kernel of the forward, or several similar ones, with its gradients in the backward. Flop and bytes are
/// per sample, without parameters.
struct Kernel {
  std::variant<std::monostate, Gemm, FusedAttention> computes{};  ///< first: a memory-bound kernel
  Flop flop{};                                                    ///< of the forward
  double useful = 1.0;  ///< fraction that counts in MFU; below 1 with tokens beyond the mean (imbalance)
  Bytes forward{}, backward{};  ///< activations read and written
  int launches = 1;
  int backward_launches = -1;  ///< -1: as many, twice as many in a layer with weights (dx and dw)
  int experts = 1;             ///< each launches it once for itself, unless their GEMMs are one kernel
  Moved moved = Moved::kCompute;
  KernelRole role = KernelRole::kOther;
  bool captured = false;  ///< launched by a CUDA graph
  KeptBytes kept{};

  /// Sets a GEMM or fused attention, and its flop.
  void compute(const auto& operation) {
    computes = operation;
    flop = Flop(operation.flop());
  }
  /// Flop of the backward; `gradients` as in LayerWork. A GEMM with a frozen weight has one gradient less.
  [[nodiscard]] Flop backward_flop(double gradients) const;
  [[nodiscard]] const Gemm* gemm() const { return std::get_if<Gemm>(&computes); }
  [[nodiscard]] Gemm* gemm() { return std::get_if<Gemm>(&computes); }
  [[nodiscard]] bool has_weight() const { return gemm() != nullptr && gemm()->has_weight(); }
  [[nodiscard]] bool is_router() const { return gemm() != nullptr && gemm()->chooses; }
  [[nodiscard]] bool is(KernelRole one) const { return role == one; }
  [[nodiscard]] const FusedAttention* attention() const { return std::get_if<FusedAttention>(&computes); }
};

/// Kernels between two collectives or of one layer, which a roofline takes together.
struct LayerWork {
  std::vector<Kernel> kernels{};
  /// Flop of the backward over those of the forward: 0 if no gradient is needed, 1 if that of weights alone.
  /// GEMMs with frozen weights have one gradient less.
  double gradients = 0.0;
  Bytes forward_weights{}, backward_weights{};  ///< weights read, gradients written; whatever the batch

  [[nodiscard]] Flop forward() const;
  [[nodiscard]] Flop backward() const;
  /// Part of the forward that the backward of fused attention computes again: q k^T.
  [[nodiscard]] Flop recomputed() const;
  [[nodiscard]] Bytes traffic(bool forward) const;
  [[nodiscard]] int launches(bool forward) const;
  /// Launches by the launch thread: of kernels outside CUDA graphs.
  [[nodiscard]] int issued(bool forward) const;
  /// Modules of Megatron and Transformer Engine with kernels outside CUDA graphs: norms before layers,
  /// attention, routers, and products of weights, of which those of q, k and v, and those of all experts, are
  /// one. A graph of a layer is one too: an autograd function in Python replays it.
  [[nodiscard]] int modules() const;
  /// Number of GEMMs that compute weights' gradients.
  [[nodiscard]] double weight_gradient_gemms() const;
  /// Flop of the weights' gradients, which a pipeline may defer.
  [[nodiscard]] Flop weight_gradients() const;
  /// Elements of output gradients that a deferred computation keeps.
  [[nodiscard]] double gemm_outputs() const;
  /// True if a kernel fulfils `condition`.
  [[nodiscard]] bool any(const auto& condition) const { return std::ranges::any_of(kernels, condition); }
  [[nodiscard]] bool has_weight() const { return any(&Kernel::has_weight); }
  [[nodiscard]] bool has_router() const { return any(&Kernel::is_router); }
  void for_each_gemm(const auto& visit) const {
    for (const Kernel& kernel : kernels)
      if (const Gemm* gemm = kernel.gemm()) visit(*gemm);
  }
};

}  // namespace stepcast

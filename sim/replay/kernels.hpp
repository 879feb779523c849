#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/units.hpp"
#include "models/model.hpp"
#include "topologies/devices.hpp"

/// Times of a GPU's kernels, by what they compute and its shape.
namespace stepcast {

/// A GEMM's forward, the gradient of its weights, and that of its input.
enum class GemmPass : std::uint8_t { kForward, kWeights, kInput };

/// Rates of a GPU's kernels for one dtype.
struct KernelRates {
  FlopPerSecond peak;      ///< of the data sheet
  double reached = 1.0;    ///< part of it that large GEMMs reach
  double attention = 1.0;  ///< rate of fused attention, relative to its parameters
  BytesPerSecond memory;   ///< reached
  BytesPerSecond memory_peak;
  double element = 4.0;  ///< bytes
  double output = 0.0;   ///< bytes of an element of C; 0: as of A and B
  double depth = 0.0;
  int multiprocessors = 1;
  const KernelParameters* parameters = nullptr;
  const AttentionTable* attention_table = nullptr;
};

/// Rate of copies that exchange dimensions, such as heads and positions, over that of most memory-bound
/// kernels: 1.0 over 2.9 TB/s for bf16 on an H100 (a diffusion transformer's kernels among the tests of
/// AMD-AGI/TraceLens). Other GPUs are taken to be alike.
inline constexpr double kTransposedPart = 0.34;

/// The same of the backward of norms without Transformer Engine. PyTorch's RMS norms reach 1.5 to 1.8 TB/s on
/// an H200 and 2.0 to 2.3 TB/s on GB200, compiled ones 1.7 to 2.3 and 2.0 to 3.2 TB/s (NVIDIA's
/// cudnn-frontend, benchmark/norms), where others reach 0.8 and 0.7 of the bandwidth.
inline constexpr double kNormBackwardPart = 0.45;

/// The same of clamps of half rows, and of what joins and divides them: 1.8 over 2.7 TB/s for Megatron's of
/// GPT-OSS on an H100 (docs/research/own-h100.md). Other GPUs are taken to be alike.
inline constexpr double kStridedPart = 0.66;

/// Part of the memory bandwidth with which cuDNN reads attention's output and its gradient again for the
/// gradients of sinks: 67 MB in 0.43 ms, 268 MB in 1.9 ms on an H100 (`compute_dot_do_o_specialized` of cuDNN
/// 9.19 in GPT-OSS, docs/research/own-h100.md; without sinks it takes a tenth). Other GPUs are taken to be
/// alike.
inline constexpr double kSinksPart = 0.043;

/// Kind of attention that runs on a device: the first of a preference with rates; in fp32 and tf32 PyTorch's
/// memory-efficient kernel, if it has rates. \throws InputError that
/// names the kinds that the device has
/// \param model it has rates for, too; null: any
std::string attention_kind(const DeviceModel& device, const std::string& preference,
                           const Model* model = nullptr);

/// Time of a GEMM C[m,n] = A[m,k] B[k,n], or of `count` equal ones in one kernel:
///
///     t = start + min over tiles T = Tm x Tn and parts s in {1, 2, 4, 8} of |compute, memory|_4
///     compute = w 2 Tm Tn (k/s + depth) SM / (e_T P)
///     w = max(1, (1 - waves) u + waves ceil(u)),  u = count s ceil(m/Tm) ceil(n/Tn) / SM
///     e_T = e g(a) / g(85.3),  a = Tm Tn / (Tm + Tn),  g(a) = a / (a + tile)
///     memory = count (element (m k + k n) + output m n) / W + [s > 1] 4 output split s m n count / W_peak
///
/// with tiles of 256x128 down to 64x64, SM multiprocessors, P the peak rate, e the part of it that large
/// GEMMs reach, W the memory bandwidth that kernels reach, and |a, b|_4 = (a^4 + b^4)^(1/4). Small and skinny
/// GEMMs lose time to waves of tiles over the multiprocessors (waves), to filling a tile's pipeline (depth),
/// and to reading small tiles (tile). Splitting k fills the device if there are few tiles. Constants:
/// topologies/devices/kernels.yaml. Left out: shapes for which the library picks a bad kernel (up to 30 %
/// slower).
Seconds product_time(double m, double n, double k, double count, const KernelRates& rates);

/// Time of fused attention: forward 4 rows keys d flop per head, half of them if causal; backward 2.5 times
/// that. If values have another size than keys, d is the mean of both. AttentionParameters give the rate, for
/// head sizes between known ones on a line in their logarithm, beyond them as the nearest. In a window of w
/// keys a row computes w + 64, since its two borders fill half of a block of 128 each on average, at the
/// rate of a causal sequence of 2 w keys, whose rows see as many. Of the flop of windows cuDNN's benchmarks
/// reach 165 and 187 TFLOP/s (128 keys, GB200, heads of 64), 350 and 300 (1,024 keys, H200). Gradients of
/// sinks come on top. Documents of n keys take as long as sequences of n, and at most what one document
/// takes. At least the time to read q, k and v and to write the output.
Seconds attention_time(const FusedAttention& attention, bool forward, double samples,
                       const KernelRates& rates);

/// A GEMM of the forward or of one of its gradients.
struct KernelShape {
  double m, n, k, count;
  double aligned;  ///< part of the rate that its rows reach
  bool low;
  bool gradient;  ///< C is a gradient of weights
  bool grouped;   ///< GEMMs of experts side by side
  auto operator<=>(const KernelShape&) const = default;
};

/// Times of all kernels of a layer: GEMMs and attention as above, and
///
///     start * (other kernels) + (traffic beside that of GEMMs) / W
///
/// A GEMM in half precision with rows that are no multiple of 16 bytes reaches a part of `e` that depends on
/// how many elements still divide the row (`misaligned`, with sources in the file). The part is least for odd
/// rows, such as GPT-2's vocabulary of 50,257. GEMMs in 8 and 4 bit have their own rates, and so have their
/// casts. Experts side by side are one GEMM of `count` equal ones.
class KernelTimes {
 public:
  struct Options {
    double gradient = 0.0;       ///< bytes moved per element of a weight gradient; 0: as of C
    bool joins_experts = false;  ///< GEMMs of experts run side by side
    bool engine = false;         ///< norms are Transformer Engine's
    BytesPerSecond casts{};
    bool exact_gradients = false;  ///< GEMMs of weight gradients are never in 8 or 4 bit
  };
  /// \param low rates of GEMMs in 8 or 4 bit, if there are any
  KernelTimes(const KernelRates& rates, const std::optional<KernelRates>& low, const Options& options)
      : rates_(rates), low_(low.value_or(rates)), options_(options) {}
  Seconds of(const LayerWork& work, bool forward, double samples);
  /// Time of the GEMMs with weights in one pass; gradients take none where none are needed.
  Seconds of_gemms(const LayerWork& work, GemmPass pass, double samples);

 private:
  Seconds of_product(const KernelShape& shape);
  /// Rate of a memory-bound kernel: that of most, or its own; unlimited for copies that one sample does
  /// without.
  [[nodiscard]] BytesPerSecond rate(const Kernel& kernel, bool forward, double samples) const;
  /// Shape of a GEMM in one pass, and how many there are one after the other.
  [[nodiscard]] std::pair<KernelShape, double> kernel(const Gemm& gemm, GemmPass pass, double samples) const;
  KernelRates rates_, low_;
  Options options_;
  std::map<KernelShape, Seconds> products_;  ///< by shape: many layers have the same
};

}  // namespace stepcast

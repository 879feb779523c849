#pragma once

#include <array>
#include <map>
#include <optional>

#include "core/units.hpp"
#include "models/model.hpp"
#include "topologies/devices.hpp"

/// How long kernels of a GPU take, by what they compute and its shape.
namespace stepcast {

/// What a GPU's kernels are computed with: rates of one dtype, at their efficiencies.
struct KernelRates {
  FlopPerSecond peak;      ///< of the data sheet
  double reached = 1.0;    ///< part of it that large products reach
  double attention = 1.0;  ///< over what the laws say
  BytesPerSecond memory;   ///< reached
  BytesPerSecond memory_peak;
  double element = 4.0;  ///< bytes
  double output = 0.0;   ///< of an element of C; 0: as those of A and B
  int multiprocessors = 1;
  const KernelParameters* laws = nullptr;
};

/// One product C[m,n] = A[m,k] B[k,n], or `count` alike of them in one kernel:
///
///     t = start + min over tiles T = Tm x Tn and parts s in {1, 2, 4, 8} of |compute, memory|_4
///     compute = w 2 Tm Tn (k/s + depth) SM / (e_T P)
///     w = max(1, (1 - waves) u + waves ceil(u)),  u = count s ceil(m/Tm) ceil(n/Tn) / SM
///     e_T = e g(a) / g(85.3),  a = Tm Tn / (Tm + Tn),  g(a) = a / (a + tile)
///     memory = count (element (m k + k n) + output m n) / W + [s > 1] 4 output split s m n count / W_peak
///
/// with tiles of 256x128 down to 64x64, SM multiprocessors, P the peak rate, e the part of it that large products reach, W the
/// memory bandwidth that kernels reach, and |a, b|_4 = (a^4 + b^4)^(1/4). The waves of tiles over the multiprocessors, the
/// start of a tile's pipeline (depth) and what a small tile loses to reading (tile) are what small and skinny products cost;
/// splitting k fills the device where there are few tiles. The constants are in topologies/devices/kernels.yaml. Left out:
/// shapes for which the library picks a bad kernel (up to 30 % slower).
Seconds product_time(double m, double n, double k, double count, const KernelRates& rates);

/// Attention in one kernel (FlashAttention 2): forward 4 rows keys d flop per head, half of them if causal; backward 2.5
/// times that; where values have another size than keys, d is the mean of both. flop/s as AttentionParameters says, for head sizes between or beyond those known on a line in their logarithm and as
/// the nearest. No less than reading q, k and v and writing the output takes.
Seconds attention_time(const FusedAttention& attention, bool forward, double samples,
                       const KernelRates& rates);

/// What kernels take, and how much of it those whose bytes take longer than their flop.
struct KernelTime {
  Seconds all{0}, memory{0};

  KernelTime& operator+=(const KernelTime& more) {
    all += more.all;
    memory += more.memory;
    return *this;
  }
};

/// All that a layer's kernels take on the device: products and attention as above, and
///
///     start * (other kernels) + (traffic that is not the products') / W
///
/// A product in half precision of which a row of an operand is no multiple of 16 bytes long reaches a part of `e`, by how many
/// elements still divide it (`misaligned` of the laws, which has the sources): the least part where the row is an odd number of
/// elements, such as GPT-2's vocabulary of 50,257. Products in float8 have rates of their own; what casts for them move is in
/// the traffic.
class KernelTimes {
 public:
  /// \param float8 of products in it, where there are any
  explicit KernelTimes(const KernelRates& rates, const std::optional<KernelRates>& float8 = {})
      : rates_(rates), float8_(float8.value_or(rates)) {}
  KernelTime of(const LayerWork& work, bool forward, double samples);
  /// Of a backward, the products that are gradients of weights.
  Seconds of_weights(const LayerWork& work, double samples);

 private:
  /// \param shape m, n, k, how many at once, the part of the rate that its rows reach, and whether in float8
  Seconds of_product(const std::array<double, 6>& shape);
  KernelRates rates_, float8_;
  std::map<std::array<double, 6>, Seconds> products_;  ///< by shape: layers of a model are alike
};

}  // namespace stepcast

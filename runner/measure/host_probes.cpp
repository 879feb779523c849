#include "runner/measure/host_probes.hpp"

namespace stepcast {
namespace {

constexpr int kOrder = 192;
constexpr std::size_t kStreamFloats = std::size_t{24} << 20U;  // 96 MiB
constexpr std::size_t kPieces = 16;
constexpr std::size_t kPiece = kStreamFloats / kPieces;
constexpr std::size_t kLanes = 16;

}  // namespace

ComputeProbe::ComputeProbe()
    : a_(std::size_t{kOrder} * kOrder, 0.5F),
      b_(std::size_t{kOrder} * kOrder, 0.25F),
      c_(std::size_t{kOrder} * kOrder) {}

void ComputeProbe::run() {
  for (int i = 0; i < kOrder; ++i)
    for (int k = 0; k < kOrder; ++k)
      for (int j = 0; j < kOrder; ++j)
        c_[i * kOrder + j] = (k == 0 ? 0.0F : c_[i * kOrder + j]) + a_[i * kOrder + k] * b_[k * kOrder + j];
}

MemoryProbe::MemoryProbe() : a_(kStreamFloats, 1.0F), b_(kStreamFloats, 2.0F), c_(kStreamFloats, 0.0F) {}

void MemoryProbe::run() {
  const float* __restrict a = a_.data() + next_ * kPiece;
  const float* __restrict b = b_.data() + next_ * kPiece;
  float* __restrict c = c_.data() + next_ * kPiece;
  // A fixed inner length lets the compiler use vectors without a remainder.
  for (std::size_t i = 0; i < kPiece; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) c[i + lane] = a[i + lane] + 3.0F * b[i + lane];
  next_ = (next_ + 1) % kPieces;
}

double MemoryProbe::bytes_per_unit() { return 3.0 * static_cast<double>(kPiece * sizeof(float)); }

}  // namespace stepcast

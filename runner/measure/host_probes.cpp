#include "runner/measure/host_probes.hpp"

#include <dlfcn.h>

namespace stepcast {
namespace {

constexpr int kOrder = 192;
constexpr std::size_t kStreamFloats = std::size_t{24} << 20U;  // 96 MiB
constexpr std::size_t kPieces = 16;
constexpr std::size_t kPiece = kStreamFloats / kPieces;
constexpr std::size_t kLanes = 16;

/// Fortran's sgemm, found in the BLAS that some library of this process has loaded.
using Sgemm = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);

Sgemm find_sgemm() {
  static const Sgemm kFound = [] {
    using SetThreads = void (*)(int);
    if (void* set_threads = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))
      reinterpret_cast<SetThreads>(set_threads)(1);
    return reinterpret_cast<Sgemm>(::dlsym(RTLD_DEFAULT, "sgemm_"));
  }();
  return kFound;
}

void plain_product(const float* a, const float* b, float* c) {
  for (int i = 0; i < kOrder; ++i)
    for (int k = 0; k < kOrder; ++k)
      for (int j = 0; j < kOrder; ++j)
        c[i * kOrder + j] = (k == 0 ? 0.0F : c[i * kOrder + j]) + a[i * kOrder + k] * b[k * kOrder + j];
}

}  // namespace

ComputeProbe::ComputeProbe()
    : a_(std::size_t{kOrder} * kOrder, 0.5F),
      b_(std::size_t{kOrder} * kOrder, 0.25F),
      c_(std::size_t{kOrder} * kOrder) {}

void ComputeProbe::run() {
  const Sgemm sgemm = find_sgemm();
  if (sgemm == nullptr) return plain_product(a_.data(), b_.data(), c_.data());
  constexpr float kOne = 1.0F;
  constexpr float kZero = 0.0F;
  const int order = kOrder;
  sgemm("N", "N", &order, &order, &order, &kOne, a_.data(), &order, b_.data(), &order, &kZero, c_.data(),
        &order);
}

std::string ComputeProbe::kernel() const { return find_sgemm() == nullptr ? "plain loop" : "sgemm"; }

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

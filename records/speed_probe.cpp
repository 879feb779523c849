#include <algorithm>
#include <chrono>
#include <vector>

#include "records/watch.hpp"

/// Compiled with equal options in every build (CMakeLists.txt), so that speeds of two builds can be compared.
namespace stepcast {

double probe_speed() {
  using Clock = std::chrono::steady_clock;
  constexpr int kSlices = 4, kPasses = 120;
  constexpr std::size_t kFloats = std::size_t{32} << 10U;  // 128 KiB
  thread_local std::vector<float> values(kFloats, 0.5F);
  float* const x = values.data();
  double fastest = 0.0;
  Clock::time_point start = Clock::now();
  for (int slice = 0; slice < kSlices; ++slice) {
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = 0; i < kFloats; ++i) x[i] = 0.999F * x[i] + 0.001F;  // towards 1
      asm volatile("" : : "r"(x) : "memory");                                   // every pass is made
    }
    const Clock::time_point end = Clock::now();
    fastest = std::max(fastest, kPasses / std::chrono::duration<double>(end - start).count());
    start = end;
  }
  return fastest;
}

}  // namespace stepcast

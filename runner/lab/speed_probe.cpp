#include "runner/lab/speed_probe.hpp"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/statistics.hpp"

namespace stepcast {

double seconds_to_copy_1_mib() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  constexpr std::size_t kPlaces = 64;  // more than caches hold
  constexpr std::size_t kCopies = 101;
  std::vector<char> memory(kPlaces * kBytes, 1);
  std::vector<double> times;
  for (std::size_t i = 0; i < kCopies; ++i) {
    const char* from = memory.data() + 2 * i % kPlaces * kBytes;
    char* to = memory.data() + (2 * i + 1) % kPlaces * kBytes;
    const Clock::time_point start = Clock::now();
    std::memcpy(to, from, kBytes);
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(times);
}

}  // namespace stepcast

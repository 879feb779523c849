#pragma once

#include <cstddef>
#include <vector>

/// Work of known size for the processor and the memory, without LibTorch and without communication.
namespace stepcast {

/// A matrix product of fixed size as a plain loop: bound by arithmetic, all data in the core's own caches. One
/// thread.
class ComputeProbe {
 public:
  ComputeProbe();
  /// One unit of work: c = a * b, 192 x 192 floats, 14 Mflop.
  void run();

 private:
  std::vector<float> a_, b_, c_;
};

/// Streams three arrays of 96 MiB: c = a + s * b, far beyond a core's own caches (not beyond a shared cache
/// of hundreds of megabytes, which then is what training streams from, too).
class MemoryProbe {
 public:
  MemoryProbe();
  /// One unit of work: a sixteenth of the arrays, the next one at each call.
  void run();
  /// Bytes read and written by one unit, without the read-for-ownership of c.
  [[nodiscard]] static double bytes_per_unit();

 private:
  std::vector<float> a_, b_, c_;
  std::size_t next_ = 0;
};

}  // namespace stepcast

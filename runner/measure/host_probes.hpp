#pragma once

#include <cstddef>
#include <vector>

/// Work of known size for CPU and memory, without LibTorch and without communication.
namespace stepcast {

/// A matrix multiplication of fixed size as a plain loop, bound by arithmetic, with all data in the core's
/// own caches. One thread.
class ComputeProbe {
 public:
  ComputeProbe();
  /// One unit of work: c = a * b, 192 x 192 floats, 14 Mflop.
  void run();

 private:
  std::vector<float> a_, b_, c_;
};

/// Streams three arrays of 96 MiB, c = a + s * b, which exceed a core's own caches. A shared cache of
/// hundreds of megabytes may hold them; training then streams from it, too.
class MemoryProbe {
 public:
  MemoryProbe();
  /// One unit of work: the next sixteenth of the arrays.
  void run();
  /// Bytes read and written by one unit, without the read-for-ownership of c.
  [[nodiscard]] static double bytes_per_unit();

 private:
  std::vector<float> a_, b_, c_;
  std::size_t next_ = 0;
};

}  // namespace stepcast

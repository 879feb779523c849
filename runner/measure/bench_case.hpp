#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/backend/backend.hpp"
#include "runner/measure/sampler.hpp"

namespace stepcast {

/// Arrays of a rank, shared by all collectives and sizes so that memory makes no difference.
struct BenchArrays {
  std::shared_ptr<void> in, out;
};
/// Arrays for messages of up to `largest` bytes, rounded up to equal parts.
BenchArrays bench_arrays(Backend& backend, std::size_t largest);

struct BenchKind;

/// One collective at one size. Every rank has arrays of the whole message.
class BenchCase {
 public:
  /// \param collective a name of `bench_names`
  BenchCase(Backend& backend, const BenchArrays& arrays, const std::string& collective, std::size_t bytes);

  /// `all_reduce 4 KiB`
  [[nodiscard]] std::string name() const;
  /// \see message_bytes
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(float); }
  /// Calls per sample. \param requested 0: 100 for small messages down to 8 for large ones
  [[nodiscard]] int iterations(int requested) const;
  [[nodiscard]] bool is_ping_pong() const;
  /// Ranks that take part.
  [[nodiscard]] std::vector<int> ranks() const;

  void call(int times);
  /// Issues calls without waiting. \pre no ping-pong
  std::vector<WorkPtr> issue(int times);
  /// Calls once on known data. \returns number of wrong elements on this rank
  double check();
  /// Sets the arrays to 0, which stays 0 however often it is summed.
  void clear();
  /// Cost per call by the device's clock, of calls that are queued: from the end of one additional call, at
  /// which all ranks have met. \pre no ping-pong
  Cost queued_calls(int times, DeviceStream& device);

 private:
  WorkPtr issue(const Array& in, const Array& out);
  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(backend_.rank()); }

  Backend& backend_;
  void *in_, *out_;
  const BenchKind& kind_;
  std::size_t world_, count_, part_;
};

}  // namespace stepcast

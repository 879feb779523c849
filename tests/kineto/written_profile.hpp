#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Profiles in Kineto's form with known times, for tests.
namespace stepcast::tests {

/// One layer of a step. Microseconds.
struct WrittenLayer {
  std::vector<std::int64_t> weight;
  double forward = 0.0, backward = 0.0;  ///< of kernels
};

/// A training on a GPU with a launch thread, a thread for the backward, a stream for compute and one for
/// collectives. Every operation launches one kernel. Each step begins when the one before has ended.
struct WrittenProfile {
  std::vector<WrittenLayer> layers{};
  int steps = 3;
  double launch = 5.0;         ///< from one operation to the next on the host
  double optimizer = 50.0;     ///< kernel
  double all_reduce = 0.0;     ///< kernel, launched after the last gradient; 0: none
  double late = 0.0;           ///< this rank begins its all-reduce so much before the others
  bool waits = true;           ///< the host waits for the device at the end of a step
  bool pageable = false;       ///< a step begins with a copy of pageable memory, for which the host waits
  double delay = 0.0;          ///< before the second step's first operation
  std::size_t loss_after = 0;  ///< layers before the loss; 0: no loss
  int forwards = 1;            ///< of micro-batches in a step, before the first backward, as in pipelines
  int accumulate = 1;          ///< steps to each that reduces and updates
  int rank = 0, ranks = 1;
  std::string kernel_category = "kernel", user = "/home/somebody/train.py";

  /// Time of a step on the device, from its first kernel to its last.
  [[nodiscard]] double device_step() const;
  [[nodiscard]] nlohmann::json json() const;
};

}  // namespace stepcast::tests

#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/enum_table.hpp"
#include "sim/kineto/events.hpp"

/// What one rank's profile contains, step by step. Times are microseconds.
namespace stepcast {

inline constexpr double kSecond = 1e6;  ///< us

/// Parts of a step, by what launches or computes them.
enum class StepPart : std::uint8_t { kRest, kInput, kZeroGrad, kForward, kLoss, kBackward, kOptimizer };
inline constexpr auto kStepParts =
    enum_names<StepPart>("other", "input", "zero_grad", "forward", "loss", "backward", "optimizer");

/// Time of the CPU thread, without blocking calls, and of the device.
struct PartTime {
  double host = 0.0, device = 0.0;
  PartTime& operator+=(const PartTime& other) {
    host += other.host;
    device += other.device;
    return *this;
  }
};

/// A gradient that was accumulated: when, and how many elements. 0: shapes were not recorded.
struct ReadyGradient {
  double elements = 0.0;
  std::vector<std::int64_t> extents{};
  double at = 0.0;      ///< on the host
  double host_s = 0.0;  ///< time of the operation's backward that had passed; as `device_s` in microseconds
  double device_s = 0.0;
  int reruns = 0;  ///< of its operation before
  std::string dtype{};
};

/// An outermost operation of the forward, with the autograd nodes that it created.
struct ProfiledOperation {
  std::string name{};         ///< `aten::conv2d`
  std::string module{};       ///< `layer1.conv1`, `nn.Module: Conv2d_3`; "": unknown
  std::string unit{};         ///< FSDP unit; "": of the root, or not sharded
  int event = -1;             ///< its first, of KinetoFile::events
  int micro_batch = 0;        ///< -1: of another kind of forward, see choose_forwards()
  double node_begin = 1e300;  ///< of its backward; 1e300: none
  int reruns = 0;             ///< of its nodes, whose graph a backward retained
  double rerun_begin = 0.0;   ///< of the last one
  bool is_loss = false;
  PartTime forward{}, backward{};
  double strategy = 0.0;                   ///< of the host, for the strategy during its backward
  std::vector<ReadyGradient> gradients{};  ///< of its parameters, in the order in which they became ready
  /// Of its backward: time of the launch, duration on the device.
  std::vector<std::pair<double, double>> launched{};
};

/// A collective that a rank called.
struct ProfiledCollective {
  std::string kind{};   ///< `all_reduce`
  std::string dtype{};  ///< `fp32`; "": unknown
  double bytes = 0.0;   ///< whole array, as in nccl-tests; 0: unknown
  int ranks = 0;
  std::string group{};
  bool in_forward = false;        ///< between operations of the forward
  double called = 0.0;            ///< on the host
  double begin = 0.0, end = 0.0;  ///< on the device, or of the transport thread; 0: no kernel was recorded
  [[nodiscard]] double duration() const { return end - begin; }
};

/// Unions of intervals on the device.
struct DeviceUse {
  double compute = 0.0, copies = 0.0, collectives = 0.0, exposed = 0.0, busy = 0.0;
};

struct ProfiledStep {
  std::string name{};
  double begin = 0.0, end = 0.0;  ///< of the host's loop
  int micro_batches = 0;
  std::vector<ProfiledOperation> operations{};  ///< of all micro-batches, in order
  EnumArray<kStepParts, PartTime> parts{};      ///< without the strategy's
  PartTime strategy{};                          ///< copies into and out of buffers, and calls of collectives
  double waited = 0.0;                          ///< host time between operations before the strategy's: waits
  double blocked = 0.0;                         ///< in calls that wait for the device
  std::vector<ProfiledCollective> collectives{};
  DeviceUse use{};
  std::size_t events = 0, nodes = 0, gradients = 0;
  double device_end = 0.0;  ///< 0: no device event
  [[nodiscard]] double duration() const { return end - begin; }
  /// False for an operation of another step, into which a damaged profile's backward may reach.
  [[nodiscard]] bool has(int operation) const {
    return operation >= 0 && operation < static_cast<int>(operations.size());
  }
};

/// How long a step takes in the middle.
struct StepPace {
  double step_us = 0.0;  ///< of the device if the host runs ahead of it, else of the host
  bool is_device_step = false;
  double stretch = 1.0;  ///< mean of all steps over that of the steps with equal gradients
  double lead_us = 0.0;  ///< by which the host is ahead of the device when a step begins; 0: it waits for it
};

struct ProfiledOptimizer {
  std::string name{};  ///< `AdamW`; "": no `Optimizer.step#`
  int states = -1;     ///< numbers that it keeps for each parameter; -1: nothing is updated
};

struct RankProfile {
  std::string path{};
  KinetoMetadata metadata{};  ///< with the batch, if it was found in the layers
  std::string device{};       ///< name of the GPU; "": not stated
  bool on_device = false;
  std::vector<ProfiledStep> steps{};
  std::vector<ProfiledStep> unlike{};  ///< with other gradients than `steps`
  StepPace pace{};
  std::string compute_dtype{};
  ProfiledOptimizer optimizer{};
  std::string strategy{};                 ///< `ddp`, `fsdp`, or "" if one rank, or none was recognised
  double input_elements = 0.0;            ///< per sample
  std::size_t unlinked = 0;               ///< device events without a launch in the file
  std::size_t buffers = 0, counters = 0;  ///< elements that batch norms keep, and int64 numbers
  std::vector<std::string> notes{};       ///< steps that were left out, cut files

  /// Empty for a CPU.
  [[nodiscard]] std::string gpu() const {
    return !on_device ? "" : device.empty() ? "a GPU that is not named" : device;
  }
};

/// Adds a formatted sentence.
template <class... Values>
void note(std::vector<std::string>& notes, fmt::format_string<Values...> text, Values&&... values) {
  notes.push_back(fmt::format(text, std::forward<Values>(values)...));
}

/// Reads a profile's steps. \throws InputError with what was found if there is no training step
RankProfile read_rank_profile(const std::string& path);

}  // namespace stepcast

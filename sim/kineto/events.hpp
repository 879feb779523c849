#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// Events of a profile of PyTorch in the form of Kineto (pytorch/kineto, libkineto/src/output_json.cpp).
namespace stepcast {

/// Categories that matter (libkineto/include/ActivityType.h).
enum class KinetoCategory : std::uint8_t {
  kOperation,   ///< `cpu_op`
  kAnnotation,  ///< `user_annotation`, and `python_function` of an nn.Module
  kRuntime,     ///< `cuda_runtime`, `cuda_driver`; HIP's calls have the same names
  kKernel,
  kCopy,  ///< `gpu_memcpy`, `gpu_memset`
};

/// Texts by number, each once.
class TextTable {
 public:
  int add(std::string_view text);
  [[nodiscard]] const std::string& operator[](int index) const {
    return texts_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] auto begin() const { return texts_.begin(); }
  [[nodiscard]] auto end() const { return texts_.end(); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, int> indices_;  // views of texts_
};

/// A slice of a thread or of a stream of a device. Microseconds from 0 up.
struct KinetoEvent {
  double begin = 0.0, end = 0.0;
  int name = 0;             ///< of KinetoFile::names
  int number = -1;          ///< sequence() or correlation()
  int arguments = -1;       ///< of KinetoFile::texts: as JSON; -1: none that is used
  std::uint16_t track = 0;  ///< of KinetoFile::tracks
  KinetoCategory category = KinetoCategory::kOperation;
  bool backward = false;  ///< of an autograd node: `Fwd thread id` above 0

  [[nodiscard]] bool operates() const {
    return category == KinetoCategory::kOperation || category == KinetoCategory::kAnnotation;
  }
  /// Number of the autograd node; -1: none.
  [[nodiscard]] int sequence() const { return operates() ? number : -1; }
  /// Number of a launch, and of what it launched; -1: none.
  [[nodiscard]] int correlation() const { return operates() ? -1 : number; }
  [[nodiscard]] double duration() const { return end - begin; }
  [[nodiscard]] bool on_device() const {
    return category == KinetoCategory::kKernel || category == KinetoCategory::kCopy;
  }
};

/// Arguments of `record_param_comms` and of NCCL's kernels.
struct KinetoCall {
  std::string collective{};    ///< `allreduce`
  std::string dtype{};         ///< `Float`
  double in = 0.0, out = 0.0;  ///< elements
  int ranks = 0;
  std::string group{};
};

/// A process or device, and a thread or stream of it.
struct KinetoTrack {
  int process = 0, thread = 0;  ///< of KinetoFile::texts
};

/// What a file contains about itself.
struct KinetoMetadata {
  std::vector<std::string> devices{};
  int rank = -1, world_size = 0;  ///< -1 and 0: not stated
  std::string backend{};
  double base_us = 0.0;  ///< time of day at which times of events are 0; 0: not stated
  /// What `add_metadata_json("stepcast", ...)` added; 0: nothing
  double plain_step_s = 0.0;
  int batch = 0;
};

struct KinetoFile {
  std::string path;
  TextTable names, texts;
  std::vector<KinetoTrack> tracks;
  std::deque<KinetoEvent> events;  ///< sorted by track, begin, and end from the last to the first
  KinetoMetadata metadata;
  std::size_t untimed = 0;  ///< events that were left out, as their durations are negative or too long
  std::string cut{};        ///< where the text stopped to be JSON; "": it did not

  [[nodiscard]] const std::string& name(const KinetoEvent& event) const { return names[event.name]; }
};

/// Reads a file, plain or compressed by gzip, event by event. Characters in names that Kineto does not escape
/// are replaced, and numbers that are NaN or infinite 0. A file that was cut gives the events before the cut.
/// \throws InputError if it has no `traceEvents`, and for a bare array, which torch without Kineto writes
KinetoFile read_kineto(const std::string& path);

/// Extents of the tensors of an event: `[[16,3],[]]` gives {16, 3} and {}; of lists the tensors in them.
std::vector<std::vector<std::int64_t>> dims_of(const KinetoFile& file, const KinetoEvent& event);
double elements_of(const std::vector<std::int64_t>& extents);
/// Type of one tensor: `c10::BFloat16`; "": not recorded.
std::string type_of(const KinetoFile& file, const KinetoEvent& event, std::size_t tensor = 0);
/// The collective that an event calls, if it names one.
std::optional<KinetoCall> call_of(const KinetoFile& file, const KinetoEvent& event);

}  // namespace stepcast

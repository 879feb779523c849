#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sim/core/units.hpp"

/// The Schedule: what every rank of a training step does, in which order, on which stream.
///
/// It is the one thing that both executors share. A strategy writes it, `sim/replay` executes it in simulated
/// time, `runner` executes it on real devices, and both report spans under the same operation names.
///
/// Ranks that do the same share one `Program` (all ranks of DDP do), so that a Schedule for 16,384 ranks is
/// as small as one for two. Operations of one program depend on each other by `after`; different ranks meet
/// only in collectives (matched by group and by order of issue, as process groups match them) and in
/// send/recv pairs (matched by peer and tag).
namespace stepcast {

/// Operations of one rank on one stream run in program order, one at a time (`comm`: as many at a time as the
/// backend has in flight). `compute` is the device's queue (on a CPU: the rank's main thread), `comm` the
/// communication queue, `copy` the copy engines, `host` work of the host beside the device.
enum class Stream : std::uint8_t { kCompute, kComm, kCopy, kHost };

enum class Phase : std::uint8_t { kForward, kRecompute, kBackward, kLoss, kZeroGrad, kOptimizer };

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kGather,
  kScatter,
  kBroadcast,
  kAllGather,
  kReduceScatter
};

const char* to_text(Stream stream);
const char* to_text(Phase phase);
const char* to_text(CollectiveKind kind);

/// Reads the next batch into the device's memory.
struct LoadInput {};

/// Runs one phase. Forward, recompute and backward act on one segment; loss (its forward and backward),
/// zero_grad and optimizer act on the whole model and have `segment == -1`.
struct Compute {
  Phase phase = Phase::kForward;
  int segment = -1;
  int micro_batch = 0;
};

/// Copies the gradient of parameter `tensor` into its place in `bucket`, multiplied by `scale` on the way.
struct CopyIn {
  int bucket = 0;
  int tensor = 0;
  double scale = 1.0;
};

/// Copies a reduced bucket back into the gradients of its tensors.
struct CopyOut {
  int bucket = 0;
};

/// What a collective or a local combination works on, in place.
struct Payload {
  enum class What : std::uint8_t {
    kGradient,       ///< the gradient of parameter `index`
    kBucket,         ///< bucket `index`
    kBuffers,        ///< the model's buffers of dtype group `index`, coalesced into one array
    kContributions,  ///< scratch of root: the gathered gradients of parameter `index`, world_size of them
  };
  What what = What::kGradient;
  int index = 0;
};

/// One collective call. `message` is the total array as in nccl-tests, never the shard: for gather and
/// scatter world_size times what one rank contributes.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes message;
  int group = 0;
  int root = 0;  ///< index in the group; ignored by kinds without a root
  Payload payload;
};

/// gradient[tensor] = scale * sum of `inputs` arrays: with one input the division after an all-reduce, with
/// world_size inputs the mean that root takes of what it gathered.
struct Combine {
  int tensor = 0;
  int inputs = 1;
  double scale = 1.0;
};

/// Point-to-point: a message to or from `peer` (a rank), matched by `tag`.
struct Send {
  int peer = 0;
  Bytes message;
  int tag = 0;
};
struct Recv {
  int peer = 0;
  Bytes message;
  int tag = 0;
};

/// Does nothing; joins what it comes after (a `wait()` of the host).
struct Synchronize {};

using Action =
    std::variant<LoadInput, Compute, CopyIn, CopyOut, Collective, Combine, Send, Recv, Synchronize>;

struct Op {
  std::string name;  ///< unique in its program and stable: `backward/layer4.1`, `all_reduce/bucket0`
  Stream stream = Stream::kCompute;
  Action action;
  std::vector<int> after;  ///< indices of earlier operations of the same program

  /// A hook: this operation runs in the middle of the backward operation `within` (an index), on its thread,
  /// at the instant when the gradient of `ready_tensor` is accumulated; the rest of `within` waits for it.
  /// -1: not a hook.
  int within = -1;
  int ready_tensor = -1;

  Bytes memory_traffic;  ///< bytes read plus written, for the sharing of memory bandwidth; 0 where unknown
};

struct Program {
  std::vector<Op> ops;
};

/// The ranks of a process group, in group order.
struct Group {
  std::string name;
  std::vector<int> ranks;
};

/// Gradients that travel together, in the order in which they are ready.
struct Bucket {
  std::vector<int> tensors;  ///< parameter indices of the model
  Bytes size;
};

struct Schedule {
  std::string strategy;
  int world_size = 1;
  std::vector<Program> programs;
  std::vector<int> program_of_rank;  ///< size world_size, indices into `programs`
  std::vector<Group> groups;
  std::vector<Bucket> buckets;

  [[nodiscard]] const Program& program(int rank) const {
    return programs[static_cast<std::size_t>(program_of_rank[static_cast<std::size_t>(rank)])];
  }
};

/// Checks what every Schedule must satisfy: `after` points backwards, hooks sit in backward operations of the
/// same stream and before the next operation that is not a hook of the same one, names are unique, groups and
/// programs are in range, ranks of a group issue the same collectives in the same order, sends and receives
/// pair up. \throws std::logic_error that names the first violation (a strategy is wrong, not the user).
void validate(const Schedule& schedule);

}  // namespace stepcast

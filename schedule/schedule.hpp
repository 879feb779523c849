#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/units.hpp"
#include "schedule/kinds.hpp"

/// The Schedule: operations of every rank in a training step, in their order, each on a stream.
///
/// Both executors share it. A strategy builds it, `sim/replay` executes it in simulated time, `runner`
/// executes it on real devices, and both report spans under the same operation names.
///
/// Ranks with equal work share one `Program` (all ranks of DDP do), so that a Schedule for 16,384 ranks is as
/// small as one for two. `after` orders the operations of one program. Ranks synchronise only in collectives
/// (matched by group and order of issue, as process groups match them) and in send/recv pairs (matched by
/// peer and tag).
namespace stepcast {

/// Reads the rank's next batch, with all micro-batches, into device memory.
struct LoadInput {};

/// Runs one phase. Forward, recompute and backwards act on one segment and micro-batch, the loss (forward and
/// backward) on one micro-batch. zero_grad and optimizer act on the parameters of one segment, or of the
/// whole model if `segment == -1`.
struct Compute {
  Phase phase = Phase::kForward;
  int segment = -1;
  int micro_batch = 0;
  /// forward only: saves nothing but what the rank received, or with `keeps_input` its input; a recompute
  /// follows
  bool checkpointed = false;
  bool keeps_input = false;
  double part = 1.0;    ///< zero_grad and optimizer only: share of the segment's parameters that it acts on
  bool needed = false;  ///< recompute only: it ends once everything is there that the backward reads
};

/// Copies the gradient of parameter `tensor` into `bucket`, multiplied by `scale` and converted to the
/// bucket's dtype.
struct CopyIn {
  int bucket = 0;
  int tensor = 0;
  double scale = 1.0;
};

/// Copies a reduced bucket back into the gradients of its tensors.
struct CopyOut {
  int bucket = 0;
};

/// Array of a collective, in place: the gradient of a parameter (the root of a gather has scratch for those
/// of all ranks), a bucket, the model's buffers of one dtype in one array, or the flat parameters or
/// gradients of an FSDP unit.
struct GradientArray {
  int tensor = 0;
};
struct BucketArray {
  int bucket = 0;
};
struct BufferArray {
  int dtype_group = 0;
};
struct UnitParameters {
  int unit = 0;
};
struct UnitGradients {
  int unit = 0;
  bool shard = false;  ///< the own shard, which replicas share
  /// True if the shard's array is not the accumulated shard but the incoming one of this micro-batch, which a
  /// ScaleUnit adds.
  bool incoming = false;
};
/// Array of a collective of tensor, context or expert parallelism: `Model::collectives[exchange]`.
struct ExchangeArray {
  int exchange = 0;
  bool maximum = false;  ///< an all-reduce of maxima, not of sums
};
using Payload =
    std::variant<GradientArray, BucketArray, BufferArray, UnitParameters, UnitGradients, ExchangeArray>;

/// One collective call. `message` is the size of the whole array as in nccl-tests, never of a shard: for
/// gather and scatter world_size times the contribution of a rank; for a shift the array that each rank sends
/// to the next.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes message;
  int group = 0;  ///< index into Schedule::groups; above, into Schedule::families
  int root = 0;   ///< index in the group; ignored by kinds without a root
  Payload payload;
};

/// gradient[tensor] = scale * sum of `inputs` arrays: with one input the division after an all-reduce, with
/// world_size inputs the mean of the gathered gradients on the root.
struct Combine {
  int tensor = 0;
  int inputs = 1;
  double scale = 1.0;
};

/// Gradient of an FSDP unit *= scale: the division around its reduce-scatter, of the whole array or of the
/// own shard. With `adds`: shard += scale * incoming shard, which is freed. With `of_whole` the own part of
/// the whole array replaces it: shard = scale * part, or with `adds` shard += scale * part.
struct ScaleUnit {
  int unit = 0;
  double scale = 1.0;
  bool shard = false;
  bool adds = false;
  bool of_whole = false;
};

/// Frees the whole parameters or gradients of an FSDP unit, or allocates and zeroes its gradients. (The
/// all-gather allocates the parameters.)
struct UnitMemory {
  enum class What : std::uint8_t { kFreeParameters, kFreeGradients, kZeroGradients };
  int unit = 0;
  What what = What::kFreeParameters;
};

/// Runs the optimizer on the own shard of an FSDP unit.
struct UpdateUnit {
  int unit = 0;
  double part = 1.0;  ///< share of its parameters; the host updates the others
};

/// Array between two segments: the output of `segment` in one micro-batch, or the gradient of that output.
struct Boundary {
  int segment = 0;
  int micro_batch = 0;
  bool gradient = false;
};

/// Point-to-point message to or from the rank `offset` above the own one (relative, so that replicas of a
/// pipeline share a program), matched by `tag`. Messages do not queue: each starts when it has been issued
/// and what it comes after is done, since Gloo's event loop and NCCL's channels per peer move many at once.
struct Send {
  int offset = 0;
  Bytes message;
  int tag = 0;
  Boundary payload{};
};
struct Recv {
  int offset = 0;
  Bytes message;
  int tag = 0;
  Boundary payload{};
};

/// Memory of the host that the own rank's device belongs to (of its first socket), of the socket that is next
/// to this device, or of the device of the rank that is `offset` above the own one.
struct MemoryLocation {
  enum class Kind : std::uint8_t { kHost, kDevice, kSocket };
  Kind kind = Kind::kHost;
  int offset = 0;  ///< of a device only
  [[nodiscard]] bool is_host() const { return kind != Kind::kDevice; }
  friend auto operator<=>(const MemoryLocation&, const MemoryLocation&) = default;
};

/// Copy between two memories of one host: host to device, device to host, or device to device. From a socket
/// to itself: bytes that an update of parameters on the host reads and writes in its memory. One process
/// may drive several devices, so that both locations may belong to other ranks, which then do nothing. Copies
/// do not queue: each starts when it has been issued and what it comes after is done. The order within a CUDA
/// stream is written as `after`.
///
/// A copy from or to pageable host memory goes through a staging buffer that the calling thread fills or
/// empties: it starts when what it comes after is done, and the thread waits for its end. All other copies
/// are asynchronous. Source: CUDA driver API, "API synchronization behavior".
struct Copy {
  MemoryLocation from;
  MemoryLocation to;
  Bytes message;
  bool pinned = false;  ///< host side; has no effect between devices
  [[nodiscard]] bool touches_host() const { return from.is_host() || to.is_host(); }
  /// True from or to the memory of a socket.
  [[nodiscard]] bool touches_socket() const {
    return from.kind == MemoryLocation::Kind::kSocket || to.kind == MemoryLocation::Kind::kSocket;
  }
  [[nodiscard]] bool staged() const { return touches_host() && !pinned; }
  /// True between pinned host memory and the own device: ranks with such copies can be replayed as one.
  [[nodiscard]] bool is_local() const {
    return touches_host() && pinned && from.offset == 0 && to.offset == 0;
  }
};

/// Waits for what it comes after.
struct Synchronize {
  bool exposed = false;  ///< a wait for a shift: communication that is not overlapped
};

using Action = std::variant<LoadInput, Compute, CopyIn, CopyOut, Collective, Combine, ScaleUnit, UnitMemory,
                            UpdateUnit, Send, Recv, Copy, Synchronize>;

/// Memory that an operation allocates, or frees if it is negative:
///
///     size + saved * (bytes that the forward of segment `segment` saves, as `measure` observed them)
///
/// Workspace, which an operation needs only while it runs, comes from the trace.
struct MemoryChange {
  MemoryCategory category = MemoryCategory::kActivations;
  Bytes size{};
  bool at_end = false;  ///< true: when the operation ends; false: when it starts
  int segment = -1;
  double saved = 0.0;
  const char* term = nullptr;  ///< what it is, for lists of memory; null: what follows from the others
};

struct Op {
  std::string name{};  ///< unique in its program and stable: `backward/layer4.1`, `all_reduce/bucket0`
  Stream stream = Stream::kCompute;
  Action action{};
  std::vector<int> after{};  ///< indices of earlier operations of the same program

  /// A hook runs in the middle of its parent, the operation `within` (an index), on its thread. The parent is
  /// suspended meanwhile. In a backward it runs when the gradient of `ready_tensor` is accumulated. In any
  /// phase of a segment it runs at collective `exchange` of the model: the collective itself, or the wait for
  /// it or for an earlier shift. -1: no hook, or not of this kind.
  int within = -1;
  int ready_tensor = -1;
  int exchange = -1;

  Bytes memory_traffic{};  ///< bytes read plus written, for sharing memory bandwidth; 0: unknown
  std::vector<MemoryChange> memory{};
};

struct Program {
  std::vector<Op> ops;
  std::vector<int> segments{};           ///< with parameters on this rank, in model order
  std::vector<MemoryChange> resident{};  ///< held from the first step to the last
  Bytes host_memory{};                   ///< most that the rank holds in memory of the host
};

/// The ranks of a process group, in group order.
struct Group {
  std::string name;
  std::vector<int> ranks;
};

/// Disjoint groups with equal roles, so that ranks of different groups run the same program.
struct GroupFamily {
  std::string name;
  std::vector<int> group_of_rank;  ///< index into Schedule::groups; -1: none
};

/// Gradients that are reduced together, in gradient-ready order.
struct Bucket {
  std::vector<int> tensors;  ///< parameter indices of the model
  Bytes size;                ///< of the float32 gradients
  bool half = false;         ///< sent as float16
  bool in_place = false;     ///< the gradients lie in it
  [[nodiscard]] Bytes message() const { return half ? 0.5 * size : size; }
};

/// Parameters that FSDP gathers and frees together, as one flat array padded to equal shards.
struct FsdpUnit {
  std::string name;
  std::vector<int> segments;
  std::vector<int> tensors;   ///< parameter indices, in the order of the flat array
  std::int64_t elements = 0;  ///< with padding
  int shards = 1;             ///< number of ranks that share it
  int group = 0;              ///< group of these ranks, as in a Collective
  bool sharded = false;       ///< false: every rank keeps parameters, gradients and optimizer state whole
  double part = 1.0;          ///< share of its segments' parameters; another unit has the rest
  double parameter = 4.0;     ///< bytes per element, see Precision
  double gradient = 4.0, reduced = 4.0;  ///< 0 for frozen parameters, which are only gathered and freed
  double updated = 1.0;                  ///< see Model::shard_update()
  [[nodiscard]] Bytes size() const { return whole(parameter); }      ///< of the gathered parameters
  [[nodiscard]] Bytes gradients() const { return whole(gradient); }  ///< before they are reduced
  /// Those that are reduced, see Parameter::accumulated().
  [[nodiscard]] Bytes accumulated() const { return whole(std::min(gradient, 4.0)); }
  [[nodiscard]] Bytes message() const { return whole(reduced); }  ///< of the reduced gradients
  [[nodiscard]] Bytes gradient_shard() const { return (1.0 / shards) * message(); }
  [[nodiscard]] bool trains() const { return gradient > 0.0; }
  /// True if one rank holds the whole unit: nothing is gathered. Replicas may have copies.
  [[nodiscard]] bool alone() const { return sharded && shards == 1; }
  [[nodiscard]] Bytes whole(double element) const { return Bytes(element * static_cast<double>(elements)); }
};

struct Schedule {
  std::string strategy;
  /// Resolved options of the strategy: {"split", "3-3-3-3"}.
  std::map<std::string, std::string, std::less<>> options;
  /// Strategy and options that differ from their defaults, for tables and figures: `pipeline, split 3-3-3-3`.
  std::string label;
  int world_size = 1;
  std::vector<Program> programs;
  std::vector<int> program_of_rank;  ///< size world_size, indices into `programs`
  std::vector<Group> groups;
  std::vector<GroupFamily> families;
  std::vector<Bucket> buckets;
  std::vector<FsdpUnit> units;
  int micro_batches = 1;        ///< equal parts of each rank's batch; their mean is the batch's gradient
  int data_parallel = 1;        ///< number of batches per step; 0: the step only moves data
  std::vector<int> data_index;  ///< by rank: index of its batch; empty: rank r has batch r

  [[nodiscard]] int data_index_of(int rank) const { return data_index.empty() ? rank : data_index[rank]; }
  [[nodiscard]] const Program& program(int rank) const { return programs[program_of_rank[rank]]; }
  /// Index of the group that a Collective of this rank names; -1: the rank is in no group of the family.
  [[nodiscard]] int group_index(int named, int rank) const {
    const auto count = static_cast<int>(groups.size());
    return named < count ? named : families[named - count].group_of_rank[rank];
  }
};

/// True if the program has this phase. In a pipeline only the last stages compute the loss.
bool computes(const Program& program, Phase phase);
/// True if any rank has an operation on the communication stream.
bool communicates(const Schedule& schedule);

/// True if the program has an operation of this kind for which `holds`.
template <class Action>
bool has_action(const Program& program, const auto& holds) {
  return std::ranges::any_of(program.ops, [&](const Op& op) {
    const auto* action = std::get_if<Action>(&op.action);
    return action != nullptr && std::invoke(holds, *action);
  });
}
template <class Action>
bool has_action(const Schedule& schedule, const auto& holds) {
  return std::ranges::any_of(schedule.programs,
                             [&](const Program& one) { return has_action<Action>(one, holds); });
}
/// The same of any operation of this kind. \param where a program or a schedule
template <class Action>
bool has_action(const auto& where) {
  return has_action<Action>(where, [](const Action&) { return true; });
}
/// Calls `visit(rank, op, action)` for every operation of this kind of every rank.
template <class Action>
void for_each_action(const Schedule& schedule, const auto& visit) {
  std::vector<bool> has;
  for (const Program& program : schedule.programs) has.push_back(has_action<Action>(program));
  for (int rank = 0; rank < schedule.world_size; ++rank)
    if (has[schedule.program_of_rank[rank]])
      for (const Op& op : schedule.program(rank).ops)
        if (const auto* action = std::get_if<Action>(&op.action)) visit(rank, op, *action);
}

/// Checks that `after` points backwards; that hooks follow their parent directly on its stream; that names
/// are unique, groups and programs in range; that ranks of a group issue the same collectives in the same
/// order; that sends and receives pair up; that copies have two different ends and are no hooks. A program
/// may be empty. \throws std::logic_error that names the first violation: an error of the strategy, not of
/// the user
void validate(const Schedule& schedule);

}  // namespace stepcast

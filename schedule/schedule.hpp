#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/units.hpp"

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

/// What a span's time counts as in a breakdown. A message is posted long before its other side is: its span is
/// mostly a wait, not a transfer (so that a pipeline's bubble is idle time).
enum class SpanKind : std::uint8_t { kCompute, kCommunication, kInputAndHost, kOptimizerAndCopies, kWait };

/// A backward is one, or two with other work between: that of the input, whose gradient goes on at once, and that of the
/// weights, which nobody waits for (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
enum class Phase : std::uint8_t {
  kForward,
  kRecompute,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kLoss,
  kZeroGrad,
  kOptimizer
};

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kGather,
  kScatter,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kShift
};
inline constexpr std::array kCollectiveKinds{CollectiveKind::kAllReduce, CollectiveKind::kGather,
                                             CollectiveKind::kScatter,   CollectiveKind::kBroadcast,
                                             CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                             CollectiveKind::kAllToAll,  CollectiveKind::kShift};

const char* to_text(Stream stream);
const char* to_text(Phase phase);
/// Whether gradients of parameters are accumulated in it: in a whole backward, and in the second half.
constexpr bool accumulates(Phase phase) {
  return phase == Phase::kBackward || phase == Phase::kBackwardWeight;
}
constexpr bool is_backward(Phase phase) { return accumulates(phase) || phase == Phase::kBackwardInput; }
const char* to_text(CollectiveKind kind);

/// Reads the rank's next batch, all its micro-batches, into the device's memory.
struct LoadInput {};

/// Runs one phase. Forward, recompute and backwards act on one segment and micro-batch, the loss (its forward
/// and backward) on one micro-batch. zero_grad and optimizer act on one segment's parameters, or on the whole
/// model where `segment == -1`.
struct Compute {
  Phase phase = Phase::kForward;
  int segment = -1;
  int micro_batch = 0;
  /// forward: keeps nothing for the backward but what the rank received, or with `keeps_input` its input; a recompute
  /// follows
  bool checkpointed = false;
  bool keeps_input = false;
};

/// Copies the gradient of parameter `tensor` into its place in `bucket`, multiplied by `scale` and converted
/// to the bucket's dtype on the way.
struct CopyIn {
  int bucket = 0;
  int tensor = 0;
  double scale = 1.0;
};

/// Copies a reduced bucket back into the gradients of its tensors.
struct CopyOut {
  int bucket = 0;
};

/// What a collective works on, in place: the gradient of a parameter (root of a gather collects everybody's in
/// scratch of its own), a bucket, the model's buffers of one dtype coalesced into one array, or the flat
/// parameters or gradients of an FSDP unit. Whoever executes collectives must handle each: `std::visit`.
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
  bool shard = false;  ///< the own shard, of which replicas have the same
};
/// What ranks that share layers put together in the middle of a phase: `Model::exchanges[exchange]`.
struct ExchangeArray {
  int exchange = 0;
  bool maximum = false;  ///< an all-reduce of the largest elements, not of sums
};
using Payload =
    std::variant<GradientArray, BucketArray, BufferArray, UnitParameters, UnitGradients, ExchangeArray>;

/// One collective call. `message` is the total array as in nccl-tests, never the shard: for gather and
/// scatter world_size times what one rank contributes; of a shift what each rank sends its successor.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes message;
  int group = 0;  ///< of Schedule::groups; from their number on, of Schedule::families
  int root = 0;   ///< index in the group; ignored by kinds without a root
  Payload payload;
};

/// gradient[tensor] = scale * sum of `inputs` arrays: with one input the division after an all-reduce, with
/// world_size inputs the mean that root takes of what it gathered.
struct Combine {
  int tensor = 0;
  int inputs = 1;
  double scale = 1.0;
};

/// Gradient of an FSDP unit *= scale: the division around its reduce-scatter. Of the whole array, or of the
/// own shard.
struct ScaleUnit {
  int unit = 0;
  double scale = 1.0;
  bool shard = false;
};

/// Gives up the memory of an FSDP unit's whole parameters, or of its whole gradients; or takes that of the
/// gradients and zeroes it. (Parameters are taken by the all-gather that fills them.)
struct UnitMemory {
  enum class What : std::uint8_t { kFreeParameters, kFreeGradients, kZeroGradients };
  int unit = 0;
  What what = What::kFreeParameters;
};

/// The optimizer on the own shard of an FSDP unit.
struct UpdateUnit {
  int unit = 0;
};

/// What crosses the boundary behind a segment: its output in one micro-batch, or the loss's gradient with respect
/// to that output.
struct Boundary {
  int segment = 0;
  int micro_batch = 0;
  bool gradient = false;
};

/// Point-to-point: a message to or from the rank that is `offset` above the own one, so that replicas of a
/// pipeline share a program; matched by `tag`. Unlike collectives, messages do not
/// queue: one starts as soon as it is issued and what it comes after is done (Gloo's event loop and NCCL's
/// channels per peer move many at once).
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

/// Where an array lies: in the memory of the host that the own rank's device sits in (of its first socket),
/// or in that of the device of the rank that is `offset` above the own one.
struct MemoryLocation {
  enum class Kind : std::uint8_t { kHost, kDevice };
  Kind kind = Kind::kHost;
  int offset = 0;  ///< of a device only
  friend bool operator==(const MemoryLocation&, const MemoryLocation&) = default;
};

/// A copy between two memories of one host: host to device, device to host, or device to device (peer to
/// peer). A process may drive several devices, so that both places may be those of other ranks, which then
/// have nothing to do. Copies do not queue, as messages do not: each starts when it has been issued and what
/// it comes after is done; the order within a CUDA stream is written as `after`.
///
/// A copy from or to host memory that is not pinned goes through a staging buffer, which the calling thread
/// fills or empties: it starts only when what it comes after is done, and the thread waits for its end. All
/// others are asynchronous. Source: CUDA driver API, "API synchronization behavior".
struct Copy {
  MemoryLocation from;
  MemoryLocation to;
  Bytes message;
  bool pinned = false;  ///< the host's side; means nothing to a copy between devices
  [[nodiscard]] bool touches_host() const {
    return from.kind == MemoryLocation::Kind::kHost || to.kind == MemoryLocation::Kind::kHost;
  }
  [[nodiscard]] bool staged() const { return touches_host() && !pinned; }
};

/// Does nothing; joins what it comes after (a `wait()` of the host).
struct Synchronize {
  bool exposed = false;  ///< of a shift: its wait is communication that nothing hides
};

using Action = std::variant<LoadInput, Compute, CopyIn, CopyOut, Collective, Combine, ScaleUnit, UnitMemory,
                            UpdateUnit, Send, Recv, Copy, Synchronize>;

/// What memory is held for, as training frameworks report it.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kCommunication,
};
const char* to_text(MemoryCategory category);

/// Memory that an operation takes, or gives up where it is negative:
///
///     size + saved * (bytes that the forward of segment `segment` leaves behind, as `measure` observed them)
///
/// What an operation needs only while it runs is not written here: the trace knows it.
struct MemoryChange {
  MemoryCategory category = MemoryCategory::kActivations;
  Bytes size{};
  bool at_end = false;  ///< when the operation ends; else when it starts
  int segment = -1;
  double saved = 0.0;
};

struct Op {
  std::string name{};  ///< unique in its program and stable: `backward/layer4.1`, `all_reduce/bucket0`
  Stream stream = Stream::kCompute;
  Action action{};
  std::vector<int> after{};  ///< indices of earlier operations of the same program

  /// A hook: this operation runs in the middle of the operation `within` (an index), on its thread; the rest of
  /// `within` waits for it. Of a backward: at the instant when the gradient of `ready_tensor` is accumulated; of any
  /// phase of a segment: where the `exchange` of the model stands: its collective, which is issued there, and what waits for
  /// it, or for a shift that was issued before. -1: not a hook, or not one of this kind.
  int within = -1;
  int ready_tensor = -1;
  int exchange = -1;

  Bytes memory_traffic{};  ///< bytes read plus written, for the sharing of memory bandwidth; 0 where unknown
  std::vector<MemoryChange> memory{};
};

struct Program {
  std::vector<Op> ops;
  std::vector<int> segments{};           ///< whose parameters the rank holds, in model order
  std::vector<MemoryChange> resident{};  ///< held from the first step to the last
};

/// The ranks of a process group, in group order.
struct Group {
  std::string name;
  std::vector<int> ranks;
};

/// Groups that are alike, each rank in one of them at most: ranks of different ones run the same program.
struct GroupFamily {
  std::string name;
  std::vector<int> group_of_rank;  ///< indices into Schedule::groups; -1: in none
};

/// Gradients that travel together, in the order in which they are ready.
struct Bucket {
  std::vector<int> tensors;  ///< parameter indices of the model
  Bytes size;                ///< of the float32 gradients
  bool half = false;         ///< travels as float16
  [[nodiscard]] Bytes message() const { return half ? 0.5 * size : size; }
};

/// Parameters that FSDP gathers and frees together, as one flat array that is padded so that all ranks of the
/// group hold equal shards.
struct FsdpUnit {
  std::string name;
  std::vector<int> segments;
  std::vector<int> tensors;   ///< parameter indices, in the order of the flat array
  std::int64_t elements = 0;  ///< with padding
  int shards = 1;             ///< ranks that share it
  int group = 0;              ///< theirs, as in a Collective
  bool sharded = false;       ///< parameters, gradients and optimizer state; else every rank keeps all
  double part = 1.0;          ///< of the parameters of its segments; the others are those of another unit
  double parameter = 4.0, gradient = 4.0, reduced = 4.0;             ///< bytes of an element: see Precision
  [[nodiscard]] Bytes size() const { return whole(parameter); }      ///< of what is gathered
  [[nodiscard]] Bytes gradients() const { return whole(gradient); }  ///< before they are reduced
  [[nodiscard]] Bytes message() const { return whole(reduced); }     ///< of what is reduced
  [[nodiscard]] Bytes gradient_shard() const { return (1.0 / shards) * message(); }
  /// Nobody else has its parameters: they stay, and nothing is gathered.
  [[nodiscard]] bool alone() const { return sharded && shards == 1; }
  [[nodiscard]] Bytes whole(double element) const { return Bytes(element * static_cast<double>(elements)); }
};

struct Schedule {
  std::string strategy;
  /// The strategy's own options as they were understood, all that mean something here: {"split", "3-3-3-3"}.
  std::map<std::string, std::string> options;
  /// For tables and figures: the strategy and the options that differ from their defaults: `pipeline, split
  /// 3-3-3-3`.
  std::string label;
  int world_size = 1;
  std::vector<Program> programs;
  std::vector<int> program_of_rank;  ///< size world_size, indices into `programs`
  std::vector<Group> groups;
  std::vector<GroupFamily> families;
  std::vector<Bucket> buckets;
  std::vector<FsdpUnit> units;
  int micro_batches = 1;        ///< equal parts of each rank's batch; their mean is the batch's gradient
  int data_parallel = 1;        ///< how many batches a step trains on; 0: it only moves data
  std::vector<int> data_index;  ///< by rank: which of them it works on; empty: rank r on batch r

  [[nodiscard]] int data_index_of(int rank) const { return data_index.empty() ? rank : data_index[rank]; }
  [[nodiscard]] const Program& program(int rank) const { return programs[program_of_rank[rank]]; }
  /// Index of the group that a Collective of this rank names; -1 where it is in none of the family.
  [[nodiscard]] int group_index(int named, int rank) const {
    const auto count = static_cast<int>(groups.size());
    return named < count ? named : families[named - count].group_of_rank[rank];
  }
};

/// Whether a program has a computation of this phase: of a pipeline's ranks, the last stages compute the
/// loss.
bool computes(const Program& program, Phase phase);
/// Whether any rank has an operation on the communication stream.
bool communicates(const Schedule& schedule);

/// Checks what every Schedule must satisfy: `after` points backwards, hooks sit in phases of a segment or the loss (those
/// of gradients in backwards) on the same stream and before the next operation that is not a hook of the same one, names are unique, groups and
/// programs are in range, ranks of a group issue the same collectives in the same order, sends and receives
/// pair up, copies lead from one place to another and stand on the copy stream outside of hooks.
/// A program may be empty. \throws std::logic_error that names the first violation (a strategy is wrong, not
/// the user).
void validate(const Schedule& schedule);

}  // namespace stepcast

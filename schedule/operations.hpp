#pragma once

#include <concepts>
#include <cstdint>

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// Properties of every kind of operation, in one table for replay, executors, memory account and results. A
/// kind that is missing from it does not compile.
namespace stepcast {

/// One of several kinds of operations: `[](const OneOf<Send, Recv> auto&) {...}` handles both.
template <class Kind, class... Kinds>
concept OneOf = (std::same_as<Kind, Kinds> || ...);

/// How an operation starts after the main thread has reached it and what it comes after is done.
enum class Start : std::uint8_t {
  kInTurn,     ///< when its stream reaches it
  kWhenReady,  ///< at once, concurrently with the rest of its stream: messages
  kLaunched,   ///< the same after a launch overhead of the main thread: copies between memories
};

/// Source of the time of an operation.
enum class TimeSource : std::uint8_t {
  kTrace,     ///< compute and input: measured, estimated, or declared by the model
  kPass,      ///< memory-bound operation on arrays (`local_pass`)
  kTransfer,  ///< links
  kNothing,
};

struct Operation {
  Stream stream = Stream::kCompute;
  SpanKind span = SpanKind::kCompute;
  Start start = Start::kInTurn;
  TimeSource time = TimeSource::kTrace;
  /// Category of its workspace.
  MemoryCategory workspace = MemoryCategory::kActivations;
};
/// A Synchronize on the communication stream is communication that is not overlapped.
Operation operation_of(const Op& op);
/// Adds an operation on the stream of its kind; returns its index.
int append(Program& program, Op op);

/// Work of an operation of `TimeSource::kPass`: adds `additions` arrays of `size` and copies the result once.
struct LocalPass {
  Bytes size;
  int additions = 0;
};
/// \pre the operation's indices are those of `schedule` and `model`; 0 B for every other operation
LocalPass local_pass(const Action& action, const Schedule& schedule, const Model& model);

/// True for a ring-attention shift: it runs concurrently with its parent until the hook that waits for it.
bool is_shift(const Op& op);

/// Micro-batch whose measured times an operation takes; 0 if it belongs to none.
int micro_batch_of(const Op& op);

}  // namespace stepcast

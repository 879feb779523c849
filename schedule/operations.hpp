#pragma once

#include <concepts>
#include <cstdint>

#include "models/model.hpp"
#include "schedule/schedule.hpp"

/// What every kind of operation means to those who execute it, cost it and account for its memory: the one
/// table, asked by the replay, by both executors, by memory and by results. A kind that is missing from it does
/// not compile.
namespace stepcast {

/// One of several kinds of operations: `[](const OneOf<Send, Recv> auto&) {...}` handles both.
template <class Kind, class... Kinds>
concept OneOf = (std::same_as<Kind, Kinds> || ...);

/// How an operation starts once the main thread has reached it and what it comes after is done.
enum class Start : std::uint8_t {
  kInTurn,     ///< when its stream reaches it; on the compute stream the main thread is the stream
  kWhenReady,  ///< at once, whatever else its stream has: messages
  kLaunched,   ///< the same, but to issue it takes the main thread a while: copies between memories
};

/// Where an operation's time comes from.
enum class TimeSource : std::uint8_t {
  kTrace,  ///< what the rank computes or reads: measured, or declared by the model (`StepTimes`)
  kPass,   ///< a pass over arrays of the rank (`local_pass`), as fast as calibrated copies or a GPU's memory
  kTransfer,  ///< the links it crosses
  kNothing,
};

struct Operation {
  Stream stream = Stream::kCompute;  ///< on which it stands
  SpanKind span = SpanKind::kCompute;
  Start start = Start::kInTurn;
  TimeSource time = TimeSource::kTrace;
  /// Of what it allocates while it runs; the runner counts what an optimizer needs with its state.
  MemoryCategory workspace = MemoryCategory::kActivations;
};
Operation operation_of(const Action& action);
/// The same; a Synchronize on the communication stream is communication that nothing hides.
Operation operation_of(const Op& op);

/// What an operation whose time is `TimeSource::kPass` does with arrays: copies `size` once, and before that adds
/// `additions` more arrays of that size to it.
struct LocalPass {
  Bytes size;
  int additions = 0;
};
/// \pre the operation's indices are those of `schedule` and `model`; 0 B for every other operation
LocalPass local_pass(const Action& action, const Schedule& schedule, const Model& model);

/// Whether it is a collective that its host goes on beside, until what waits for it: a shift.
bool is_shift(const Op& op);

/// Micro-batch whose measured times an operation takes; 0 for what belongs to none.
int micro_batch_of(const Op& op);

}  // namespace stepcast

#pragma once

#include <array>
#include <vector>

#include "runner/backend/backend.hpp"

/// Messages of probes and benchmarks, and the memory that they are in.
namespace stepcast {

/// Memory that the messages of one measurement walk through. In training every tensor has another address, so
/// that only small messages are in the caches of the CPU. The walk takes 32 messages, or 256 MiB, before it
/// returns to its beginning.
class MessageWalk {
 public:
  /// \param begin memory of region_bytes(message.bytes())
  MessageWalk(void* begin, std::size_t count, DataType type);
  /// Array of the next message.
  Array next();

  /// Bytes of a walk of messages of that size: at least one message, at most 256 MiB more.
  static std::size_t region_bytes(std::size_t message_bytes);

 private:
  char* begin_;
  std::size_t count_;
  DataType type_;
  std::size_t region_;
  std::size_t offset_ = 0;
};

/// Two ranks that exchange messages.
struct RankPair {
  int first = 0;
  int second = 1;
  bool operator==(const RankPair&) const = default;
  [[nodiscard]] bool has(int rank) const { return rank == first || rank == second; }
  /// \pre has(rank)
  [[nodiscard]] int peer_of(int rank) const { return first + second - rank; }
};

/// Sends messages from the first to the second rank and back, `round_trips` times, one message after the
/// other; the other ranks return at once. Each receive is posted before the message that answers the one
/// before it, so no message waits for a receive.
void ping_pong(Backend& backend, const RankPair& pair, MessageWalk& out, MessageWalk& in, int round_trips);

}  // namespace stepcast

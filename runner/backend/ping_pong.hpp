#pragma once

#include "runner/backend/message_walk.hpp"

namespace stepcast {

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

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "runner/backend/backend.hpp"

/// Messages of probes and benchmarks, and the memory that they are in.
namespace stepcast {

/// Memory that the messages of one measurement walk through. In training every tensor has another address, so
/// that only small messages are in the caches of the CPU. The walk takes 32 messages, or 256 MiB, before it
/// returns to its beginning.
class MessageWalk {
 public:
  /// \param begin memory of region_bytes(message.bytes())
  MessageWalk(void* begin, std::size_t count, DataType type)
      : begin_(static_cast<char*>(begin)),
        count_(count),
        type_(type),
        region_(region_bytes(count * size_of(type))) {}
  /// Array of the next message.
  Array next() {
    const Array message{begin_ + offset_, count_, type_};
    offset_ = offset_ + 2 * message.bytes() <= region_ ? offset_ + message.bytes() : 0;
    return message;
  }

  /// Bytes of a walk of messages of that size: at least one message, at most 256 MiB more.
  static std::size_t region_bytes(std::size_t message_bytes) {
    constexpr std::size_t kMessages = 32, kMost = std::size_t{256} << 20U;
    return std::max(message_bytes, std::min(kMessages * message_bytes, kMost));
  }

 private:
  char* begin_;
  std::size_t count_;
  DataType type_;
  std::size_t region_;
  std::size_t offset_ = 0;
};

/// Two ranks that exchange messages.
struct RankPair {
  int first = 0, second = 1;
  bool operator==(const RankPair&) const = default;
  [[nodiscard]] bool has(int rank) const { return rank == first || rank == second; }
  /// \pre has(rank)
  [[nodiscard]] int peer_of(int rank) const { return first + second - rank; }
};

/// Sends messages from the first to the second rank and back, `round_trips` times, one message after the
/// other; the other ranks return at once. Each receive is posted before the message that answers the one
/// before it, so no message waits for a receive.
inline void ping_pong(Backend& backend, const RankPair& pair, MessageWalk& out, MessageWalk& in,
                      int round_trips) {
  constexpr std::uint32_t kTag = 0xFFFF'FE00;
  if (!pair.has(backend.rank()) || round_trips < 1) return;
  const int peer = pair.peer_of(backend.rank());
  const bool answers = backend.rank() == pair.second;
  WorkPtr received = backend.recv(in.next(), peer, kTag);
  for (int trip = 0; trip < round_trips; ++trip) {
    if (answers) received->wait();
    // The next message may come at any time after this one is sent: its receive is posted first. The peer
    // waits now, so that the notice of it disturbs nobody.
    WorkPtr next;
    if (answers && trip + 1 < round_trips) next = backend.recv(in.next(), peer, kTag);
    const WorkPtr sent = backend.send(out.next(), peer, kTag);
    if (!answers) {
      received->wait();
      if (trip + 1 < round_trips) next = backend.recv(in.next(), peer, kTag);
    }
    sent->wait();
    received = std::move(next);
  }
}

}  // namespace stepcast

#include "runner/backend/ping_pong.hpp"

#include <algorithm>
#include <utility>

namespace stepcast {

MessageWalk::MessageWalk(void* begin, std::size_t count, DataType type)
    : begin_(static_cast<char*>(begin)),
      count_(count),
      type_(type),
      region_(region_bytes(count * size_of(type))) {}

Array MessageWalk::next() {
  const Array message{begin_ + offset_, count_, type_};
  offset_ = offset_ + 2 * message.bytes() <= region_ ? offset_ + message.bytes() : 0;
  return message;
}

std::size_t MessageWalk::region_bytes(std::size_t message_bytes) {
  constexpr std::size_t kMessages = 32;
  constexpr std::size_t kMost = std::size_t{256} << 20U;
  return std::max(message_bytes, std::min(kMessages * message_bytes, kMost));
}

void ping_pong(Backend& backend, const RankPair& pair, MessageWalk& out, MessageWalk& in, int round_trips) {
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

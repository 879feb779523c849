#include "runner/backend/ping_pong.hpp"

#include <utility>

namespace stepcast {

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

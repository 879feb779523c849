#include "runner/ping_pong.hpp"

#include <deque>

namespace stepcast {

void ping_pong(Backend& backend, const Array& data, const Array& inbox, int round_trips) {
  constexpr std::uint32_t kTag = 0xFFFF'FE00;
  constexpr int kPostedAhead = 2;
  if (backend.rank() > 1) return;
  const int peer = 1 - backend.rank();
  std::deque<WorkPtr> receives;
  int posted = 0;
  // Two receives may share the inbox: the second message leaves after the first was answered.
  for (int trip = 0; trip < round_trips; ++trip) {
    for (; posted < round_trips && posted < trip + kPostedAhead; ++posted)
      receives.push_back(backend.recv(inbox, peer, kTag));
    if (backend.rank() == 1) receives.front()->wait();
    const WorkPtr sent = backend.send(data, peer, kTag);
    if (backend.rank() == 0) receives.front()->wait();
    sent->wait();
    receives.pop_front();
  }
}

}  // namespace stepcast

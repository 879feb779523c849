#include "sim/collectives/algorithm.hpp"

namespace stepcast {
namespace {

/// `root` sends the whole message to the rank after it; other ranks take no part.
int receiver(const CollectiveCall& call) { return (call.root + 1) % call.ranks; }

int steps_of(const CollectiveCall& call, int rank) {
  return call.ranks >= 2 && (rank == call.root || rank == receiver(call)) ? 1 : 0;
}

Exchange step_of(const CollectiveCall& call, int rank, int /*index*/) {
  if (rank == call.root) return {.to = receiver(call), .sent = call.message};
  return {.from = call.root, .received = call.message};
}

///     T(S) = alpha + S beta                                                              Hockney 1994
Seconds time_of(const CollectiveCall& call, const LinkCost& link) {
  return call.ranks < 2 ? Seconds{0} : link.latency + call.message / link.bandwidth;
}

Bytes sent_by(const CollectiveCall& call, int rank) {
  return call.ranks >= 2 && rank == call.root ? call.message : Bytes(0);
}

const Registration<Algorithm> kSendRecv{algorithms(),
                                        {.name = "send_recv/direct",
                                         .description = "one message from root to the rank after it",
                                         .thing = {.kind = std::nullopt,
                                                   .steps = steps_of,
                                                   .step = step_of,
                                                   .time = time_of,
                                                   .sent = sent_by,
                                                   .copied = {}}}};

}  // namespace
}  // namespace stepcast

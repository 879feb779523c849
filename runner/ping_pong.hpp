#pragma once

#include "runner/message_walk.hpp"

namespace stepcast {

/// Sends messages from rank 0 to rank 1 and back, `round_trips` times, one message after the other; the other
/// ranks return at once. Each receive is posted before the message that answers the one before it, so no
/// message waits for a receive.
void ping_pong(Backend& backend, MessageWalk& out, MessageWalk& in, int round_trips);

}  // namespace stepcast

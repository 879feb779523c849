#pragma once

#include "runner/backend.hpp"

namespace stepcast {

/// Sends `data` from rank 0 to rank 1 and back, `round_trips` times, one message after the other; the other
/// ranks return at once. Each receive is posted before the message that answers the one before it, so no
/// message waits for a receive. `inbox` has the size of `data` and is overwritten by every message.
void ping_pong(Backend& backend, const Array& data, const Array& inbox, int round_trips);

}  // namespace stepcast

#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "sim/replay/transport.hpp"

namespace stepcast {

/// Sends and receives: matched by sender, receiver and tag, in the order in which they are posted.
class PointToPoint {
 public:
  PointToPoint(Clock& clock, Transport& transport) : clock_(clock), transport_(transport) {}

  /// Posts one side. `done` of the sender is called when its array is free again, of the receiver at the
  /// arrival.
  void post(bool is_send, int from, int to, int tag, double bytes, Callback done);

 private:
  struct Posted {
    bool is_send = false;
    double date = 0.0;
    Callback done;
  };
  Clock& clock_;
  Transport& transport_;
  std::map<std::tuple<int, int, int>, std::vector<Posted>> waiting_;  ///< all of a queue are of the same side
};

}  // namespace stepcast

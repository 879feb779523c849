#include "sim/replay/point_to_point.hpp"

#include <utility>

namespace stepcast {

void PointToPoint::post(bool is_send, int from, int to, int tag, double bytes, Callback done) {
  auto& queue = waiting_[{from, to, tag}];
  if (queue.empty() || queue.front().is_send == is_send) {
    queue.push_back({is_send, clock_.now(), std::move(done)});
    return;
  }
  Posted other = std::move(queue.front());
  queue.erase(queue.begin());
  const double receive_posted = is_send ? other.date : clock_.now();
  Callback& sent = is_send ? done : other.done;
  Callback& arrived = is_send ? other.done : done;
  transport_.move({from, to, bytes, receive_posted, std::move(sent), std::move(arrived)});
}

}  // namespace stepcast

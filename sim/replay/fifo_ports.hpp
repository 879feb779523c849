#pragma once

#include <map>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "records/calibration.hpp"
#include "sim/replay/clock.hpp"

namespace simgrid::s4u {
class Link;
}  // namespace simgrid::s4u

namespace stepcast {

/// Ports that send bytes in the order in which they came, whosever they are.
///
/// A message leaves its host in segments of 16 KiB, as long as its
/// connection's window W has room; room comes with the arrival of a segment, the way back later. Connections
/// have windows of their own, drawn from those that were measured, and after ten of them, as many round trips,
/// another one: as long as BBR looks back for its bandwidth (draft-cardwell-iccrg-bbr-congestion-control-00,
/// 4.1.1.3). They were measured alone; a window is twice what a connection's own rate sends in a round trip (4.2.3.2),
/// so that of m messages which share a port each has the m-th part. The kernel lets the socket's buffer grow with the
/// largest window there was (tcp_sndbuf_expand), so a connection that never had its port for itself has a smaller one,
/// and its sender waits longer. A port of rate r behind a token bucket of depth D (0: none) serves segment after segment, in the order of their
/// first bytes. One of s bytes, of which the first byte comes at f and the last at l, leaves:
///
///     v     <-  max(v, f) + s / r           the port's backlog
///     first byte  max(f, v before - D / r)
///     last byte   max(l, v - D / r)
///
/// Cut through, so that a message alone takes alpha + n / bandwidth of its way, less D / r after a pause.
/// With windows that hold whole messages, a host that sends S bytes to each of m others is done with the k-th
/// after k S / r. Shorter windows share the port in proportion to their sizes: where these are equal all
/// messages end near m S / r, as at a fair port; where they differ the widest ends first, after
/// sum(W) / max(W) S / r. Hosts that send to one share its port in the same way. Max-min sharing of SimGrid's links
/// knows no order; that is why these flows are not SimGrid's. No losses: queues hold all windows.
class FifoPorts {
 public:
  /// One link in one direction, which it is known by.
  struct Port {
    const simgrid::s4u::Link* link = nullptr;
    double bytes_per_s = 0.0;
    double latency_s = 0.0;
    double bucket_bytes = 0.0;  ///< of the token bucket; 0: none
  };

  /// \param connection windows to draw from (none: whole messages are under way at once) and the buffer of a socket
  /// (0: of a whole message)
  FifoPorts(Clock& clock, const ConnectionCost& connection)
      : clock_(clock), windows_(connection.window_bytes), buffer_(connection.send_buffer_bytes) {}

  /// Sends a message between two nodes through `way`, first port first. `in_socket`, unless empty, is called when
  /// no more of it than fits the socket's buffer has yet to arrive, `arrived` with the last byte. Neither is called
  /// from inside this call. \pre bytes > 0, way not empty
  void start(int from, int to, const std::vector<Port>& way, double bytes, Callback in_socket,
             Callback arrived);

 private:
  /// One way between two nodes.
  struct Connection {
    std::minstd_rand draws;
    double window = 0.0;
    double buffer = 0.0;         ///< of the sender's socket
    double until_renewal = 0.0;  ///< bytes
  };
  struct Message {
    Connection* connection = nullptr;
    std::vector<std::size_t> ports;
    double left = 0.0;       ///< bytes that have not left the host
    double under_way = 0.0;  ///< that have, and whose arrival the sender does not know of
    double to_arrive = 0.0;
    Callback in_socket;
    Callback arrived;
  };
  using MessagePtr = std::shared_ptr<Message>;
  struct Backlog {
    Port port;
    double empty = 0.0;  ///< date at which the port would have served everything at its rate
    int messages = 0;    ///< that have yet to arrive
  };
  struct Segment {
    double bytes = 0.0;
    double last = 0.0;  ///< date at which its last byte comes to the next port
  };
  [[nodiscard]] bool has_room(const Message& message, double bytes) const;
  void fill_window(const MessagePtr& message);
  void pass(const MessagePtr& message, Segment segment, std::size_t hop);
  void deliver(const MessagePtr& message, double bytes);
  void tell_sender(const MessagePtr& message);

  Clock& clock_;
  const std::vector<double> windows_;
  const double buffer_;
  std::map<std::pair<int, int>, Connection> connections_;
  std::vector<Backlog> ports_;
  std::unordered_map<const simgrid::s4u::Link*, std::size_t> index_;
};

}  // namespace stepcast

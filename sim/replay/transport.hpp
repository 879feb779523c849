#pragma once

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "records/calibration.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "sim/replay/network.hpp"
#include "sim/replay/shared_host.hpp"
#include "sim/replay/symmetry.hpp"

namespace stepcast {

/// One message between two ranks whose send and receive are both posted.
struct Transfer {
  int from = 0;
  int to = 0;
  double bytes = 0.0;
  double receive_posted = 0.0;  ///< date
  Callback sent;                ///< called when the sender may reuse its array; may be empty
  Callback arrived;
  int flow_type = 0;  ///< of the network
};

/// Cost of one message from end to end.
///
/// Without a calibration: alpha + n / bandwidth of the links, and nothing on one host. With a calibration,
/// after LogGP: each rank has one message engine, which handles sends and receives one after the other.
///
///     engine      busy for gap(n) per message and end, with cpu(n) / gap(n) cores of its host; starts on its
///                 own
///     wake        a receiver without another message in its engine sleeps; it takes wake_cpu of a core
///                 before the arrival
///     arrival     latency(n) after both engines have started on it, and not before both have finished
///     other host  if the calibration excludes the wire from latency: a flow over the links, latency(n)
///                 after the sender's engine has started and after earlier messages of the same
///                 connection; an engine sends before it receives. Otherwise latency(0) after both engines
///                 have started, then a flow concurrently with latency(n) - latency(0). Gloo adds 48 B
///     notice      the sender learns of a posted receive `notice` later (plus the wire's latency): a receive
///                 posted before the send costs nothing, one posted with it half a round trip
///
/// Sending ends for the sender when its engine has finished, because the array is in the socket by then. Busy
/// cores slow engines, and with them the message. Sources: Alexandrov et al., SPAA 1995;
/// gloo/transport/tcp/pair.cc (preamble, NOTIFY_RECV_READY).
class Transport {
 public:
  /// Messages of the backend `nccl` cost NCCL's times.
  Transport(Clock& clock, Network& network, Processors& processors, const ReplayInput& input,
            const Symmetry& symmetry, Routes& routes);

  /// Moves a message whose send and receive are both posted. Callbacks never come from inside this call.
  void move(Transfer transfer);

  /// True if messages between two ranks cross links.
  [[nodiscard]] bool remote(int from, int to) const { return node(from) != node(to); }
  /// Endpoint costs between two ranks; null if endpoints are free. The path class follows from the cluster:
  /// `same_host`, `same_switch` with at most one switch between the hosts, else `across_switches`; the
  /// nearest calibrated class for one that is not calibrated. \param message size for extrapolated(); 0: none
  [[nodiscard]] const PathCost* path(int from, int to, Bytes message = {}) const;
  /// Path classes that are not calibrated and the classes used for them; "" if there are none.
  [[nodiscard]] std::string stand_ins() const;
  /// Smallest and largest message by path class, if one is outside the calibrated sizes; "" if none is.
  [[nodiscard]] std::string extrapolated() const;
  [[nodiscard]] double wire_latency_s(int from, int to) const;
  /// Least bandwidth of the path over the links. \pre remote(from, to)
  [[nodiscard]] double wire_bandwidth_bytes_per_s(int from, int to) const;
  [[nodiscard]] double wire_bytes(double bytes) const { return bytes + preamble_bytes_; }
  /// Node of a rank in the cluster.
  [[nodiscard]] int node(int rank) const { return node_of_rank_[rank]; }
  /// Node of the rank that is replayed for `rank`.
  [[nodiscard]] int replayed_node(int rank) const { return node_of_rank_[symmetry_.rank(rank)]; }
  [[nodiscard]] const Symmetry& symmetry() const { return symmetry_; }
  /// Bytes that each replayed rank has sent so far, without preambles.
  [[nodiscard]] const std::vector<double>& bytes_sent() const { return bytes_sent_; }
  void count_sent(int rank, double bytes) { bytes_sent_[symmetry_.rank(rank)] += bytes; }

 private:
  struct Message {
    Transfer transfer;
    int engines_started = 0;
    int open_parts = 0;   ///< engines, wake, timer and flow that are not over
    double queued = 0.0;  ///< date at which it waited for its connection
  };
  using MessagePtr = std::shared_ptr<Message>;
  struct Service {
    MessagePtr message;
    bool sending = false;
    bool holds_engine = false;
  };
  struct Engine {
    std::deque<Service> waiting;
    bool busy = false;
    int receives = 0;  ///< waiting, or being served
  };
  /// One way between two ranks: bytes cross in the order in which they were sent. The first is on its way.
  using Connection = std::deque<MessagePtr>;
  void move_by_nccl(Transfer transfer);
  void begin(const MessagePtr& message);
  void wake(int rank, const MessagePtr& message);
  void serve(int rank);
  [[nodiscard]] bool crosses_wire(const Message& message) const;
  void engine_done(int rank, const Service& service);
  void fly(const MessagePtr& message);
  void cross(const MessagePtr& message);
  void send_first(Connection& connection, double ahead);
  static void part_over(Message& message);

  Clock& clock_;
  Network& network_;
  Processors& processors_;
  const Cluster& cluster_;
  NcclGraphs* nccl_;  ///< null: another backend
  const Symmetry& symmetry_;
  Routes& routes_;
  const std::vector<int>& node_of_rank_;
  /// The path class between two nodes and what serves for it.
  struct ClassCost {
    const char* wanted = kSameHost;
    const PathCost* cost = nullptr;
    bool used = false;
    Bytes least{std::numeric_limits<double>::infinity()}, most{};  ///< messages
  };
  [[nodiscard]] std::size_t class_between(int from_node, int to_node) const;

  mutable std::array<ClassCost, 3> classes_{};  ///< from near to far
  double preamble_bytes_ = 0.0;
  std::map<int, Engine> engines_;                          ///< by replayed rank
  std::map<std::pair<int, int>, Connection> connections_;  ///< by sender and receiver
  std::vector<double> bytes_sent_;
};

/// Sends and receives, which match in the order in which they are posted.
class PointToPoint {
 public:
  /// Replayed ranks or members between which messages match, and how far apart they are.
  struct Ends {
    int from, to, offset = 0, tag = 0;
    auto operator<=>(const Ends&) const = default;
  };
  /// One side of a message. `done` of the sender is called when its array is free again, of the receiver at
  /// the arrival.
  struct Side {
    bool is_send = false;
    int from = 0, to = 0;  ///< ranks
    double bytes = 0.0;
    Callback done;
    int flow_type = 0;
    double date = 0.0;  ///< of the post
  };
  PointToPoint(Clock& clock, Transport& transport) : clock_(clock), transport_(transport) {}

  /// Posts one side; moves the message if the other side waits. Its ranks are those of the sender's side.
  void post(const Ends& ends, Side side);
  /// Posts a side of a message between two ranks.
  void post(Side side, int tag) {
    const Symmetry& symmetry = transport_.symmetry();
    post({symmetry.rank(side.from), symmetry.rank(side.to), side.to - side.from, tag}, std::move(side));
  }

 private:
  Clock& clock_;
  Transport& transport_;
  std::map<Ends, std::vector<Side>> waiting_;  ///< all of a queue are of the same side
};

}  // namespace stepcast

#include "sim/replay/transport.hpp"

#include <algorithm>

#include "core/table.hpp"
#include "sim/collectives/nccl_reached.hpp"

namespace stepcast {
namespace {

constexpr double kGlooPreambleBytes = 48.0;  // six 8-byte fields before every message
constexpr double kLastPart = 0.01;           // of a message, that leaves after the one before has arrived
constexpr std::size_t kHere = 0;             // path classes from near to far
constexpr std::size_t kNear = 1;
constexpr std::size_t kFar = 2;

/// The first of `names` that is calibrated; else the first class there is.
const PathCost& first_class(const Calibration& calibration, const std::vector<const char*>& names) {
  for (const char* name : names)
    for (const PathCost& path : calibration.paths)
      if (path.path_class == name) return path;
  return calibration.paths.front();
}

}  // namespace

Transport::Transport(Clock& clock, Network& network, Processors& processors, const ReplayInput& input,
                     const Symmetry& symmetry, Routes& routes)
    : clock_(clock),
      network_(network),
      processors_(processors),
      cluster_(*input.cluster),
      nccl_(input.nccl_graphs),
      symmetry_(symmetry),
      routes_(routes),
      node_of_rank_(input.node_of_rank),
      bytes_sent_(node_of_rank_.size()) {
  const Calibration* calibration = input.calibration;
  if (nccl_ != nullptr || calibration == nullptr || calibration->paths.empty()) return;
  classes_[kHere] = {kSameHost, &first_class(*calibration, {kSameHost, kSameSwitch, kAcrossSwitches})};
  classes_[kNear] = {kSameSwitch, &first_class(*calibration, {kSameSwitch, kAcrossSwitches, kSameHost})};
  classes_[kFar] = {kAcrossSwitches, &first_class(*calibration, {kAcrossSwitches, kSameSwitch, kSameHost})};
  if (calibration->job.backend == "gloo") preamble_bytes_ = kGlooPreambleBytes;
}

std::size_t Transport::class_between(int from_node, int to_node) const {
  if (cluster_.node(from_node).host == cluster_.node(to_node).host) return kHere;
  return switches_crossed(routes_.cluster(), routes_.between(from_node, to_node)) <= 1 ? kNear : kFar;
}

const PathCost* Transport::path(int from, int to, Bytes message) const {
  if (classes_[kHere].cost == nullptr) return nullptr;
  ClassCost& found = classes_[class_between(node(from), node(to))];
  found.used = true;
  if (message <= Bytes(0)) return found.cost;
  found.least = std::min(found.least, message);
  found.most = std::max(found.most, message);
  return found.cost;
}

std::string Transport::stand_ins() const {
  std::vector<std::string> texts;
  for (const ClassCost& entry : classes_)
    if (entry.used && entry.cost->path_class != entry.wanted)
      texts.push_back(
          fmt::format("{} for {}, which is not calibrated", entry.cost->path_class, entry.wanted));
  return joined(texts, "; ");
}

std::string Transport::extrapolated() const {
  constexpr Bytes kLatencyBound{1024.0};  // below, the time of a message does not depend on its size
  std::vector<std::string> texts;
  for (const ClassCost& entry : classes_) {
    if (entry.cost == nullptr || entry.cost->largest_bytes <= 0.0) continue;
    const Bytes least(entry.cost->smallest_bytes), most(entry.cost->largest_bytes);
    if (entry.most > most || (entry.least < least && least > kLatencyBound))
      texts.push_back(fmt::format("{} to {} on {}, costs beyond the calibrated {} to {} are extrapolated",
                                  to_text(entry.least), to_text(entry.most), entry.cost->path_class,
                                  to_text(least), to_text(most)));
  }
  return joined(texts, "; ");
}

double Transport::wire_latency_s(int from, int to) const {
  if (!remote(from, to)) return 0.0;
  return latency(routes_.cluster(), routes_.between(node(from), node(to))).count();
}

double Transport::wire_bandwidth_bytes_per_s(int from, int to) const {
  return bandwidth(routes_.cluster(), routes_.between(node(from), node(to))).count();
}

void Transport::move(Transfer transfer) {
  if (nccl_ != nullptr) {
    move_by_nccl(std::move(transfer));
    return;
  }
  const PathCost* cost = path(transfer.from, transfer.to, Bytes(transfer.bytes));
  if (cost != nullptr) {
    auto message = std::make_shared<Message>();
    const double notice = cost->notice_s + wire_latency_s(transfer.from, transfer.to);
    const double noticed = transfer.receive_posted + notice;
    message->transfer = std::move(transfer);
    clock_.at(noticed, [this, message] { begin(message); });
    return;
  }
  const int from = node(transfer.from);
  const int to = node(transfer.to);
  Callback over = std::move(transfer.arrived);
  if (transfer.sent)
    over = [sent = std::move(transfer.sent), arrived = std::move(over)] {
      sent();
      arrived();
    };
  if (from == to)
    clock_.at(clock_.now(), std::move(over));
  else
    network_.start({from, to, transfer.flow_type}, transfer.bytes, std::move(over));
}

/// The message of a kernel on both GPUs: no less than latency + n / algbw of NCCL's messages, nor than its
/// bytes need on the links. Sending is over with the arrival. What the kernels take of the GPUs is left out.
void Transport::move_by_nccl(Transfer transfer) {
  const int from = node(transfer.from);
  const int to = node(transfer.to);
  const NcclPair& pair = nccl_->pair(from, to);
  const NcclCost cost = nccl_point_to_point(pair, Bytes(transfer.bytes));
  const double on_wire = transfer.bytes * wire_factor(cost.protocol) * pair.overhead;
  const double rest = std::max(0.0, (cost.latency - pair.latency).count());
  const double earliest = clock_.now() + cost.time(Bytes(transfer.bytes)).count();
  network_.start({from, to, transfer.flow_type}, on_wire,
                 [this, rest, earliest, transfer = std::move(transfer)] {
                   clock_.at(std::max(earliest, clock_.now() + rest), [transfer] {
                     if (transfer.sent) transfer.sent();
                     transfer.arrived();
                   });
                 });
}

void Transport::begin(const MessagePtr& message) {
  const int from = symmetry_.rank(message->transfer.from);
  const int to = symmetry_.rank(message->transfer.to);
  engines_[from].waiting.push_back({message, true, false});
  engines_[to].waiting.push_back({message, false, false});
  message->open_parts = 2;
  if (engines_[to].receives++ == 0) wake(to, message);
  serve(from);
  serve(to);
}

/// The receiver's threads slept until now.
void Transport::wake(int rank, const MessagePtr& message) {
  const double seconds = path(message->transfer.from, message->transfer.to)->wake_cpu_s;
  if (seconds <= 0.0) return;
  ++message->open_parts;
  processors_.run(node(rank), {.seconds = seconds, .rank = rank, .communication = true},
                  [message] { part_over(*message); });
}

/// Starts the engine of `rank` on what waits first. A message of no gap holds no engine.
void Transport::serve(int rank) {
  Engine& engine = engines_[rank];
  while (!engine.busy && !engine.waiting.empty()) {
    const auto next = std::ranges::find_if(
        engine.waiting, [this](const Service& one) { return one.sending && crosses_wire(*one.message); });
    const auto served = next == engine.waiting.end() ? engine.waiting.begin() : next;
    Service service = std::move(*served);
    engine.waiting.erase(served);
    const Transfer& transfer = service.message->transfer;
    const PathCost& cost = *path(transfer.from, transfer.to);
    const double gap = cost.gap.at(Bytes(transfer.bytes)).count();
    const double cpu = cost.cpu.at(Bytes(transfer.bytes)).count();
    // Without a gap of its own the processor work spreads over the message's way.
    const double seconds = gap > 0.0 ? gap : cost.latency.at(Bytes(transfer.bytes)).count();
    engine.busy = service.holds_engine = gap > 0.0;
    const bool both = ++service.message->engines_started == 2;
    if (crosses_wire(*service.message) ? service.sending : both) fly(service.message);
    if (seconds > 0.0 && (gap > 0.0 || cpu > 0.0))
      processors_.run(node(rank),
                      {.seconds = seconds, .cores = cpu / seconds, .rank = rank, .communication = true},
                      [this, rank, service] { engine_done(rank, service); });
    else
      clock_.at(clock_.now(), [this, rank, service] { engine_done(rank, service); });
  }
}

/// True if links carry the message at a rate that was taken out of its latency.
bool Transport::crosses_wire(const Message& message) const {
  const Transfer& transfer = message.transfer;
  return remote(transfer.from, transfer.to) &&
         path(transfer.from, transfer.to)->wire_bandwidth_bytes_per_s > 0.0;
}

/// The message's way begins.
void Transport::fly(const MessagePtr& message) {
  const Transfer& transfer = message->transfer;
  const PathCost& cost = *path(transfer.from, transfer.to);
  const double latency = cost.latency.at(Bytes(transfer.bytes)).count();
  ++message->open_parts;
  if (crosses_wire(*message)) {
    clock_.at(clock_.now() + latency, [this, message] { cross(message); });
    return;
  }
  clock_.at(clock_.now() + latency, [message] { part_over(*message); });
  if (!remote(transfer.from, transfer.to)) return;
  ++message->open_parts;
  clock_.at(clock_.now() + cost.latency.at(Bytes(0)).count(), [this, message] { cross(message); });
}

void Transport::cross(const MessagePtr& message) {
  if (!crosses_wire(*message)) {
    network_.start({node(message->transfer.from), node(message->transfer.to), message->transfer.flow_type},
                   wire_bytes(message->transfer.bytes), [message] { part_over(*message); });
    return;
  }
  Connection& connection = connections_[{message->transfer.from, message->transfer.to}];
  message->queued = clock_.now();
  connection.push_back(message);
  if (connection.size() == 1) send_first(connection, 0.0);
}

/// \param ahead bytes that left while the message before was still on its way
void Transport::send_first(Connection& connection, double ahead) {
  const MessagePtr message = connection.front();
  const int from = message->transfer.from;
  const int to = message->transfer.to;
  const double bytes = wire_bytes(message->transfer.bytes);
  const double begun = clock_.now();
  const auto arrived = [this, &connection, message, bytes, ahead, begun] {
    const double latency = wire_latency_s(message->transfer.from, message->transfer.to);
    const double crossing = clock_.now() - begun - latency;
    connection.pop_front();
    if (!connection.empty()) {
      const double most_rate = wire_bandwidth_bytes_per_s(message->transfer.from, message->transfer.to);
      const double rate = crossing > 0.0 ? std::min((bytes - ahead) / crossing, most_rate) : 0.0;
      const double early = std::min(latency, clock_.now() - connection.front()->queued);
      const double most = (1.0 - kLastPart) * wire_bytes(connection.front()->transfer.bytes);
      send_first(connection, std::min(early * rate, most));
    }
    part_over(*message);
  };
  network_.start({node(from), node(to), message->transfer.flow_type}, bytes - ahead, arrived);
}

void Transport::engine_done(int rank, const Service& service) {
  if (service.holds_engine) engines_[rank].busy = false;
  if (!service.sending)
    --engines_[rank].receives;
  else if (const Callback& sent = service.message->transfer.sent)
    sent();
  part_over(*service.message);
  serve(rank);
}

void Transport::part_over(Message& message) {
  if (--message.open_parts == 0) message.transfer.arrived();
}

void PointToPoint::post(const Ends& ends, Side side) {
  side.date = clock_.now();
  std::vector<Side>& queue = waiting_[ends];
  if (queue.empty() || queue.front().is_send == side.is_send) {
    queue.push_back(std::move(side));
    return;
  }
  Side other = std::move(queue.front());
  queue.erase(queue.begin());
  Side& send = side.is_send ? side : other;
  Side& receive = side.is_send ? other : side;
  transport_.count_sent(send.from, side.bytes);
  transport_.move({send.from, send.to, side.bytes, receive.date, std::move(send.done),
                   std::move(receive.done), send.flow_type});
}

}  // namespace stepcast

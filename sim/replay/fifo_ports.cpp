#include "sim/replay/fifo_ports.hpp"

#include <algorithm>

namespace stepcast {
namespace {

constexpr double kSegment = 16'384.0;
constexpr double kWindowRoundTrips = 10.0;  // of a window's life

}  // namespace

void FifoPorts::start(int from, int to, const std::vector<Port>& way, double bytes, Callback in_socket,
                      Callback arrived) {
  auto message = std::make_shared<Message>();
  for (const Port& port : way) {
    const auto [found, is_new] = index_.try_emplace(port.link, ports_.size());
    if (is_new) ports_.push_back({port, 0.0});
    message->ports.push_back(found->second);
  }
  const auto [found, is_new] = connections_.try_emplace({from, to});
  message->connection = &found->second;
  if (is_new) {
    std::seed_seq seed{from, to};
    message->connection->draws.seed(seed);
    if (windows_.empty()) message->connection->buffer = buffer_;
  }
  message->left = message->to_arrive = bytes;
  message->in_socket = std::move(in_socket);
  message->arrived = std::move(arrived);
  for (const std::size_t port : message->ports) ++ports_[port].messages;
  clock_.at(clock_.now(), [this, message] {
    fill_window(message);
    tell_sender(message);
  });
}

bool FifoPorts::has_room(const Message& message, double bytes) const {
  return windows_.empty() || message.under_way <= 0.0 ||
         message.under_way + bytes <= message.connection->window;
}

void FifoPorts::fill_window(const MessagePtr& message) {
  while (message->left > 0.0) {
    const double bytes = std::min(kSegment, message->left);
    Connection& connection = *message->connection;
    if (!windows_.empty() && connection.until_renewal <= 0.0) {
      int sharing = 1;
      for (const std::size_t port : message->ports) sharing = std::max(sharing, ports_[port].messages);
      connection.window = windows_[connection.draws() % windows_.size()] / sharing;
      connection.buffer = std::max(connection.buffer, buffer_ * connection.window / windows_.back());
      connection.until_renewal = kWindowRoundTrips * connection.window;
    }
    if (!has_room(*message, bytes)) return;
    connection.until_renewal -= bytes;
    message->left = bytes < message->left ? message->left - bytes : 0.0;
    message->under_way += bytes;
    pass(message, {bytes, clock_.now()}, 0);
  }
}

void FifoPorts::pass(const MessagePtr& message, Segment segment, std::size_t hop) {
  Backlog& backlog = ports_[message->ports[hop]];
  const Port& port = backlog.port;
  const double credit = port.bucket_bytes / port.bytes_per_s;
  const double first = std::max(clock_.now(), backlog.empty - credit) + port.latency_s;
  backlog.empty = std::max(backlog.empty, clock_.now()) + segment.bytes / port.bytes_per_s;
  segment.last = std::max(segment.last, backlog.empty - credit) + port.latency_s;
  if (hop + 1 < message->ports.size())
    clock_.at(first, [this, message, segment, hop] { pass(message, segment, hop + 1); });
  else
    clock_.at(segment.last, [this, message, bytes = segment.bytes] { deliver(message, bytes); });
}

void FifoPorts::deliver(const MessagePtr& message, double bytes) {
  message->to_arrive -= bytes;
  const bool is_last = message->left == 0.0 && message->to_arrive < 0.5;
  double back = 0.0;
  for (const std::size_t port : message->ports) back += ports_[port].port.latency_s;
  if (!windows_.empty() && message->left > 0.0)
    clock_.at(clock_.now() + back, [this, message, bytes] {
      message->under_way -= bytes;
      fill_window(message);
    });
  tell_sender(message);
  if (!is_last) return;
  for (const std::size_t port : message->ports) --ports_[port].messages;
  std::exchange(message->arrived, nullptr)();
}

void FifoPorts::tell_sender(const MessagePtr& message) {
  if (message->in_socket && (buffer_ <= 0.0 || message->to_arrive <= message->connection->buffer))
    std::exchange(message->in_socket, nullptr)();
}

}  // namespace stepcast

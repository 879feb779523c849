#include "runner/measure/connection_sizes.hpp"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/statistics.hpp"

namespace stepcast {
namespace {

/// Whether both ends of a connection have one address, or it is none.
bool stays_here(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t size = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return true;
  size = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return true;
  if (own.ss_family != peer.ss_family) return true;
  if (own.ss_family == AF_INET)
    return reinterpret_cast<sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<sockaddr_in&>(peer).sin_addr.s_addr;
  return own.ss_family != AF_INET6 || IN6_ARE_ADDR_EQUAL(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr,
                                                         &reinterpret_cast<sockaddr_in6&>(peer).sin6_addr);
}

/// Adds the present sizes.
void look(ConnectionCost& seen) {
  std::uint64_t most = 0;
  double window = 0.0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    const int socket = std::stoi(entry.path().filename().string());
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || stays_here(socket) ||
        info.tcpi_bytes_acked <= most)
      continue;
    int buffer = 0;
    size = sizeof buffer;
    if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, &size) != 0) continue;
    most = info.tcpi_bytes_acked;
    window = static_cast<double>(info.tcpi_snd_cwnd) * info.tcpi_snd_mss;
    seen.send_buffer_bytes = buffer;
  }
  if (window > 0.0) seen.window_bytes.push_back(window);
}

}  // namespace

ConnectionWatch::ConnectionWatch()
    : thread_([this](const std::stop_token& stop) {
        constexpr std::chrono::milliseconds kPause{100};
        for (; !stop.stop_requested(); std::this_thread::sleep_for(kPause)) look(seen_);
      }) {}

ConnectionCost ConnectionWatch::end() {
  thread_.request_stop();
  thread_.join();
  if (seen_.window_bytes.empty()) return {};
  constexpr int kQuantiles = 20;
  ConnectionCost result = std::move(seen_);
  const std::vector<double> windows = std::exchange(result.window_bytes, {});
  for (int i = 0; i <= kQuantiles; ++i)
    result.window_bytes.push_back(quantile(windows, static_cast<double>(i) / kQuantiles));
  return result;
}

}  // namespace stepcast

#include "runner/backend/local_address.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "core/environment.hpp"
#include "core/error.hpp"

namespace stepcast {
namespace {

/// The address of this host on the route to `peer`: connecting a datagram socket chooses the route and sends
/// nothing. \throws RunError when `peer` is unknown or unreachable
std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(peer.c_str(), "9", &hints, &found); error != 0)
    throw RunError("the address of rank 0, '" + peer + "', is unknown: " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  socklen_t length = sizeof local;
  std::array<char, NI_MAXHOST> text{};
  const bool ok = socket >= 0 && ::connect(socket, found->ai_addr, found->ai_addrlen) == 0 &&
                  ::getsockname(socket, address, &length) == 0 &&
                  ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  if (socket >= 0) ::close(socket);
  if (!ok) throw RunError("no network interface reaches rank 0 at '" + peer + "'");
  return text.data();
}

}  // namespace

LocalAddress choose_network(const BackendConfig& config) {
  if (!config.interface.empty()) return {config.interface, ""};
  if (group_by_host(config.hosts).size() < 2) return {"", "127.0.0.1"};
  if (const auto variable = process_environment("GLOO_SOCKET_IFNAME")) return {*variable, ""};
  return {"", address_towards(config.master_addr)};
}

}  // namespace stepcast

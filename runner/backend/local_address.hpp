#pragma once

#include <string>

#include "runner/backend/backend.hpp"

namespace stepcast {

/// Where a rank's connections start: a network interface by its name, or an address of this host; the other
/// one is empty.
struct LocalAddress {
  std::string interface;
  std::string address;
};

/// The interface as asked for, loopback when all ranks are here, GLOO_SOCKET_IFNAME, else the address that
/// reaches rank 0 (gloo's own default, the host's name, resolves to loopback on many systems).
/// \throws RunError when rank 0 is unknown or unreachable
LocalAddress choose_network(const BackendConfig& config);

}  // namespace stepcast

#pragma once

#include <string>

#include "runner/backend/backend.hpp"

namespace stepcast {

/// Local end of a rank's connections: a network interface by its name, or an address of this host; the other
/// one is empty.
struct LocalAddress {
  std::string interface, address;
};

/// The requested interface, loopback if all ranks are on this host, GLOO_SOCKET_IFNAME, else the address that
/// reaches rank 0. (Gloo's default, the name of the host, resolves to loopback on many systems.) \throws
/// RunError if rank 0 is unknown or unreachable
LocalAddress choose_network(const BackendConfig& config);

}  // namespace stepcast

#pragma once

#include <chrono>
#include <memory>

#include "runner/backend.hpp"
#include "runner/launch.hpp"

namespace stepcast {

/// The store that rank 0 serves at master_addr:master_port, by c10d's TCPStore. Includes no LibTorch. \throws
/// TimeoutError when rank 0 does not answer; RunError when rank 0 cannot serve it
std::shared_ptr<Store> make_tcp_store(const RankContext& ranks, std::chrono::milliseconds timeout);

}  // namespace stepcast

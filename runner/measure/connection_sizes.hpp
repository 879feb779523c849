#pragma once

#include <thread>

#include "records/calibration.hpp"

namespace stepcast {

/// Watches from a thread, ten times per second, what of this process's connections to other hosts the one holds
/// that has carried most: its congestion window, and its send buffer, of which the kernel's own records take
/// about a tenth. Source: tcp(7), TCP_INFO.
class ConnectionWatch {
 public:
  ConnectionWatch();

  /// Ends the watch. \return windows (their quantiles from 0 to 1 in steps of 0.05) and the last send buffer;
  /// nothing without such a connection
  ConnectionCost end();

 private:
  ConnectionCost seen_;
  std::jthread thread_;
};

}  // namespace stepcast

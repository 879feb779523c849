#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner/execute/device_copies.hpp"
#include "runner/measure/bench_collectives.hpp"

/// Times of copies between the memories of this host and of its devices.
namespace stepcast {

/// Copies of one device, from and to this host and to the next device, with arrays of its own.
class CopyBench {
 public:
  /// \param copies outlive this \param largest bytes of a copy \throws UsageError if there is no such device
  CopyBench(DeviceCopies& copies, int device, std::size_t largest);

  /// Names of the copies, as in BenchRow: `copy_h2d_pinned`, ...; `copy_p2p` only if there are several
  /// devices.
  [[nodiscard]] std::vector<std::string> kinds() const;
  /// `gpu0 NVIDIA H100 80GB HBM3`
  [[nodiscard]] std::string device() const;
  /// Reasons to doubt the times: `gpu0 cannot reach gpu1 directly`.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  /// Copies `times` times back to back on one stream; returns when the last byte has arrived.
  void copy(const std::string& kind, std::size_t bytes, int times);
  /// Copies known data once. \returns number of wrong bytes
  double check(const std::string& kind, std::size_t bytes);

 private:
  struct Ends {
    std::shared_ptr<void> from, to;
  };

  DeviceCopies& copies_;
  int device_;
  std::map<std::string, Ends> ends_;  ///< by kind
  std::size_t stream_ = 0;
  std::vector<std::string> warnings_;
};

/// Rows by kind and size. A sample is the time per copy of `iterations` back to back (0: 3 to 100, about 2
/// GiB); that of a small copy is mostly the host's time to issue it. `collectives` are the kinds.
/// One rank calls it. \throws UsageError for an unknown kind
std::vector<BenchRow> bench_copies(RankSession& session, CopyBench& bench, const BenchSettings& settings,
                                   const OnSample& on_sample);

}  // namespace stepcast

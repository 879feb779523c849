#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/execute/device_copies.hpp"
#include "runner/measure/bench_collectives.hpp"

/// Times of copies between the memory of this host and that of its devices.
namespace stepcast {

/// Copies with arrays of its own, between this host and one device.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  CopyEngine() = default;
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  /// What it copies, as BenchRow names it: `copy_h2d_pinned`, ...; peer to peer only where there is a peer.
  [[nodiscard]] virtual std::vector<std::string> kinds() const = 0;
  /// What copies: `gpu0 NVIDIA H100 80GB HBM3`.
  [[nodiscard]] virtual std::string device() const = 0;
  /// What makes the times doubtful: `gpu0 cannot reach gpu1 directly`.
  [[nodiscard]] virtual std::vector<std::string> warnings() const = 0;
  /// Copies `times` times back to back on one stream; returns when the last byte has arrived.
  virtual void copy(const std::string& kind, std::size_t bytes, int times) = 0;
  /// Copies known data once. \returns the number of bytes that arrived wrong
  virtual long long check(const std::string& kind, std::size_t bytes) = 0;
};

/// Copies of one GPU, and to the next one where there are several. \param copies outlive it \param largest bytes that will
/// be copied \throws UsageError for a device that is not there
std::unique_ptr<CopyEngine> make_copy_engine(DeviceCopies& copies, int device, std::size_t largest);

/// The rows of a bench: each kind at each size, checked once, then `rounds` samples interleaved over all of
/// them. A sample is the time per copy of `iterations` back to back (0: 3 to 100, about 2 GiB); what a single
/// small one takes beside its bytes is mostly the host's time to issue it. `collectives` are the kinds,
/// empty: all that the engine has. \throws UsageError for a kind that it has not
std::vector<BenchRow> bench_copies(CopyEngine& engine, const BenchSettings& settings,
                                   const std::function<void(const std::string& now)>& on_sample);

}  // namespace stepcast

#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "runner/execute/device_copies.hpp"
#include "runner/measure/bench_collectives.hpp"
#include "runner/measure/sampler.hpp"

/// Times of copies between the memories of this host and of its devices.
namespace stepcast {

/// Copies of one device, from and to this host and to the next device, with arrays of its own.
class CopyBench {
 public:
  /// \param copies outlive this \param largest bytes of a copy \throws UsageError if there is no such device
  CopyBench(DeviceCopies& copies, int device, std::size_t largest) : copies_(copies), device_(device) {
    const int count = copies.devices();
    if (device < 0 || device >= count)
      throw UsageError("--gpu {}: this host has {}, numbered from 0", device, counted(count, "GPU"));
    const auto own = copies.device_memory(device, largest);
    for (const bool pinned : {true, false}) {
      const auto host = copies.host_memory(largest, pinned);
      const std::string suffix = pinned ? "_pinned" : "_pageable";
      ends_["copy_h2d" + suffix] = {host, own};
      ends_["copy_d2h" + suffix] = {own, host};
    }
    const int peer = (device + 1) % count;
    if (count > 1) ends_["copy_p2p"] = {own, copies.device_memory(peer, largest)};
    if (count > 1 && !copies.reaches(device, peer))
      warnings_.push_back(
          fmt::format("gpu{} cannot reach gpu{} directly: copy_p2p goes through host memory", device, peer));
    stream_ = copies.make_stream(device);
  }

  /// Names of the copies, as in BenchRow: `copy_h2d_pinned`, ...; `copy_p2p` only if there are several
  /// devices.
  [[nodiscard]] std::vector<std::string> kinds() const {
    std::vector<std::string> result;
    for (const char* kind :
         {"copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable", "copy_p2p"})
      if (ends_.contains(kind)) result.emplace_back(kind);
    return result;
  }

  /// `gpu0 NVIDIA H100 80GB HBM3`
  [[nodiscard]] std::string device() const { return fmt::format("gpu{} {}", device_, copies_.name(device_)); }
  /// Reasons to doubt the times: `gpu0 cannot reach gpu1 directly`.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  /// Copies `times` times back to back on one stream; returns when the last byte has arrived.
  void copy(const std::string& kind, std::size_t bytes, int times) {
    const Ends& ends = ends_.at(kind);
    for (int i = 0; i < times; ++i) copies_.enqueue(stream_, ends.to.get(), ends.from.get(), bytes);
    copies_.drain(stream_);
  }

  /// Copies known data once. \returns number of wrong bytes
  double check(const std::string& kind, std::size_t bytes) {
    const Ends& ends = ends_.at(kind);
    const std::vector<unsigned char> sent = copied_pattern(bytes);
    std::vector<unsigned char> arrived(bytes);
    copies_.copy_now(ends.from.get(), sent.data(), bytes);
    copies_.copy_now(ends.to.get(), arrived.data(), bytes);
    copy(kind, bytes, 1);
    copies_.copy_now(arrived.data(), ends.to.get(), bytes);
    double wrong = 0.0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += arrived[i] == sent[i] ? 0.0 : 1.0;
    return wrong;
  }

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
inline std::vector<BenchRow> bench_copies(RankSession& session, CopyBench& bench,
                                          const BenchSettings& settings, const OnSample& on_sample) {
  constexpr double kFew = 3.0, kMany = 100.0;
  check_names("copy", settings.collectives, bench.kinds());
  std::vector<SampledCase> cases;
  std::vector<BenchRow> rows;
  for (const std::string& kind : settings.collectives)
    for (const std::size_t size : settings.sizes) {
      const auto bytes = static_cast<double>(size);
      const int times = settings.iterations > 0
                            ? settings.iterations
                            : static_cast<int>(std::clamp(2.0 * kGibi / bytes, kFew, kMany));
      rows.push_back({.collective = kind, .message_bytes = bytes});
      rows.back().wrong = static_cast<long long>(bench.check(kind, size));
      const auto copy = [&bench, kind, size](int count) { bench.copy(kind, size, count); };
      cases.push_back({.name = kind + " " + to_text(Bytes(bytes)),
                       .work = [copy, times] { return cost_of(times, process_cpu_s, [&] { copy(times); }); },
                       .prepare = [copy] { copy(1); }});
    }
  sample_rows(session, std::move(cases), settings.rounds, on_sample, rows);
  return rows;
}

}  // namespace stepcast

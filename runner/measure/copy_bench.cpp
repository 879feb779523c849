#include "runner/measure/copy_bench.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "runner/measure/sampler.hpp"

namespace stepcast {

CopyBench::CopyBench(DeviceCopies& copies, int device, std::size_t largest)
    : copies_(copies), device_(device) {
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

std::vector<std::string> CopyBench::kinds() const {
  std::vector<std::string> result;
  for (const char* kind :
       {"copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable", "copy_p2p"})
    if (ends_.contains(kind)) result.emplace_back(kind);
  return result;
}

std::string CopyBench::device() const { return fmt::format("gpu{} {}", device_, copies_.name(device_)); }

void CopyBench::copy(const std::string& kind, std::size_t bytes, int times) {
  const Ends& ends = ends_.at(kind);
  for (int i = 0; i < times; ++i) copies_.enqueue(stream_, ends.to.get(), ends.from.get(), bytes);
  copies_.drain(stream_);
}

double CopyBench::check(const std::string& kind, std::size_t bytes) {
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

std::vector<BenchRow> bench_copies(RankSession& session, CopyBench& bench, const BenchSettings& settings,
                                   const OnSample& on_sample) {
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

#include "runner/measure/copy_bench.hpp"

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/units.hpp"
#include "runner/measure/cost.hpp"

namespace stepcast {
namespace {

int iterations_for(double bytes) { return static_cast<int>(std::clamp(2.0 * kGibi / bytes, 3.0, 100.0)); }

class GpuCopies final : public CopyEngine {
 public:
  GpuCopies(DeviceCopies& copies, int device, std::size_t largest) : copies_(copies), device_(device) {
    const int count = copies.devices();
    if (device < 0 || device >= count)
      throw UsageError("--gpu " + std::to_string(device) + ": there are " + std::to_string(count) +
                       ", numbered from 0");
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
      warnings_.push_back("gpu" + std::to_string(device) + " cannot reach gpu" + std::to_string(peer) +
                          " directly: copy_p2p goes through host memory");
    queue_ = copies.make_queue(device);
  }

  [[nodiscard]] std::vector<std::string> kinds() const override {
    std::vector<std::string> result;
    for (const char* kind :
         {"copy_h2d_pinned", "copy_h2d_pageable", "copy_d2h_pinned", "copy_d2h_pageable", "copy_p2p"})
      if (ends_.contains(kind)) result.emplace_back(kind);
    return result;
  }
  [[nodiscard]] std::string device() const override {
    return "gpu" + std::to_string(device_) + " " + copies_.name(device_);
  }
  [[nodiscard]] std::vector<std::string> warnings() const override { return warnings_; }

  void copy(const std::string& kind, std::size_t bytes, int times) override {
    const Ends& ends = ends_.at(kind);
    for (int i = 0; i < times; ++i) copies_.copy(queue_, ends.to.get(), ends.from.get(), bytes);
    copies_.drain(queue_);
  }

  long long check(const std::string& kind, std::size_t bytes) override {
    const Ends& ends = ends_.at(kind);
    const std::vector<unsigned char> sent = copied_pattern(bytes);
    std::vector<unsigned char> arrived(bytes);
    copies_.copy_now(ends.from.get(), sent.data(), bytes);
    copies_.copy_now(ends.to.get(), arrived.data(), bytes);
    copy(kind, bytes, 1);
    copies_.copy_now(arrived.data(), ends.to.get(), bytes);
    long long wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += arrived[i] == sent[i] ? 0 : 1;
    return wrong;
  }

 private:
  struct Ends {
    std::shared_ptr<void> from, to;
  };

  DeviceCopies& copies_;
  const int device_;
  std::map<std::string, Ends> ends_;  ///< by kind
  std::size_t queue_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace

std::unique_ptr<CopyEngine> make_copy_engine(DeviceCopies& copies, int device, std::size_t largest) {
  return std::make_unique<GpuCopies>(copies, device, largest);
}

std::vector<BenchRow> bench_copies(CopyEngine& engine, const BenchSettings& settings,
                                   const std::function<void(const std::string& now)>& on_sample) {
  const std::vector<std::string> known = engine.kinds();
  std::vector<BenchRow> rows;
  for (const std::string& kind : settings.collectives.empty() ? known : settings.collectives) {
    if (std::find(known.begin(), known.end(), kind) == known.end())
      throw UsageError(unknown_name("copy", kind, known));
    for (const std::size_t size : settings.sizes) {
      rows.push_back({.collective = kind, .message_bytes = static_cast<double>(size)});
      rows.back().wrong = engine.check(kind, size);
    }
  }
  for (int round = 0; round < settings.rounds; ++round) {
    for (BenchRow& row : rows) {
      const auto bytes = static_cast<std::size_t>(row.message_bytes);
      const int times = settings.iterations > 0 ? settings.iterations : iterations_for(row.message_bytes);
      engine.copy(row.collective, bytes, 1);  // wakes link and clocks
      const Cost cost = cost_of(times, process_cpu_s, [&] { engine.copy(row.collective, bytes, times); });
      row.time_s.push_back(cost.time_s);
      row.cpu_s.push_back(cost.cpu_s);
      on_sample(row.collective + " " + to_text(Bytes(row.message_bytes)));
    }
  }
  return rows;
}

}  // namespace stepcast

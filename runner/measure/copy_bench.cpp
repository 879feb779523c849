#include "runner/measure/copy_bench.hpp"

#include <algorithm>

#include "core/units.hpp"
#include "runner/measure/cost.hpp"

namespace stepcast {
namespace {

int iterations_for(double bytes) { return static_cast<int>(std::clamp(2.0 * kGibi / bytes, 3.0, 100.0)); }

}  // namespace

Registry<CopyEngineFactory>& copy_engines() {
  static Registry<CopyEngineFactory> registry("copy engine");
  return registry;
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

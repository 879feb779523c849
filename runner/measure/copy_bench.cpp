#include "runner/measure/copy_bench.hpp"

#include <algorithm>

#include "core/units.hpp"
#include "runner/measure/sampler.hpp"

namespace stepcast {

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

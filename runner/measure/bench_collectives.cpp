#include "runner/measure/bench_collectives.hpp"

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "runner/measure/bench_case.hpp"

namespace stepcast {
namespace {

Cost time_calls(Backend& backend, BenchCase& one, int iterations, DeviceStream* device) {
  if (device != nullptr) backend.restart_clock();
  backend.barrier();
  if (device != nullptr && !one.is_ping_pong()) return one.queued_calls(iterations, *device);
  const double calls = iterations * (one.is_ping_pong() ? 2.0 : 1.0);  // a ping-pong is two messages
  return cost_of(calls, process_cpu_s, [&] { one.call(iterations); });
}

}  // namespace

void check_names(const std::string& kind, const std::vector<std::string>& names,
                 const std::vector<std::string>& known) {
  for (const std::string& name : names)
    if (std::ranges::find(known, name) == known.end()) throw UsageError(unknown_name(kind, name, known));
}

int bench_samples(const BenchSettings& settings, int ranks) {
  std::size_t cases = 0;
  for (const std::string& name : settings.collectives)
    cases += message_sizes(name, settings.sizes, ranks).size();
  return static_cast<int>(cases) * settings.rounds;
}

void sample_rows(RankSession& session, std::vector<SampledCase> cases, int rounds, const OnSample& on_sample,
                 std::vector<BenchRow>& rows) {
  Sampler sampler(session, std::move(cases), {.rounds = rounds});
  sampler.run_rounds(on_sample);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].time_s = sampler.set(i).time_s;
    rows[i].cpu_s = sampler.set(i).cpu_s;
    rows[i].machine = sampler.set(i).machine;
    for (const auto& sample : sampler.values(i))
      for (const std::vector<double>& rank : sample)
        for (const double wrong : rank) rows[i].wrong += static_cast<long long>(wrong);
  }
}

std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const OnSample& on_sample) {
  Backend& backend = *session.backend;
  const BenchArrays arrays = bench_arrays(backend, *std::ranges::max_element(settings.sizes));
  std::deque<BenchCase> benches;
  std::vector<SampledCase> cases;
  std::vector<BenchRow> rows;
  double wrong = 0.0;  // in the latest check
  for (const std::string& name : settings.collectives)
    for (const std::size_t size : message_sizes(name, settings.sizes, backend.world_size())) {
      BenchCase& one = benches.emplace_back(backend, arrays, name, size);
      rows.push_back({.collective = name, .message_bytes = static_cast<double>(size)});
      const auto prepare = [&] {
        wrong = one.check();
        one.clear();
        one.call(1);
      };
      const auto work = [&, iterations = one.iterations(settings.iterations)] {
        Cost cost = time_calls(backend, one, iterations, settings.device);
        cost.values = {wrong};
        return cost;
      };
      cases.push_back({.name = one.name(), .work = work, .prepare = prepare, .ranks = one.ranks()});
    }
  sample_rows(session, std::move(cases), settings.rounds, on_sample, rows);
  return rows;
}

void require_right(const std::vector<BenchRow>& rows) {
  for (const BenchRow& row : rows)
    if (row.wrong != 0)
      throw RunError(row.collective + " of " + to_text(Bytes(row.message_bytes)) + " gave " +
                     std::to_string(row.wrong) + " wrong elements");
}

}  // namespace stepcast

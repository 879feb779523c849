#include "records/bench.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "schedule/kinds.hpp"

namespace stepcast {

STEPCAST_JSON_REQUIRED(BenchRow, collective, message_bytes, time_s, cpu_s, wrong, algorithm, machine)
STEPCAST_JSON_REQUIRED(BesideRow, collective, message_bytes, compute, compute_alone_s, collective_alone_s,
                       compute_slowdown, collective_slowdown)
STEPCAST_JSON_REQUIRED(Bench, context, origin, lineage, backend, world_size, rows, beside)

const std::vector<std::string>& bench_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names{"send_recv"};
    for (const CollectiveTraits& each : kCollectiveKinds)
      if (each.value != CollectiveKind::kShift) names.emplace_back(each.name);  // send_recv measures it
    return names;
  }();
  return kNames;
}

std::string Bench::problem() const {
  if (world_size < 1) return "key 'world_size': expected at least 1";
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].time_s.empty() || !none_negative(rows[i].time_s) || !(rows[i].message_bytes >= 0.0))
      return "key 'rows[" + std::to_string(i) + "]': expected time_s and message_bytes of at least 0";
  for (std::size_t i = 0; i < beside.size(); ++i)
    for (const std::vector<double>* samples : {&beside[i].compute_slowdown, &beside[i].collective_slowdown,
                                               &beside[i].compute_alone_s, &beside[i].collective_alone_s})
      if (samples->empty() || std::ranges::any_of(*samples, [](double s) { return !(s > 0.0); }))
        return "key 'beside[" + std::to_string(i) + "]': expected samples above 0";
  return "";
}

std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor, Bytes most) {
  if (smallest < 1.0 || largest < smallest || !(factor >= 1.01))
    throw UsageError("--min must be from 1 B to --max, --factor at least 1.01");
  if (largest > most.count()) throw UsageError("--max must be at most {}", to_text(most));
  std::vector<std::size_t> sizes;
  constexpr double kRounding = 1e-9;
  const auto steps = static_cast<int>(std::log(largest / smallest) / std::log(factor) + kRounding);
  for (int step = 0; step <= steps; ++step)
    sizes.push_back(static_cast<std::size_t>(std::llround(smallest * std::pow(factor, step))));
  return sizes;
}

std::size_t message_bytes(const std::string& collective, std::size_t bytes, int ranks) {
  const auto kind = find_value(kCollectiveKinds, collective);  // none: send_recv
  const std::size_t parts = !kind || traits(*kind).whole_array ? 1 : static_cast<std::size_t>(ranks);
  const std::size_t unit = sizeof(float) * parts, rounded = 16 * parts;
  return parts > 1 && bytes >= rounded ? bytes / rounded * rounded
                                       : std::max<std::size_t>(1, (bytes + unit - 1) / unit) * unit;
}

std::vector<std::size_t> message_sizes(const std::string& collective, const std::vector<std::size_t>& sizes,
                                       int ranks) {
  std::vector<std::size_t> messages =
      transformed(sizes, [&](std::size_t size) { return message_bytes(collective, size, ranks); });
  messages.erase(std::unique(messages.begin(), messages.end()), messages.end());
  return messages;
}

double algbw_bytes_per_s(const BenchRow& row) {
  const double time = row.median_time_s();
  return time > 0.0 ? row.message_bytes / time : 0.0;
}

double bus_factor(const std::string& collective, int world_size) {
  const auto kind = find_value(kCollectiveKinds, collective);
  return kind ? bus_factor(*kind, world_size) : 1.0;
}

std::string bench_table(const Bench& bench) {
  Table table({"collective", "size (B)", "count", "type", "time (us)", "p10..p90 (us)", "cpu (us)",
               "algbw (GB/s)", "busbw (GB/s)", "#wrong", "algorithm"});
  const bool measured = bench.origin == Origin::kMeasured;
  for (const BenchRow& row : bench.rows) {
    const double algbw = algbw_bytes_per_s(row) / kGiga;
    const auto time_us = transformed(row.time_s, [](double time_s) { return 1e6 * time_s; });
    table.add({row.collective, fmt::format("{:.0f}", row.message_bytes),
               fmt::format("{:.0f}", row.message_bytes / sizeof(float)), "float",
               fmt::format("{:.2f}", median(time_us)),
               measured ? fmt::format("{:.1f}..{:.1f}", quantile(time_us, 0.1), quantile(time_us, 0.9)) : "",
               row.cpu_s.empty() ? "" : fmt::format("{:.1f}", 1e6 * median(row.cpu_s)),
               fmt::format("{:.3f}", algbw),
               fmt::format("{:.3f}", algbw * bus_factor(row.collective, bench.world_size)),
               measured ? std::to_string(row.wrong) : "", row.algorithm});
  }
  table.drop_empty_columns();
  return table.text();
}

Bench load_bench(const std::string& path) { return load_as<Bench>(path, kBenchSchema); }

}  // namespace stepcast

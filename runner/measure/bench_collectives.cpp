#include "runner/measure/bench_collectives.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runner/execute/core_sharing.hpp"
#include "runner/measure/bench_case.hpp"
#include "runner/measure/cost.hpp"

namespace stepcast {
namespace {

Cost time_calls(Backend& backend, BenchCase& bench_case, int iterations, DeviceQueue* device) {
  bench_case.clear();
  bench_case.call(1);
  if (device != nullptr) backend.restart_clock();
  backend.barrier();
  if (device != nullptr && !bench_case.is_ping_pong())
    return time_queued_calls(bench_case, iterations, *device);
  // A ping-pong is two messages, one after the other.
  const double calls = iterations * (bench_case.is_ping_pong() ? 2.0 : 1.0);
  return cost_of(calls, process_cpu_s, [&] { bench_case.call(iterations); });
}

/// Over the ranks: the slowest time, the mean processor time, all wrong elements.
void combine(ControlPlane& control, std::vector<BenchRow>& rows) {
  std::vector<double> own;
  for (const BenchRow& row : rows) {
    own.insert(own.end(), row.time_s.begin(), row.time_s.end());
    own.insert(own.end(), row.cpu_s.begin(), row.cpu_s.end());
    own.insert(own.end(), row.machine.probe_per_s.begin(), row.machine.probe_per_s.end());
    own.insert(own.end(), row.machine.taken.begin(), row.machine.taken.end());
    own.push_back(static_cast<double>(row.wrong));
  }
  const auto all = control.all_gather_numbers("samples", own);
  std::size_t next = 0;
  const auto over_ranks = [&] {
    std::vector<double> values;
    for (const std::vector<double>& theirs : all) values.push_back(theirs[next]);
    ++next;
    return values;
  };
  const auto sum = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  for (BenchRow& row : rows) {
    // Only two ranks take part in a ping-pong; the others pass by in no time.
    const double taking_part =
        row.collective == "send_recv" ? 2.0 : static_cast<double>(control.world_size());
    for (double& time : row.time_s) {
      const std::vector<double> times = over_ranks();
      time = *std::max_element(times.begin(), times.end());
    }
    for (double& cpu : row.cpu_s) cpu = sum(over_ranks()) / taking_part;
    for (double& probe : row.machine.probe_per_s) probe = slowest_probe(over_ranks());
    for (double& taken : row.machine.taken) {
      const std::vector<double> parts = over_ranks();
      taken = *std::max_element(parts.begin(), parts.end());
    }
    row.wrong = static_cast<long long>(sum(over_ranks()));
  }
}

}  // namespace

Cost time_queued_calls(BenchCase& bench_case, int iterations, DeviceQueue& device) {
  constexpr std::chrono::milliseconds kLongest{500};  // to issue a hundred calls takes some milliseconds
  std::vector<WorkPtr> works;
  Cost cost = cost_of(iterations, process_cpu_s, [&] {
    device.hold(kLongest);
    try {
      works = bench_case.issue(iterations + 1);
    } catch (...) {
      device.release();
      throw;
    }
    device.release();
    for (const WorkPtr& work : works) work->wait();
  });
  const std::chrono::duration<double> took = works.back()->ended() - works.front()->ended();
  cost.time_s = took.count() / iterations;
  return cost;
}

void check_collectives(const std::vector<std::string>& names) {
  const std::vector<std::string>& known = bench_names();
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(unknown_name("collective", name, known));
}

std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor) {
  if (smallest < 1.0) throw UsageError("the smallest message must have at least 1 byte");
  if (largest < smallest) throw UsageError("the largest message is smaller than the smallest");
  if (largest > 64.0 * kGibi) throw UsageError("the largest message must have at most 64 GiB");
  if (!(factor >= 1.01)) throw UsageError("the factor between sizes must be at least 1.01");
  std::vector<std::size_t> sizes;
  constexpr double kRounding = 1e-9;
  const auto steps = static_cast<int>(std::log(largest / smallest) / std::log(factor) + kRounding);
  for (int step = 0; step <= steps; ++step)
    sizes.push_back(static_cast<std::size_t>(std::llround(smallest * std::pow(factor, step))));
  return sizes;
}

std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const std::function<void(const std::string& now)>& on_sample) {
  Backend& backend = *session.backend;
  if (backend.world_size() < 2) throw UsageError("a bench of collectives needs at least 2 ranks");
  const std::vector<std::string>& names = settings.collectives.empty() ? bench_names() : settings.collectives;
  const std::size_t rounding = sizeof(float) * static_cast<std::size_t>(backend.world_size());
  const std::size_t largest = *std::max_element(settings.sizes.begin(), settings.sizes.end()) + rounding;
  const std::size_t region = MessageWalk::region_bytes(largest);
  const BenchArrays arrays{backend.memory(region), backend.memory(region)};
  std::vector<BenchCase> bouts;
  std::vector<BenchRow> rows;
  check_collectives(names);
  for (const std::string& name : names)
    for (const std::size_t size : settings.sizes) {
      const BenchCase bench_case(backend, arrays, name, size);
      const auto bytes = static_cast<double>(bench_case.bytes());
      if (!rows.empty() && rows.back().collective == name && rows.back().message_bytes == bytes)
        continue;  // two sizes that round up to the same
      bouts.push_back(bench_case);
      rows.push_back({.collective = name, .message_bytes = bytes});
    }
  const CoreSharing sharing = find_core_sharing(session);
  MachineWatch watch = sharing.watch(1);
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < bouts.size(); ++i) {
      bouts[i].clear();
      rows[i].wrong += bouts[i].check();
      watch.restart();
      const Cost sample =
          time_calls(backend, bouts[i], bouts[i].iterations(settings.iterations), settings.device);
      rows[i].time_s.push_back(sample.time_s);
      rows[i].cpu_s.push_back(sample.cpu_s);
      const MachineState machine = look(session, sharing, watch, all_ranks(session), round);
      rows[i].machine.add(machine.probe_per_s, machine.taken);
      on_sample(bouts[i].collective() + " " + to_text(Bytes(rows[i].message_bytes)));
    }
  }
  combine(*session.control, rows);
  return rows;
}

void require_right(const std::vector<BenchRow>& rows) {
  for (const BenchRow& row : rows)
    if (row.wrong != 0)
      throw RunError(row.collective + " of " + to_text(Bytes(row.message_bytes)) + " gave " +
                     std::to_string(row.wrong) + " wrong elements");
}

}  // namespace stepcast

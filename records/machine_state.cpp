#include "records/machine_state.hpp"

#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"

namespace stepcast {

STEPCAST_JSON_REQUIRED(MachineLog, probe_per_s, lost_fraction, excluded_fraction)
STEPCAST_JSON_REQUIRED(MachineSpeed, cpu, probe_per_s, lost_fraction, excluded_fraction)

void MachineLog::add(double probe, double lost, double excluded) {
  probe_per_s.push_back(probe);
  lost_fraction.push_back(lost);
  excluded_fraction.push_back(std::min(excluded, lost));
}

void MachineLog::append(const MachineLog& more) {
  for (const auto column : kColumns)
    (this->*column).insert((this->*column).end(), (more.*column).begin(), (more.*column).end());
}

bool MachineLog::valid() const {
  if (lost_fraction.size() != size() || excluded_fraction.size() != size()) return false;
  for (std::size_t i = 0; i < size(); ++i)
    if (!(probe_per_s[i] > 0.0 && excluded_fraction[i] >= 0.0 && excluded_fraction[i] <= lost_fraction[i] &&
          lost_fraction[i] <= 1.0))
      return false;
  return true;
}

std::string describe(const MachineSpeed& speed) {
  return fmt::format("speed probe {:.0f} per second, {} of the CPU time lost to other processes",
                     speed.probe_per_s, percent_text(speed.lost_fraction, 0));
}

MachineSpeed speed_of(const std::vector<const MachineLog*>& logs, const std::string& cpu) {
  MachineLog all;
  for (const MachineLog* log : logs) all.append(*log);
  if (all.empty()) return {};
  return {cpu, median(all.probe_per_s), mean(all.lost_fraction), mean(all.excluded_fraction)};
}

double slowest_probe(const std::vector<double>& probe_per_s) {
  double slowest = 0.0;
  for (const double probe : probe_per_s)
    if (probe > 0.0 && (slowest == 0.0 || probe < slowest)) slowest = probe;
  return slowest;
}

double best_probe(std::vector<double> probe_per_s) {
  constexpr double kBest = 0.9;
  return probe_per_s.empty() ? 0.0 : quantile(std::move(probe_per_s), kBest);
}

std::vector<char> without_interference(const MachineLog& log, double best_probe_per_s) {
  return transformed(whole_numbers(0, log.size()),
                     [&](int i) -> char { return log.speed(i) >= kCleanSpeed * best_probe_per_s ? 1 : 0; });
}

std::vector<char> least_interference(const MachineLog& log, double best_probe_per_s, std::size_t least) {
  std::vector<char> marks = without_interference(log, best_probe_per_s);
  if (static_cast<std::size_t>(std::ranges::count(marks, 1)) >= least) return marks;
  std::vector<std::size_t> order(log.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return log.speed(a) > log.speed(b); });
  order.resize(std::min(order.size(), least));
  marks.assign(log.size(), 0);
  for (const std::size_t i : order) marks[i] = 1;
  return marks;
}

MachineLog marked(const MachineLog& log, const std::vector<char>& marks, bool wanted) {
  MachineLog result;
  for (const auto column : MachineLog::kColumns) result.*column = marked(log.*column, marks, wanted);
  return result;
}

}  // namespace stepcast

#include <algorithm>
#include <functional>
#include <ranges>

#include "calibration/fit.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

bool slow(const HostCost& host) { return host.slow_network || host.slow_compute; }

std::size_t hosts_not_slow(const std::vector<HostCost>& hosts) {
  return static_cast<std::size_t>(std::ranges::count(hosts, false, slow));
}

/// True if slow hosts were left out of measurements between hosts: runner/measure/host_survey.hpp.
bool without_slow(const std::vector<HostCost>& hosts) { return hosts_not_slow(hosts) >= 2; }

std::string two_digits(double value) {
  std::string text = std::to_string(value);
  return text.substr(0, text.find('.') + 3);
}

/// Median over the hosts that are not slow; 0 if there is none.
double median_of_others(const std::vector<HostCost>& hosts, double HostCost::*part) {
  const auto values = transformed(hosts | std::views::filter(std::not_fn(slow)), part);
  return values.empty() ? 0.0 : median(values);
}

std::string slowness(const HostCost& host, const std::vector<HostCost>& hosts) {
  std::string text = "host " + host.name + " is slow:";
  if (host.slow_network)
    text += " messages to and from it reach " + to_text(BytesPerSecond(host.pair_bandwidth_bytes_per_s)) +
            ", those of other hosts " +
            to_text(BytesPerSecond(median_of_others(hosts, &HostCost::pair_bandwidth_bytes_per_s)));
  const double others = median_of_others(hosts, &HostCost::compute_speed);
  if (host.slow_compute)
    text += std::string(host.slow_network ? ", and" : "") + " it computes at " +
            two_digits(others > 0.0 ? host.compute_speed / others : host.compute_speed) +
            (others > 0.0 ? " of the others' speed" : " of the median speed");
  return text + (without_slow(hosts) ? "; the costs between hosts are of others"
                                     : "; slow hosts were measured, too, for want of two others");
}

}  // namespace

std::optional<AllAtOnce> all_at_once(const Calibration& calibration) {
  double together_s = 0.0, pair_s = 0.0, bytes = 0.0;
  for (const SampleSet& set : calibration.samples) {
    if (set.time_s.empty()) continue;
    if (set.probe == "ring_pair") pair_s = std::max(pair_s, median(set.time_s));
    if (set.probe != "ring_all") continue;
    together_s = median(set.time_s);
    bytes = set.bytes;
  }
  if (together_s <= 0.0 || pair_s <= 0.0) return std::nullopt;
  const bool without = without_slow(calibration.job.hosts);
  const auto hosts =
      static_cast<int>(without ? hosts_not_slow(calibration.job.hosts) : calibration.job.hosts.size());
  return AllAtOnce{hosts, BytesPerSecond(hosts * bytes / together_s), BytesPerSecond(hosts * bytes / pair_s)};
}

void report_slow_hosts(const Calibration& calibration, std::vector<std::string>& warnings) {
  constexpr double kFull = 0.8;
  const std::vector<HostCost>& hosts = calibration.job.hosts;
  for (const HostCost& host : hosts)
    if (slow(host)) warnings.push_back(slowness(host, hosts));
  if (!hosts.empty() && slow(hosts.front()))
    warnings.push_back("rank 0 ran on " + hosts.front().name +
                       ": reductions, copies and sharing are that slow host's; start with another host");
  const bool between = std::ranges::any_of(calibration.paths,
                                           [](const PathCost& path) { return path.path_class != kSameHost; });
  if (hosts.size() > 1 && !between) warnings.emplace_back("messages between hosts were not measured");
  const std::optional<AllAtOnce> all = all_at_once(calibration);
  if (!all || all->together >= kFull * all->promised) return;
  const bool one_machine =
      static_cast<std::size_t>(calibration.job.ranks_on_machine) > calibration.job.hosts.front().ranks.size();
  warnings.push_back(
      fmt::format("the network is oversubscribed{}: {} hosts at once send {} in all, single pairs promise {}",
                  one_machine ? ", or the one machine that plays all hosts is" : "", all->hosts,
                  to_text(all->together), to_text(all->promised)));
}

}  // namespace stepcast

#include "runner/control/host_identity.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/environment.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

std::string host_name() {
  if (const auto name = process_environment(kHostNameVariable)) return *name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// `net:[4026531840]`; "" if the kernel has no such namespaces
std::string name_space(const std::string& kind) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/ns/" + kind, ignored).string();
}

}  // namespace

HostIdentity this_host() {
  HostIdentity host;
  host.name = host_name();
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), host.machine);
  host.network = name_space("net");
  host.clock = name_space("time");
  return host;
}

/// One line per part goes through the control plane.
std::vector<HostIdentity> hosts_of_ranks(ControlPlane& control) {
  const HostIdentity own = this_host();
  std::vector<HostIdentity> hosts;
  for (const std::string& text :
       control.all_gather("hosts", own.name + "\n" + own.machine + "\n" + own.network + "\n" + own.clock)) {
    std::istringstream lines(text);
    HostIdentity& host = hosts.emplace_back();
    for (std::string* part : {&host.name, &host.machine, &host.network, &host.clock})
      std::getline(lines, *part);
  }
  return hosts;
}

std::vector<JobHost> group_by_host(const std::vector<HostIdentity>& host_of_rank) {
  const auto rank_of = [&](const HostIdentity* one) { return static_cast<int>(one - host_of_rank.data()); };
  return transformed(grouped(host_of_rank, &HostIdentity::host), [&](const auto& group) {
    return JobHost{group.second.front()->name, transformed(group.second, rank_of)};
  });
}

std::string ranks_in_words(const std::vector<int>& ranks, const std::vector<HostIdentity>& host_of_rank) {
  const auto listed = [](const std::vector<int>& numbers) {
    return (numbers.size() == 1 ? "rank " : "ranks ") + joined(numbers);
  };
  const std::vector<JobHost> hosts = group_by_host(host_of_rank);
  if (hosts.size() < 2) return listed(ranks);
  std::string text;
  for (const JobHost& host : hosts) {
    const auto here = filtered(ranks, [&](int rank) { return std::ranges::binary_search(host.ranks, rank); });
    if (!here.empty()) text += (text.empty() ? "" : " and ") + listed(here) + " on host " + host.name;
  }
  return text;
}

}  // namespace stepcast

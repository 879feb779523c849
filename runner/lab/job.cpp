#include "runner/lab/job.hpp"

#include "core/environment.hpp"
#include "runner/lab/namespaces.hpp"
#include "runner/launch/binding.hpp"

namespace stepcast {

std::vector<RankStart> lab_ranks(const std::vector<LabHost>& hosts, int ranks_per_host) {
  const std::vector<int> cores = usable_cores();
  const int port = free_port();
  std::vector<RankStart> ranks;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < ranks_per_host; ++local) {
      RankContext context;
      context.rank = static_cast<int>(ranks.size());
      context.world_size = static_cast<int>(hosts.size()) * ranks_per_host;
      context.local_rank = local;
      context.local_world_size = ranks_per_host;
      context.master_addr = hosts.front().address;
      context.master_port = port;
      RankStart start{rank_variables(context), kNamespaceFolder + ("/" + hosts[host].space),
                      cores_of_rank(cores, static_cast<int>(host), static_cast<int>(hosts.size()))};
      start.variables[kHostNameVariable] = hosts[host].name;
      start.variables[kLabCoresVariable] = std::to_string(cores.size());
      start.variables[kHostSpeedVariable] = std::to_string(hosts[host].speed);
      ranks.push_back(std::move(start));
    }
  }
  return ranks;
}

}  // namespace stepcast

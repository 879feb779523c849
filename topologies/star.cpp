#include "topologies/network.hpp"

namespace stepcast {
namespace {

/// One switch without a limit of its own, one link from each host to it. A path between two hosts has two
/// links: its latency is twice the link's, its bandwidth the link's.
void generate_star(const YamlNode& node, const ClusterSettings& settings, Cluster& cluster) {
  node.allow_only({"kind", "bandwidth", "latency"});
  const BytesPerSecond bandwidth = settings.bytes_per_second(node.at("bandwidth"));
  const Seconds latency = settings.seconds(node.at("latency"));
  const auto hub = static_cast<int>(cluster.hosts.size());
  cluster.switches.emplace_back("switch");
  for (int host = 0; host < hub; ++host)
    cluster.links.push_back(
        {cluster.hosts[static_cast<std::size_t>(host)].name + "-switch", host, hub, bandwidth, latency});
}

const Registration<NetworkKind> kStar{network_kinds(),
                                      {.name = "star",
                                       .description = "every host at one switch by a link of its own",
                                       .thing = {generate_star}}};

}  // namespace
}  // namespace stepcast

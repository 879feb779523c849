#include <vector>

#include "core/error.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/devices.hpp"
#include "topologies/network.hpp"
#include "topologies/paths.hpp"

namespace stepcast {
namespace {

constexpr double kHostSpeed = 1e9;  // of a core of an unknown processor

// Numbers have 15 digits, which a double always keeps, so that rounding of 66.9 * 1e12 does not show.

std::string host_text(const Cluster& cluster, int place) {
  const Node& node = cluster.node(place);
  const Host& host = cluster.host_of(place);
  if (node.device.empty())
    return fmt::format("    <host id=\"{}\" speed=\"{:.15g}f\" core=\"{}\"/>\n", xml_escaped(node.name),
                       kHostSpeed * host.speed, host.cores);
  return fmt::format("    <host id=\"{}\" speed=\"{:.15g}f\"/>\n", xml_escaped(node.name),
                     device_model(node.device).peak.at("float32").count() * host.speed);
}

std::string link_text(const Link& link) {
  return fmt::format(
      "    <link id=\"{}\" bandwidth=\"{:.15g}Bps\" latency=\"{:.15g}s\" sharing_policy=\"SPLITDUPLEX\"/>\n",
      xml_escaped(link.name), link.bandwidth.count(), link.latency.count());
}

std::string star_routes(const Cluster& cluster) {
  std::string text;
  const auto hub = static_cast<int>(cluster.nodes.size()) - 1;
  for (const Link& link : cluster.links) {
    const bool from_host = link.b == hub;
    text += fmt::format("    <host_link id=\"{0}\" up=\"{1}_{2}\" down=\"{1}_{3}\"/>\n",
                        xml_escaped(cluster.node_name(from_host ? link.a : link.b)), xml_escaped(link.name),
                        from_host ? "UP" : "DOWN", from_host ? "DOWN" : "UP");
  }
  return text;
}

std::string all_routes(const Cluster& cluster) {
  std::string text;
  const std::vector<int> places = cluster.places();
  const Paths paths(cluster);
  for (const int from : places)
    for (const int to : places) {
      if (from == to) continue;
      text += fmt::format("    <route src=\"{}\" dst=\"{}\" symmetrical=\"NO\">",
                          xml_escaped(cluster.node_name(from)), xml_escaped(cluster.node_name(to)));
      for (const Hop& hop : paths.between(from, to))
        text += "<link_ctn id=\"" + xml_escaped(cluster.links[hop.link].name) + "\" direction=\"" +
                (hop.forward ? "UP" : "DOWN") + "\"/>";
      text += "</route>\n";
    }
  return text;
}

}  // namespace

std::string to_simgrid_xml(const Cluster& cluster) {
  const auto places = static_cast<long long>(cluster.places().size());
  const bool star = is_star(cluster);
  if (!star && places > kMostSimgridPlaces)
    throw InputError(
        "cluster '{}' has {} places and so {} routes; expected at most {} places, or a star of hosts without "
        "devices, which needs one route per host",
        cluster.specification, places, places * (places - 1), kMostSimgridPlaces);
  std::string parts;
  for (const int place : cluster.places()) parts += host_text(cluster, place);
  for (const Link& link : cluster.links) parts += link_text(link);
  return "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
         "<platform version=\"4.1\">\n  <zone id=\"" +
         xml_escaped(cluster.name) + "\" routing=\"" + (star ? "Cluster" : "Full") + "\">\n" + parts +
         (star ? star_routes(cluster) : all_routes(cluster)) + "  </zone>\n</platform>\n";
}

}  // namespace stepcast

#include "tests/topologies/max_flow.hpp"

#include <algorithm>
#include <limits>
#include <queue>

namespace stepcast {
namespace {

/// Dinic's algorithm (1970) over arcs in pairs: arc `i ^ 1` is the reverse of arc `i`.
class FlowGraph {
 public:
  explicit FlowGraph(std::size_t nodes) : arcs_of_(nodes), level_(nodes), next_(nodes) {}

  void join(int a, int b, double forward, double backward) {
    arcs_of_[index(a)].push_back(arcs_.size());
    arcs_.push_back({b, forward});
    arcs_of_[index(b)].push_back(arcs_.size());
    arcs_.push_back({a, backward});
  }

  double flow(int source, int sink) {
    double sum = 0.0;
    while (find_levels(source, sink)) {
      std::fill(next_.begin(), next_.end(), 0);
      double more = push(source, sink, kUnlimited);
      while (more > 0.0) {
        sum += more;
        more = push(source, sink, kUnlimited);
      }
    }
    return sum;
  }

  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

 private:
  struct Arc {
    int to = 0;
    double free = 0.0;
  };
  static constexpr double kLeast = 1.0;  ///< B/s; what is less is rounding

  static std::size_t index(int node) { return static_cast<std::size_t>(node); }

  /// Distance from the source along free arcs. \returns whether the sink can be reached
  bool find_levels(int source, int sink) {
    std::fill(level_.begin(), level_.end(), -1);
    level_[index(source)] = 0;
    std::queue<int> open({source});
    for (; !open.empty(); open.pop())
      for (const std::size_t arc : arcs_of_[index(open.front())]) {
        int& level = level_[index(arcs_[arc].to)];
        if (level >= 0 || arcs_[arc].free < kLeast) continue;
        level = level_[index(open.front())] + 1;
        open.push(arcs_[arc].to);
      }
    return level_[index(sink)] >= 0;
  }

  /// Sends up to `most` along one path of rising levels; arcs that lead nowhere are not tried again.
  double push(int node, int sink, double most) {
    if (node == sink) return most;
    for (std::size_t& i = next_[index(node)]; i < arcs_of_[index(node)].size(); ++i) {
      const std::size_t number = arcs_of_[index(node)][i];
      Arc& arc = arcs_[number];
      if (arc.free < kLeast || level_[index(arc.to)] != level_[index(node)] + 1) continue;
      const double sent = push(arc.to, sink, std::min(most, arc.free));
      if (sent <= 0.0) continue;
      arc.free -= sent;
      arcs_[number ^ 1].free += sent;
      return sent;
    }
    return 0.0;
  }

  std::vector<Arc> arcs_;
  std::vector<std::vector<std::size_t>> arcs_of_;  ///< by node
  std::vector<int> level_;                         ///< by node; -1: not reached
  std::vector<std::size_t> next_;                  ///< by node: the first arc that may still lead on
};

}  // namespace

BytesPerSecond max_flow(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to) {
  if (from.empty() || to.empty()) return BytesPerSecond(0.0);
  const auto source = static_cast<int>(cluster.nodes.size());
  const int sink = source + 1;
  FlowGraph graph(cluster.nodes.size() + 2);
  for (const Link& link : cluster.links)
    graph.join(link.a, link.b, link.bandwidth.count(), link.bandwidth.count());
  for (const int node : from) graph.join(source, node, FlowGraph::kUnlimited, 0.0);
  for (const int node : to) graph.join(node, sink, FlowGraph::kUnlimited, 0.0);
  return BytesPerSecond(graph.flow(source, sink));
}

BytesPerSecond bisection_bandwidth(const Cluster& cluster) {
  const std::vector<int> places = cluster.places();
  const auto middle = places.begin() + static_cast<std::ptrdiff_t>(places.size() / 2);
  return max_flow(cluster, {places.begin(), middle}, {middle, places.end()});
}

}  // namespace stepcast

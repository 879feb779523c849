#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "sim/replay/load_network.hpp"

namespace stepcast {
namespace {

class FluidNetwork : public LoadNetwork {
 public:
  FluidNetwork(Clock& clock, Symmetry& symmetry)
      : LoadNetwork(clock, symmetry), links_(symmetry.links().size()) {}

  void move(const Load& load, double bytes, Callback arrived) override {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(flows_.size()));
      flows_.emplace_back();
    }
    const int index = free_.back();
    free_.pop_back();
    Flow& flow = flows_[index];
    flow.load = &load;
    flow.bytes = bytes;
    flow.rate = 0.0;
    flow.arrived = std::move(arrived);
    clock_.at(clock_.now() + load.latency_s, [this, index] { enter(index); });
  }

  void run() override { clock_.run(); }

 private:
  struct Flow {
    const Load* load = nullptr;
    double bytes = 0.0;  ///< left at `since`
    double since = 0.0;
    double rate = 0.0;
    std::uint64_t version = 0;  ///< of its rate; a timer of an older one is stale
    bool reached = false;       ///< by the search under way
    bool fixed = false;
    Callback arrived;
  };
  struct LinkState {
    std::vector<int> flows;  ///< that cross it
    double left = 0.0;       ///< of its bandwidth, while levels are raised
    double usage = 0.0;      ///< sum of w / penalty of the flows that are not fixed
    int open = 0;            ///< how many these are
    bool changed = false;
    bool reached = false;
  };

  void enter(int index) {
    flows_[index].since = clock_.now();
    for (const Load::Share& share : flows_[index].load->shares) links_[share.link].flows.push_back(index);
    change(index);
  }

  void leave(int index) {
    for (const Load::Share& share : flows_[index].load->shares) {
      std::vector<int>& crossing = links_[share.link].flows;
      crossing.erase(std::ranges::find(crossing, index));
    }
    change(index);
    ++flows_[index].version;
    const Callback arrived = std::exchange(flows_[index].arrived, nullptr);
    free_.push_back(index);
    arrived();
  }

  /// Rates are shared anew when all that happens at this instant has happened.
  void change(int index) {
    for (const Load::Share& share : flows_[index].load->shares) {
      LinkState& link = links_[share.link];
      if (!std::exchange(link.changed, true)) changed_.push_back(share.link);
    }
    if (std::exchange(settling_, true)) return;
    clock_.at(clock_.now(), [this] { settle(); });
  }

  void settle() {
    settling_ = false;
    for (const int link : changed_) links_[link].changed = false;
    for (const int link : std::exchange(changed_, {})) {
      if (links_[link].reached) continue;
      reach_from(link);
      raise_levels();
    }
    for (const int link : reached_links_) links_[link].reached = false;
    for (const int flow : reached_flows_) flows_[flow].reached = false;
    reached_links_.clear();
    reached_flows_.clear();
  }

  /// All links and flows that `link` is joined with.
  void reach_from(int link) {
    first_link_ = reached_links_.size();
    first_flow_ = reached_flows_.size();
    links_[link].reached = true;
    reached_links_.push_back(link);
    for (std::size_t next = first_link_; next < reached_links_.size(); ++next)
      for (const int index : links_[reached_links_[next]].flows) {
        if (std::exchange(flows_[index].reached, true)) continue;
        reached_flows_.push_back(index);
        for (const Load::Share& share : flows_[index].load->shares)
          if (!std::exchange(links_[share.link].reached, true)) reached_links_.push_back(share.link);
      }
  }

  void raise_levels() {
    constexpr double kFull = 1.0 + 1e-9;  // links that are full at one level but for rounding
    for (std::size_t i = first_link_; i < reached_links_.size(); ++i) {
      LinkState& link = links_[reached_links_[i]];
      link.left = symmetry_.links()[reached_links_[i]];
      link.usage = 0.0;
      link.open = static_cast<int>(link.flows.size());
    }
    for (std::size_t i = first_flow_; i < reached_flows_.size(); ++i) {
      Flow& flow = flows_[reached_flows_[i]];
      flow.fixed = false;
      for (const Load::Share& share : flow.load->shares)
        links_[share.link].usage += share.weight / flow.load->penalty;
    }
    for (std::size_t fixed = first_flow_; fixed < reached_flows_.size();) {
      double level = std::numeric_limits<double>::infinity();
      for (std::size_t i = first_link_; i < reached_links_.size(); ++i)
        if (const LinkState& link = links_[reached_links_[i]]; link.open > 0)
          level = std::min(level, link.left / link.usage);
      for (std::size_t i = first_link_; i < reached_links_.size(); ++i) {
        const LinkState& link = links_[reached_links_[i]];
        if (link.open == 0 || link.left / link.usage > level * kFull) continue;
        for (const int index : link.flows) {
          Flow& flow = flows_[index];
          if (std::exchange(flow.fixed, true)) continue;
          ++fixed;
          const double rate = level / flow.load->penalty;
          for (const Load::Share& share : flow.load->shares) {
            LinkState& crossed = links_[share.link];
            crossed.left = std::max(0.0, crossed.left - share.weight * rate);
            crossed.usage -= share.weight / flow.load->penalty;
            --crossed.open;
          }
          set_rate(index, rate);
        }
      }
    }
  }

  void set_rate(int index, double rate) {
    Flow& flow = flows_[index];
    if (rate == flow.rate) return;
    const double now = clock_.now();
    flow.bytes = std::max(0.0, flow.bytes - flow.rate * (now - flow.since));
    flow.since = now;
    flow.rate = rate;
    const std::uint64_t version = ++flow.version;
    clock_.at(now + flow.bytes / rate, [this, index, version] {
      if (flows_[index].version == version) leave(index);
    });
  }

  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::vector<LinkState> links_;
  std::vector<int> changed_;  ///< links that flows have entered or left at this instant
  bool settling_ = false;
  std::vector<int> reached_links_, reached_flows_;  ///< of the searches at this instant
  std::size_t first_link_ = 0, first_flow_ = 0;     ///< of the last one
};

}  // namespace

std::unique_ptr<Network> make_fluid_network(Clock& clock, Symmetry& symmetry) {
  return std::make_unique<FluidNetwork>(clock, symmetry);
}

}  // namespace stepcast

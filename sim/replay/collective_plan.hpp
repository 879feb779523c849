#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/collectives/algorithm.hpp"
#include "sim/collectives/nccl_flows.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// Replay of calls of one kind and size by one group.
struct CollectivePlan {
  enum class Way : std::uint8_t {
    kSteps,      ///< every message of the algorithm is a transfer
    kLinkLoads,  ///< all bytes at once on the links, and a least time
  };
  int number = 0;  ///< in the order of creation
  Way way = Way::kSteps;
  const Algorithm* algorithm = nullptr;
  CollectiveCall call{};
  /// Type of its flows: calls of one type by one group send the same parts of their messages between the same
  /// ranks.
  int flow_type = 0;

  // NCCL alone.
  const NcclGraph* graph = nullptr;              ///< null: grouped sends and receives
  NcclCost cost{};                               ///< of grouped messages: the longest one
  const std::vector<NcclFlow>* flows = nullptr;  ///< of a message of 1 B
  int blocks = 0;                                ///< occupied multiprocessors
  double wire_factor = 1.0;                      ///< bytes on the wire per byte of payload
};

/// Plans of all groups and calls, each made once.
class CollectivePlans {
 public:
  /// Largest group whose rings are replayed message by message with `Fidelity::kAutomatic`, and of rings with
  /// empty messages, whose ranks do not keep step: of arrays with fewer elements than segments.
  static constexpr int kLargestMessageGroup = 16, kLargestGroupOutOfStep = 128;

  /// \throws UsageError for NCCL with `--fidelity message`, or with `--exact` beyond 512 ranks
  CollectivePlans(const ReplayInput& input, std::string backend);

  /// \param group index of the group that `collective` names \throws UsageError if NCCL lacks the chosen
  /// algorithm
  const CollectivePlan& of(const Collective& collective, int group);

  [[nodiscard]] NcclGraphs* nccl() const { return nccl_; }

  /// `message`, `aggregate`, `message and aggregate`, or `none` when there was no ring.
  [[nodiscard]] std::string fidelity_used() const;
  /// Algorithms of all collectives but NCCL's: `all_reduce: gloo_ring; broadcast: binomial`.
  [[nodiscard]] std::string algorithms_used() const;
  /// NCCL's choices by kind and size: `all_reduce 25 MiB: ring/Simple 12x30 GB/s; ...`; "" without NCCL.
  [[nodiscard]] std::string nccl_choices() const;

 private:
  [[nodiscard]] CollectivePlan make(const Collective& collective, int group);
  [[nodiscard]] bool is_aggregated(const CollectivePlan& plan) const;
  [[nodiscard]] const std::vector<NcclFlow>& flows_of(const CollectivePlan& plan);
  void choose_nccl(CollectivePlan& plan, const Collective& collective, const std::vector<int>& ranks);
  void group_messages(CollectivePlan& plan, const Collective& collective, const std::vector<int>& places);

  const ReplayInput& input_;
  const std::string backend_;
  NcclGraphs* nccl_;  ///< null: another backend
  /// By group, the group's name in the program, kind, root, bytes.
  std::map<std::tuple<int, int, CollectiveKind, int, double>, CollectivePlan> plans_;
  /// By graph, algorithm, kind, root, ranks.
  std::map<std::tuple<const NcclGraph*, NcclAlgorithm, CollectiveKind, int, int>, std::vector<NcclFlow>>
      flows_;
  std::map<std::tuple<int, CollectivePlan::Way, CollectiveKind, NcclAlgorithm, NcclProtocol, int>, int>
      flow_types_;
};

}  // namespace stepcast

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

/// How the ranks of one group make a call of one kind and size.
struct CollectivePlan {
  enum class Way : std::uint8_t {
    kMessages,      ///< every message of the algorithm is a transfer
    kAggregate,     ///< one flow per edge of a ring
    kNccl,          ///< all flows of a kernel of NCCL as one
    kNcclMessages,  ///< the same of grouped sends and receives, where NCCL has no kernel
  };
  int number = 0;  ///< as plans were made
  Way way = Way::kMessages;
  const Algorithm* algorithm = nullptr;
  CollectiveCall call{};
  /// Of its flows: calls of one type by one group send between the same ranks, the same parts of their
  /// messages.
  int flow_type = 0;

  // Of NCCL.
  const NcclGraph* graph = nullptr;              ///< null where it has nothing to choose
  NcclCost cost{};                               ///< of the longest of grouped messages
  const std::vector<NcclFlow>* flows = nullptr;  ///< of a message of 1 B
  int blocks = 0;                                ///< multiprocessors that it occupies
  double wire_factor = 1.0;                      ///< what the protocol makes of a byte

  /// Ranks begin together and end together.
  [[nodiscard]] bool joint() const { return way != Way::kMessages; }
};

/// Decides for every group and call, each once.
class CollectivePlans {
 public:
  /// Up to this group size, rings are replayed message by message when the choice is automatic.
  static constexpr int kLargestMessageGroup = 16;

  /// \param nccl of the backend `nccl`; null: another backend
  /// \throws UsageError for NCCL with `--fidelity message`, or with `--exact` beyond 512 ranks
  CollectivePlans(const ReplayInput& input, std::string backend, NcclGraphs* nccl);

  /// \param group index of the one that `collective` names \throws UsageError where NCCL does not have what
  /// was chosen
  const CollectivePlan& of(const Collective& collective, int group);

  [[nodiscard]] NcclGraphs* nccl() const { return nccl_; }

  /// `message`, `aggregate`, `message and aggregate`, or `none` when there was no ring.
  [[nodiscard]] std::string fidelity_used() const;
  /// What ran, messages apart from NCCL's own kernels: `all_reduce: gloo_ring; broadcast: binomial`.
  [[nodiscard]] std::string algorithms_used() const;
  /// What NCCL chose, by kind and size: `all_reduce 25 MiB: ring/Simple 12x30 GB/s; ...`; "" where it chose
  /// nothing.
  [[nodiscard]] std::string nccl_choices() const;

 private:
  [[nodiscard]] CollectivePlan make(const Collective& collective, int group);
  [[nodiscard]] const std::vector<NcclFlow>& flows_of(const CollectivePlan& plan);
  void choose_nccl(CollectivePlan& plan, const Collective& collective, const std::vector<int>& ranks);
  void group_messages(CollectivePlan& plan, const std::vector<int>& places);
  void note(const CollectivePlan& plan);

  const ReplayInput& input_;
  const std::string backend_;
  NcclGraphs* nccl_;
  /// By group, the group's name in the program, kind, root, bytes.
  std::map<std::tuple<int, int, CollectiveKind, int, double>, CollectivePlan> plans_;
  /// By graph, algorithm, kind, root, ranks.
  std::map<std::tuple<const NcclGraph*, NcclAlgorithm, CollectiveKind, int, int>, std::vector<NcclFlow>>
      flows_;
  std::map<std::tuple<int, CollectivePlan::Way, CollectiveKind, NcclAlgorithm, NcclProtocol, int>, int>
      flow_types_;
  std::set<std::string> fidelities_;
  std::map<CollectiveKind, std::string> algorithms_used_;

  /// Calls of one choice, from the smallest to the largest message.
  struct Chosen {
    Bytes smallest, largest;
  };
  std::map<std::pair<CollectiveKind, std::string>, Chosen> nccl_chosen_;
};

}  // namespace stepcast

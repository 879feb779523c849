#pragma once

#include <map>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/collective_plan.hpp"
#include "sim/replay/copies.hpp"
#include "topologies/paths.hpp"

/// One step of a replay, operation by operation, with the cause of each delay: input of `stepcast explain`.
namespace stepcast {

struct RecordedOp {
  double start_s = 0.0;
  double end_s = 0.0;
  double issued_s = 0.0;  ///< of other streams than compute: time at which the main thread reached it
  double host_s = 0.0;    ///< seconds at its end in which it only waited to be launched
  int links = -1;         ///< of transfers: index into Recording::links; -1: crosses none
};

struct RecordedRank {
  double start_s = 0.0;
  double end_s = 0.0;
  std::vector<RecordedOp> ops;       ///< of its program
  double before_s = 0.0;             ///< start of the step before
  std::vector<RecordedOp> before{};  ///< its operations; empty if it is not known
};

/// Bottleneck links of a message or a collective that runs alone.
struct FullestLinks {
  /// See topologies/link_tiers.hpp, or `pageable` for staging; `network1+pcie` if both take as long.
  std::string tier;
  std::string link;  ///< its name if no other link of the tier takes nearly as long; else ""
  friend auto operator<=>(const FullestLinks&, const FullestLinks&) = default;
};

/// Times count from the start of the step on the slowest rank.
struct Recording {
  Schedule schedule;
  std::vector<int> stands_for;        ///< by rank: the one that represents it
  std::map<int, RecordedRank> ranks;  ///< replayed ones
  int slowest = 0;
  bool stream_per_group = false;  ///< collectives of different groups do not queue for each other
  std::vector<FullestLinks> links;
  std::vector<std::string> tiers;  ///< of the cluster
  std::vector<std::string> segments;
  std::vector<int> segment_of_tensor;
};

/// Finds the bottleneck links of operations; once for each group, kind and size.
class FullestLinkSearch {
 public:
  /// All outlive this.
  FullestLinkSearch(const ReplayInput& input, CollectivePlans& plans, Routes& routes, const Copies& copies);
  /// Index into `found`; -1 if the operation crosses no link.
  int of(const Op& op, int rank);
  [[nodiscard]] const std::vector<FullestLinks>& found() const { return found_; }

 private:
  void add(int from, int to, double bytes);
  void add_between(int here, int there, double bytes);  ///< nodes
  int fullest();

  const ReplayInput& input_;
  CollectivePlans& plans_;
  Routes& routes_;
  const Copies& copies_;
  std::vector<std::string> tiers_;                              ///< by link
  std::map<std::pair<int, bool>, double> taken_;                ///< bytes, by link and direction
  std::map<std::pair<const CollectivePlan*, int>, int> known_;  ///< by plan and group
  std::vector<FullestLinks> found_;
};

}  // namespace stepcast

#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"

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
  std::vector<int> stands_for{};        ///< by rank: the one that represents it
  std::map<int, RecordedRank> ranks{};  ///< replayed ones
  int slowest = 0;
  bool stream_per_group = false;  ///< collectives of different groups do not queue for each other
  std::vector<FullestLinks> links{};
  std::vector<std::string> tiers{};  ///< of the cluster
  std::vector<std::string> segments{};
  std::vector<int> segment_of_tensor{};
};

}  // namespace stepcast

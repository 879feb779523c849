#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/replay/collective_run.hpp"
#include "sim/replay/replay.hpp"

namespace stepcast {

/// All collectives of a replay: ranks of a group meet in the order in which they call, as in a process group.
class Collectives {
 public:
  /// Up to this group size, rings are replayed message by message when the choice is automatic.
  static constexpr int kLargestMessageGroup = 16;

  /// What collectives are made of.
  struct Library {
    std::string backend;  ///< "": the ideal algorithms
    AlgorithmChoice choice{};
  };
  Collectives(const CollectiveWorld& world, const Schedule& schedule, Fidelity fidelity, Library library);

  /// Rank `rank` calls a collective of its group; `done` is called when its part is over.
  void join(int rank, const Collective& collective, Callback done);

  /// Whether collectives of different groups run beside each other on one rank, those of one group one at a
  /// time.
  [[nodiscard]] bool stream_per_group() const { return world_.nccl != nullptr; }

  /// `message`, `aggregate`, `message and aggregate`, or `none` when there was no ring.
  [[nodiscard]] std::string fidelity_used() const;
  /// What ran, messages apart from NCCL's own kernels: `all_reduce: gloo_ring; broadcast: binomial`.
  [[nodiscard]] std::string algorithms_used() const;
  /// What NCCL chose, by kind and size: `all_reduce 25 MiB: ring/Simple 12x30 GB/s; ...`; "" where it chose
  /// nothing.
  [[nodiscard]] std::string nccl_choices() const;

 private:
  struct Open {
    std::unique_ptr<CollectiveRun> run;
    int left = 0;  ///< ranks that are not done
  };
  std::unique_ptr<CollectiveRun> make_run(const Collective& collective, const std::vector<int>& ranks);
  std::unique_ptr<CollectiveRun> make_nccl(const Collective& collective, const Algorithm& algorithm,
                                           const CollectiveCall& call, const std::vector<int>& ranks);
  NcclCall& nccl_of(const Collective& collective, const std::vector<int>& ranks);
  void leave(const std::pair<int, long long>& key, const Callback& done);

  const CollectiveWorld& world_;
  const Schedule& schedule_;
  Fidelity fidelity_;
  Library library_;
  std::vector<std::map<int, int>> index_of_rank_;   ///< by group
  std::vector<std::vector<long long>> calls_;       ///< by group and index in it: calls so far
  std::map<std::pair<int, long long>, Open> open_;  ///< by group and number of the call
  std::set<std::string> used_;
  std::map<CollectiveKind, std::string> algorithms_used_;

  /// Calls of one choice, from the smallest to the largest message.
  struct Chosen {
    Bytes smallest, largest;
  };
  /// By group, kind, root, bytes.
  std::map<std::tuple<const int*, CollectiveKind, int, double>, NcclCall> nccl_calls_;
  std::map<std::pair<CollectiveKind, std::string>, Chosen> nccl_chosen_;
};

}  // namespace stepcast

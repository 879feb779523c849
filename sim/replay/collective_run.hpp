#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/replay/collective_plan.hpp"
#include "sim/replay/load_network.hpp"
#include "sim/replay/transport.hpp"

namespace stepcast {

/// What a collective needs of the simulated world.
struct CollectiveWorld {
  Clock& clock;
  Transport& transport;
  Network& network;
  Processors& processors;
  const Calibration* calibration = nullptr;  ///< null: reductions and copies are free
  NcclGraphs* nccl = nullptr;                ///< of the backend `nccl`; null: another backend
  LoadNetwork* loads = nullptr;              ///< the network of NCCL; null: another backend

  [[nodiscard]] double reduce_s(double bytes) const {
    return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->reduce.cost.at(Bytes(bytes)).count();
  }
  [[nodiscard]] double copy_s(double bytes) const {
    return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->copy.cost.at(Bytes(bytes)).count();
  }
  /// Work of a communication thread of `rank`; `traffic` is what it moves through memory, in bytes.
  void run_job(int rank, double seconds, double traffic, Callback ended) const {
    processors.run(
        transport.replayed_node(rank),
        {.seconds = seconds, .memory_bytes_per_s = traffic / seconds, .rank = rank, .communication = true},
        std::move(ended));
  }
};

/// The ranks of a group, and which of them are replayed: of those that do the same (Symmetry), the first.
struct Members {
  const std::vector<int>& ranks;
  std::vector<int> first;  ///< by index: the first of its class
  int replayed = 0;
};

/// One call of a collective by all ranks of a group, under way.
class CollectiveRun {
 public:
  CollectiveRun(const CollectiveWorld& world, const CollectivePlan& plan, const Members& members)
      : world_(world),
        plan_(plan),
        algorithm_(*plan.algorithm),
        call_(plan.call),
        members_(members),
        ranks_(members.ranks) {}
  virtual ~CollectiveRun() = default;

  /// Rank number `index` of the group, which is replayed, takes part from now on; `done` is called when its
  /// part is over, possibly before this returns.
  virtual void join(int index, Callback done) = 0;

 protected:
  [[nodiscard]] int rank(int index) const { return ranks_[index]; }
  [[nodiscard]] bool replayed(int index) const { return members_.first[index] == index; }

  const CollectiveWorld& world_;
  const CollectivePlan& plan_;
  const Algorithm& algorithm_;
  const CollectiveCall call_;
  const Members& members_;
  const std::vector<int>& ranks_;
};

/// One that begins when all ranks have joined and ends on all at once, when all its parts are over.
class JointRun : public CollectiveRun {
 public:
  using CollectiveRun::CollectiveRun;
  void join(int /*index*/, Callback done) final {
    waiting_.push_back(std::move(done));
    if (static_cast<int>(waiting_.size()) < members_.replayed) return;
    part_begins();
    begin();
    part_over();
  }

 protected:
  /// Starts the parts. It is one itself, so that those that end at once do not end the whole.
  virtual void begin() = 0;
  /// What is left to do at the end, before the ranks go on.
  virtual void end() {}
  void part_begins() { ++open_parts_; }
  void part_over() {
    if (--open_parts_ > 0) return;
    end();
    for (const Callback& done : std::exchange(waiting_, {})) done();
  }

 private:
  std::vector<Callback> waiting_;
  int open_parts_ = 0;
};

/// Every message of the algorithm is a transfer. A rank posts a step when the steps that it comes after are
/// over; a message moves when both sides have posted it; steps of a rank end in order, each after its
/// reduction, which runs on the rank's communication thread beside the transfer of the next step.
std::unique_ptr<CollectiveRun> make_message_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                                const Members& members);

/// One flow per link of a ring carries all its bytes, and a timer adds the latency of the other steps. Begins
/// when all ranks have joined and ends on all at once. With endpoint costs, each rank also has one job as
/// long as its steps would take if all ranks kept step. \pre algorithm.ring
std::unique_ptr<CollectiveRun> make_aggregate_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                                  const Members& members);

/// A collective of NCCL: its bytes on the modelled links, and NCCL's time as the least. Begins when all ranks
/// have joined and ends on all at once; as long as it runs, its blocks take their multiprocessors from what
/// the GPUs compute. \param load of 1 B of its message \pre more than one rank
std::unique_ptr<CollectiveRun> make_nccl_run(const CollectiveWorld& world, const CollectivePlan& plan,
                                             const Members& members, const Load& load);

/// When the same ends on all ranks that begin it at `begin`, and have its links to themselves. \pre way is
/// kNccl or kNcclMessages
double nccl_end_alone(const LoadNetwork& network, const CollectivePlan& plan, const Load& load, double begin);

}  // namespace stepcast

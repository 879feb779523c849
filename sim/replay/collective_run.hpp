#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/collectives/algorithm.hpp"
#include "sim/collectives/nccl_flows.hpp"
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

  [[nodiscard]] double reduce_s(double bytes) const {
    return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->reduce.at(Bytes(bytes)).count();
  }
  [[nodiscard]] double copy_s(double bytes) const {
    return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->copy.at(Bytes(bytes)).count();
  }
  /// Work of a communication thread of `rank`; `traffic` is what it moves through memory, in bytes.
  void run_job(int rank, double seconds, double traffic, Callback ended) const {
    processors.run(
        transport.node(rank),
        {.seconds = seconds, .memory_bytes_per_s = traffic / seconds, .rank = rank, .communication = true},
        std::move(ended));
  }
};

/// One call of a collective by all ranks of a group, under way.
class CollectiveRun {
 public:
  CollectiveRun(const CollectiveWorld& world, const Algorithm& algorithm, const CollectiveCall& call,
                const std::vector<int>& ranks)
      : world_(world), algorithm_(algorithm), call_(call), ranks_(ranks) {}
  virtual ~CollectiveRun() = default;

  /// Rank number `index` of the group takes part from now on; `done` is called when its part is over,
  /// possibly before this returns.
  virtual void join(int index, Callback done) = 0;

 protected:
  [[nodiscard]] int rank(int index) const { return ranks_[index]; }

  const CollectiveWorld& world_;
  const Algorithm& algorithm_;
  const CollectiveCall call_;
  const std::vector<int>& ranks_;
};

/// One that begins when all ranks have joined and ends on all at once, when all its parts are over.
class JointRun : public CollectiveRun {
 public:
  using CollectiveRun::CollectiveRun;
  void join(int /*index*/, Callback done) final {
    waiting_.push_back(std::move(done));
    if (waiting_.size() < ranks_.size()) return;
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
std::unique_ptr<CollectiveRun> make_message_run(const CollectiveWorld& world, const Algorithm& algorithm,
                                                const CollectiveCall& call, const std::vector<int>& ranks);

/// One flow per link of a ring carries all its bytes, and a timer adds the latency of the other steps. Begins
/// when all ranks have joined and ends on all at once. With endpoint costs, each rank also has one job as
/// long as its steps would take if all ranks kept step. \pre algorithm.ring
std::unique_ptr<CollectiveRun> make_aggregate_run(const CollectiveWorld& world, const Algorithm& algorithm,
                                                  const CollectiveCall& call, const std::vector<int>& ranks);

/// What NCCL has chosen for a call.
struct NcclCall {
  const NcclGraph* graph = nullptr;  ///< null: NCCL does it by messages (`nccl_tunes`)
  CollectiveKind kind = CollectiveKind::kAllReduce;
  NcclCost cost{};
  std::vector<NcclFlow> flows{};
  int blocks = 0;  ///< multiprocessors that it occupies
};
/// \param wanted what was chosen in place of what is fastest \throws UsageError where NCCL does not have it
NcclCall nccl_call(NcclGraphs& graphs, const Collective& collective, const std::vector<int>& places,
                   std::optional<NcclAlgorithm> wanted);

/// A collective of NCCL: flows over the modelled links, and NCCL's time as the least. Begins when all ranks
/// have joined and ends on all at once; as long as it runs, its blocks take their multiprocessors from what
/// the GPUs compute. `message_level`, of rings: every step is a flow per edge. \pre more than one rank;
/// message_level: call.message > 0
std::unique_ptr<CollectiveRun> make_nccl_run(const CollectiveWorld& world, const Algorithm& algorithm,
                                             const NcclCall& nccl, const CollectiveCall& call,
                                             const std::vector<int>& ranks, bool message_level);

}  // namespace stepcast

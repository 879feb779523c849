#include "sim/replay/collective_run.hpp"

#include <utility>

namespace stepcast {

void CollectiveWorld::run_job(int rank, double seconds, double traffic, Callback ended) const {
  processors.run(
      transport.node(rank),
      {.seconds = seconds, .memory_bytes_per_s = traffic / seconds, .rank = rank, .communication = true},
      std::move(ended));
}

void JointRun::join(int /*index*/, Callback done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() < ranks_.size()) return;
  part_begins();
  begin();
  part_over();
}

void JointRun::part_over() {
  if (--open_parts_ > 0) return;
  end();
  for (const Callback& done : std::exchange(waiting_, {})) done();
}

}  // namespace stepcast

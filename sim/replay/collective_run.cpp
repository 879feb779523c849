#include "sim/replay/collective_run.hpp"

#include <utility>

namespace stepcast {

double CollectiveWorld::reduce_s(double bytes) const {
  return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->reduce.at(Bytes(bytes)).count();
}

double CollectiveWorld::copy_s(double bytes) const {
  return calibration == nullptr || bytes <= 0.0 ? 0.0 : calibration->copy.at(Bytes(bytes)).count();
}

void CollectiveWorld::run_job(int rank, double seconds, double traffic, Callback ended) const {
  processors.run(
      transport.node(rank),
      {.seconds = seconds, .memory_bytes_per_s = traffic / seconds, .rank = rank, .communication = true},
      std::move(ended));
}

}  // namespace stepcast

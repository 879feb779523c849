#include "sim/replay/processors.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace stepcast {

Processors::Processors(Clock& clock, const std::vector<int>& cores, const std::vector<int>& cores_per_rank,
                       const SharingCost& sharing)
    : clock_(clock) {
  hosts_.reserve(cores.size());
  for (std::size_t i = 0; i < cores.size(); ++i)
    hosts_.push_back({SharedHost(cores[i], sharing, cores_per_rank[i]), {}, -1.0});
  machine_.resize(cores.size());
  std::iota(machine_.begin(), machine_.end(), 0);
}

Processors::Processors(Clock& clock, std::size_t hosts, int cores, int cores_per_rank,
                       const SharingCost& sharing)
    : clock_(clock), machine_(hosts, 0) {
  hosts_.push_back({SharedHost(cores, sharing, cores_per_rank), {}, -1.0});
}

void Processors::run(int host, const Job& job, Callback ended) {
  const std::size_t index = machine(host);
  const int id = hosts_[index].shared.add(job, clock_.now());
  hosts_[index].callbacks.emplace_back(id, std::move(ended));
  arm(index);
}

int Processors::occupy(int host, double cores, int rank) {
  const std::size_t index = machine(host);
  Job job;
  job.seconds = std::numeric_limits<double>::infinity();
  job.cores = cores;
  job.rank = rank;
  job.communication = true;
  const int id = hosts_[index].shared.add(job, clock_.now());
  arm(index);
  return id;
}

void Processors::release(int host, int job) {
  const std::size_t index = machine(host);
  hosts_[index].shared.remove(job, clock_.now());
  arm(index);
}

void Processors::arm(std::size_t host) {
  const auto end = hosts_[host].shared.next_end();
  const double date = end.value_or(-1.0);
  if (date == hosts_[host].armed) return;
  hosts_[host].armed = date;
  if (!end) return;
  clock_.at(date, [this, host] {
    if (hosts_[host].armed <= clock_.now() && hosts_[host].armed >= 0.0) end_jobs(host);
  });
}

void Processors::end_jobs(std::size_t host) {
  Host& here = hosts_[host];
  std::vector<Callback> due;
  for (const int id : here.shared.take_ended(clock_.now())) {
    const auto found = std::find_if(here.callbacks.begin(), here.callbacks.end(),
                                    [id](const auto& entry) { return entry.first == id; });
    due.push_back(std::move(found->second));
    here.callbacks.erase(found);
  }
  here.armed = -1.0;
  arm(host);
  for (const Callback& ended : due) ended();
}

}  // namespace stepcast

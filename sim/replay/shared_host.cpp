#include "sim/replay/shared_host.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ranges.hpp"

namespace stepcast {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Number of threads of a job.
double threads(const Job& job) { return std::max(1.0, std::ceil(job.cores)); }

}  // namespace

double fair_share(std::vector<Demand>&& demands, double capacity) {
  const double total = sum_of(demands, [](const Demand& one) { return one.amount * one.weight; });
  if (total <= capacity) return kInfinite;
  double weight = sum_of(demands, &Demand::weight);
  std::ranges::sort(demands, {}, &Demand::amount);
  for (const Demand& demand : demands) {
    if (demand.amount >= capacity / weight) break;
    capacity -= demand.amount * demand.weight;
    weight -= demand.weight;
  }
  return capacity / weight;
}

double SharedHost::core_rate(const Job& job, double share) const {
  const double wanted = job.cores / threads(job);
  return wanted > share ? share / wanted : 1.0;
}

double SharedHost::memory_demand(const Job& job) const {
  if (sharing_.memory_bandwidth_one_bytes_per_s <= 0.0) return 0.0;
  return std::min(job.memory_bytes_per_s, threads(job) * sharing_.memory_bandwidth_one_bytes_per_s);
}

double SharedHost::interference(const Job& job) const {
  if (job.communication || job.cores == 0.0) return 1.0;
  bool compute = false;
  bool communication = false;
  for (const Running& other : running_) {
    communication = communication || other.job.communication;
    compute = compute || (!other.job.communication && other.job.cores > 0.0 && other.job.rank != job.rank);
  }
  return (compute ? sharing_.rate_beside_compute : 1.0) *
         (communication ? sharing_.rate_beside_communication : 1.0);
}

double SharedHost::core_share(int rank) {
  const bool bound = cores_per_rank_ > 0.0;
  demands_.clear();
  for (const Running& one : running_)
    if (!bound || one.job.rank == rank)
      demands_.push_back({one.job.cores / threads(one.job), threads(one.job)});
  return fair_share(std::move(demands_), bound ? cores_per_rank_ : cores_);
}

void SharedHost::share(double now) {
  const double of_all = cores_per_rank_ > 0.0 ? 0.0 : core_share(0);
  for (Running& one : running_)
    one.of_cores = core_rate(one.job, cores_per_rank_ > 0.0 ? core_share(one.job.rank) : of_all);
  demands_.clear();
  for (const Running& one : running_) demands_.push_back({memory_demand(one.job) * one.of_cores});
  const double memory_share = fair_share(
      std::move(demands_),
      std::max(sharing_.memory_bandwidth_all_bytes_per_s, sharing_.memory_bandwidth_one_bytes_per_s));
  for (Running& one : running_) {
    const double wanted = memory_demand(one.job) * one.of_cores;
    const double rate =
        one.of_cores * (wanted > memory_share ? memory_share / wanted : 1.0) * interference(one.job);
    if (rate == one.rate) continue;  // keeps its end, exactly
    const double left = one.rate > 0.0 ? (one.end - now) * one.rate : one.job.seconds;
    one.rate = rate;
    one.end = now + left / rate;
  }
}

int SharedHost::add(const Job& job, double now) {
  running_.push_back({next_id_, job, 0.0, 0.0});
  share(now);
  return next_id_++;
}

void SharedHost::remove(int id, double now) {
  std::erase_if(running_, [id](const Running& one) { return one.id == id; });
  share(now);
}

std::optional<double> SharedHost::next_end() const {
  if (running_.empty()) return std::nullopt;
  const double end = std::ranges::min_element(running_, {}, &Running::end)->end;
  return end < kInfinite ? std::optional(end) : std::nullopt;
}

std::vector<int> SharedHost::take_ended(double now) {
  std::vector<int> ended;
  for (const Running& one : running_)
    if (one.end <= now) ended.push_back(one.id);
  if (ended.empty()) return ended;
  std::erase_if(running_, [now](const Running& one) { return one.end <= now; });
  share(now);
  return ended;
}

Processors::Processors(Clock& clock, std::vector<int> cores, std::vector<int> cores_per_rank,
                       std::vector<std::size_t> machine, const SharingCost& sharing)
    : clock_(clock),
      cores_(std::move(cores)),
      cores_per_rank_(std::move(cores_per_rank)),
      hosts_(cores_.size()),
      machine_(std::move(machine)),
      sharing_(sharing) {}

Processors::Host& Processors::at(std::size_t machine) {
  std::unique_ptr<Host>& host = hosts_[machine];
  if (host == nullptr)
    host = std::make_unique<Host>(
        Host{.shared = SharedHost(cores_[machine], sharing_, cores_per_rank_[machine])});
  return *host;
}

void Processors::run(int host, const Job& job, Callback ended) {
  const std::size_t index = machine_[host];
  Host& here = at(index);
  here.callbacks.emplace(here.shared.add(job, clock_.now()), std::move(ended));
  arm(index);
}

int Processors::occupy(int host, double cores, int rank) {
  const std::size_t index = machine_[host];
  const Job job{.seconds = kInfinite, .cores = cores, .rank = rank, .communication = true};
  const int id = at(index).shared.add(job, clock_.now());
  arm(index);
  return id;
}

void Processors::release(int host, int job) {
  at(machine_[host]).shared.remove(job, clock_.now());
  arm(machine_[host]);
}

void Processors::arm(std::size_t host) {
  Host& here = at(host);
  const auto end = here.shared.next_end();
  const double date = end.value_or(-1.0);
  if (date == here.armed) return;
  here.armed = date;
  if (!end) return;
  clock_.at(date, [this, host, &here] {
    if (here.armed <= clock_.now() && here.armed >= 0.0) end_jobs(host);
  });
}

void Processors::end_jobs(std::size_t host) {
  Host& here = at(host);
  std::vector<Callback> due;
  for (const int id : here.shared.take_ended(clock_.now()))
    due.push_back(std::move(here.callbacks.extract(id).mapped()));
  here.armed = -1.0;
  arm(host);
  for (const Callback& ended : due) ended();
}

}  // namespace stepcast

#include "runner/measure/bench_collectives.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runner/backend/message_walk.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/execute/core_sharing.hpp"
#include "runner/measure/cost.hpp"

namespace stepcast {
namespace {

/// The arrays of a rank: for all collectives and sizes the same, so that memory makes no difference.
struct BenchArrays {
  std::shared_ptr<void> in, out;
};

/// One collective at one size: a call, and what the result must be. Every rank holds arrays of the whole
/// message.
class Bout {
 public:
  Bout(Backend& backend, const BenchArrays& arrays, std::string collective, std::size_t bytes)
      : backend_(backend),
        in_(arrays.in.get()),
        out_(arrays.out.get()),
        collective_(std::move(collective)),
        world_(static_cast<std::size_t>(backend.world_size())) {
    const bool in_parts =
        collective_ != "all_reduce" && collective_ != "broadcast" && collective_ != "send_recv";
    const std::size_t unit = sizeof(float) * (in_parts ? world_ : 1);
    count_ = std::max<std::size_t>(1, (bytes + unit - 1) / unit) * (in_parts ? world_ : 1);
    part_ = count_ / world_;
  }

  [[nodiscard]] const std::string& collective() const { return collective_; }
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(float); }

  /// A few calls for small messages cost nothing and give steady numbers; large ones are steady by
  /// themselves.
  [[nodiscard]] int iterations(int asked) const {
    constexpr double kFew = 8.0;
    constexpr double kMany = 100.0;
    if (asked > 0) return asked;
    return static_cast<int>(std::clamp(32.0 * kMebi / static_cast<double>(bytes()), kFew, kMany));
  }

  void call(int times) {
    MessageWalk in(in_, count_, DataType::kFloat32);
    MessageWalk out(out_, count_, DataType::kFloat32);
    if (collective_ == "send_recv") return ping_pong(backend_, {0, 1}, in, out, times);
    for (int i = 0; i < times; ++i) call_once(in.next(), out.next());
  }

  /// Calls once on known data. \pre clear() \returns the number of wrong elements on this rank
  long long check() {
    std::vector<float> known(count_);
    for (std::size_t i = 0; i < count_; ++i) known[i] = value(rank(), i);
    backend_.copy(in_, known.data(), bytes());
    call(1);
    return wrong();
  }

  /// Zeroes stay zeroes however often they are added up.
  void clear() {
    for (void* const array : {in_, out_}) backend_.clear(array, MessageWalk::region_bytes(bytes()));
  }

 private:
  void call_once(const Array& whole, const Array& whole_out) {
    const Array part{whole.data, part_, DataType::kFloat32};
    const Array part_out{whole_out.data, part_, DataType::kFloat32};
    if (collective_ == "all_reduce") return backend_.all_reduce(whole)->wait();
    if (collective_ == "broadcast") return backend_.broadcast(whole, 0)->wait();
    if (collective_ == "gather") return backend_.gather(part, whole_out, 0)->wait();
    if (collective_ == "all_gather") return backend_.all_gather(part, whole_out)->wait();
    if (collective_ == "reduce_scatter") return backend_.reduce_scatter(whole, part_out)->wait();
    if (collective_ == "all_to_all") return backend_.all_to_all(whole, whole_out)->wait();
    backend_.scatter(parts_of(whole), part_out, 0)->wait();
  }

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(backend_.rank()); }

  /// Small whole numbers: sums over ranks are exact in float.
  static float value(std::size_t rank, std::size_t i) {
    constexpr std::size_t kPeriod = 13;
    return static_cast<float>((rank + 1) * (i % kPeriod + 1));
  }
  [[nodiscard]] float sum(std::size_t i) const {
    return value(0, i) * static_cast<float>(world_ * (world_ + 1)) / 2.0F;
  }

  [[nodiscard]] std::vector<Array> parts_of(const Array& whole) const {
    std::vector<Array> parts;
    for (std::size_t r = 0; rank() == 0 && r < world_; ++r)
      parts.push_back({static_cast<float*>(whole.data) + r * part_, part_, DataType::kFloat32});
    return parts;
  }

  [[nodiscard]] long long wrong() const {
    const auto count_wrong = [this](const void* array, std::size_t count, auto&& expected) {
      std::vector<float> values(count);
      backend_.copy(values.data(), array, count * sizeof(float));
      long long result = 0;
      for (std::size_t i = 0; i < count; ++i) result += values[i] == expected(i) ? 0 : 1;
      return result;
    };
    const bool root = rank() == 0;
    if (collective_ == "all_reduce") return count_wrong(in_, count_, [&](std::size_t i) { return sum(i); });
    if (collective_ == "broadcast")
      return count_wrong(in_, count_, [&](std::size_t i) { return value(0, i); });
    if (collective_ == "gather" || collective_ == "all_gather")
      return count_wrong(out_, root || collective_ == "all_gather" ? count_ : 0,
                         [&](std::size_t i) { return value(i / part_, i % part_); });
    if (collective_ == "scatter")
      return count_wrong(out_, part_, [&](std::size_t i) { return value(0, rank() * part_ + i); });
    if (collective_ == "reduce_scatter")
      return count_wrong(out_, part_, [&](std::size_t i) { return sum(rank() * part_ + i); });
    if (collective_ == "all_to_all")
      return count_wrong(out_, count_,
                         [&](std::size_t i) { return value(i / part_, rank() * part_ + i % part_); });
    return count_wrong(out_, rank() < 2 ? count_ : 0, [&](std::size_t i) { return value(1 - rank(), i); });
  }

  Backend& backend_;
  void *in_, *out_;
  std::string collective_;
  std::size_t world_, count_ = 0, part_ = 0;
};

Cost time_calls(Backend& backend, Bout& bout, int iterations) {
  bout.clear();
  bout.call(1);
  backend.barrier();
  // A ping-pong is two messages, one after the other.
  const double calls = iterations * (bout.collective() == "send_recv" ? 2.0 : 1.0);
  return cost_of(calls, process_cpu_s, [&] { bout.call(iterations); });
}

/// Over the ranks: the slowest time, the mean processor time, all wrong elements.
void combine(ControlPlane& control, std::vector<BenchRow>& rows) {
  std::vector<double> own;
  for (const BenchRow& row : rows) {
    own.insert(own.end(), row.time_s.begin(), row.time_s.end());
    own.insert(own.end(), row.cpu_s.begin(), row.cpu_s.end());
    own.insert(own.end(), row.machine.probe_per_s.begin(), row.machine.probe_per_s.end());
    own.insert(own.end(), row.machine.taken.begin(), row.machine.taken.end());
    own.push_back(static_cast<double>(row.wrong));
  }
  const auto all = control.all_gather_numbers("samples", own);
  std::size_t next = 0;
  const auto over_ranks = [&] {
    std::vector<double> values;
    for (const std::vector<double>& theirs : all) values.push_back(theirs[next]);
    ++next;
    return values;
  };
  const auto sum = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  for (BenchRow& row : rows) {
    // Only two ranks take part in a ping-pong; the others pass by in no time.
    const double taking_part =
        row.collective == "send_recv" ? 2.0 : static_cast<double>(control.world_size());
    for (double& time : row.time_s) {
      const std::vector<double> times = over_ranks();
      time = *std::max_element(times.begin(), times.end());
    }
    for (double& cpu : row.cpu_s) cpu = sum(over_ranks()) / taking_part;
    for (double& probe : row.machine.probe_per_s) probe = slowest_probe(over_ranks());
    for (double& taken : row.machine.taken) {
      const std::vector<double> parts = over_ranks();
      taken = *std::max_element(parts.begin(), parts.end());
    }
    row.wrong = static_cast<long long>(sum(over_ranks()));
  }
}

}  // namespace

void check_collectives(const std::vector<std::string>& names) {
  const std::vector<std::string>& known = bench_names();
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(unknown_name("collective", name, known));
}

std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor) {
  if (smallest < 1.0) throw UsageError("the smallest message must have at least 1 byte");
  if (largest < smallest) throw UsageError("the largest message is smaller than the smallest");
  if (largest > 64.0 * kGibi) throw UsageError("the largest message must have at most 64 GiB");
  if (!(factor >= 1.01)) throw UsageError("the factor between sizes must be at least 1.01");
  std::vector<std::size_t> sizes;
  constexpr double kRounding = 1e-9;
  const auto steps = static_cast<int>(std::log(largest / smallest) / std::log(factor) + kRounding);
  for (int step = 0; step <= steps; ++step)
    sizes.push_back(static_cast<std::size_t>(std::llround(smallest * std::pow(factor, step))));
  return sizes;
}

std::vector<BenchRow> bench_collectives(RankSession& session, const BenchSettings& settings,
                                        const std::function<void(const std::string& now)>& on_sample) {
  Backend& backend = *session.backend;
  if (backend.world_size() < 2) throw UsageError("a bench of collectives needs at least 2 ranks");
  const std::vector<std::string>& names = settings.collectives.empty() ? bench_names() : settings.collectives;
  const std::size_t rounding = sizeof(float) * static_cast<std::size_t>(backend.world_size());
  const std::size_t largest = *std::max_element(settings.sizes.begin(), settings.sizes.end()) + rounding;
  const std::size_t region = MessageWalk::region_bytes(largest);
  const BenchArrays arrays{backend.memory(region), backend.memory(region)};
  std::vector<Bout> bouts;
  std::vector<BenchRow> rows;
  check_collectives(names);
  for (const std::string& name : names)
    for (const std::size_t size : settings.sizes) {
      const Bout bout(backend, arrays, name, size);
      const auto bytes = static_cast<double>(bout.bytes());
      if (!rows.empty() && rows.back().collective == name && rows.back().message_bytes == bytes)
        continue;  // two sizes that round up to the same
      bouts.push_back(bout);
      rows.push_back({.collective = name, .message_bytes = bytes});
    }
  const CoreSharing sharing = find_core_sharing(session);
  MachineWatch watch = sharing.watch(1);
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < bouts.size(); ++i) {
      bouts[i].clear();
      rows[i].wrong += bouts[i].check();
      watch.restart();
      const Cost sample = time_calls(backend, bouts[i], bouts[i].iterations(settings.iterations));
      rows[i].time_s.push_back(sample.time_s);
      rows[i].cpu_s.push_back(sample.cpu_s);
      const MachineState machine = look(session, sharing, watch, all_ranks(session), round);
      rows[i].machine.add(machine.probe_per_s, machine.taken);
      on_sample(bouts[i].collective() + " " + to_text(Bytes(rows[i].message_bytes)));
    }
  }
  combine(*session.control, rows);
  return rows;
}

}  // namespace stepcast

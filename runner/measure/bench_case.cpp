#include "runner/measure/bench_case.hpp"

#include <algorithm>
#include <ranges>

#include "core/ranges.hpp"
#include "core/units.hpp"
#include "runner/backend/ping_pong.hpp"

namespace stepcast {
/// A collective: how it is called, and the elements that it must give.
struct BenchKind {
  /// The arrays of one call: whole ones and this rank's part of each.
  struct Arrays {
    Array in, in_part, out, out_part;
  };
  /// Numbers on which the elements of a result depend.
  struct Place {
    std::size_t world, rank, part;
  };
  const char* name;
  bool in_place;        ///< the result is in the input array
  bool result_is_part;  ///< the result is one part
  int result_ranks;     ///< ranks that have a result, from 0 on; 0: all
  WorkPtr (*issue)(Backend& backend, const Arrays& arrays);
  float (*expected)(const Place& place, std::size_t i);
};

namespace {

/// Small whole numbers, so that sums over ranks are exact in float.
float known_value(std::size_t rank, std::size_t i) {
  constexpr std::size_t kPeriod = 13;
  return static_cast<float>((rank + 1) * (i % kPeriod + 1));
}
float known_sum(std::size_t world, std::size_t i) {
  return known_value(0, i) * static_cast<float>(world * (world + 1)) / 2.0F;
}

std::vector<Array> parts_of(const Backend& backend, const Array& whole, std::size_t part) {
  return transformed(whole_numbers(0, backend.rank() == 0 ? backend.world_size() : 0),
                     [&](int r) { return whole.part(r * part, part); });
}

float own_value(const BenchKind::Place& p, std::size_t i) { return known_value(i / p.part, i % p.part); }

using A = BenchKind::Arrays;
using Place = BenchKind::Place;
const std::vector<BenchKind> kKinds{
    {"send_recv", false, false, 2, nullptr,
     [](const Place& p, std::size_t i) { return known_value(1 - p.rank, i); }},
    {"all_reduce", true, false, 0, [](Backend& b, const A& a) { return b.all_reduce(a.in); },
     [](const Place& p, std::size_t i) { return known_sum(p.world, i); }},
    {"broadcast", true, false, 0, [](Backend& b, const A& a) { return b.broadcast(a.in, 0); },
     [](const Place& /*p*/, std::size_t i) { return known_value(0, i); }},
    {"gather", false, false, 1, [](Backend& b, const A& a) { return b.gather(a.in_part, a.out, 0); },
     own_value},
    {"scatter", false, true, 0,
     [](Backend& b, const A& a) { return b.scatter(parts_of(b, a.in, a.in_part.count), a.out_part, 0); },
     [](const Place& p, std::size_t i) { return known_value(0, p.rank * p.part + i); }},
    {"all_gather", false, false, 0, [](Backend& b, const A& a) { return b.all_gather(a.in_part, a.out); },
     own_value},
    {"reduce_scatter", false, true, 0,
     [](Backend& b, const A& a) { return b.reduce_scatter(a.in, a.out_part); },
     [](const Place& p, std::size_t i) { return known_sum(p.world, p.rank * p.part + i); }},
    {"all_to_all", false, false, 0, [](Backend& b, const A& a) { return b.all_to_all(a.in, a.out); },
     [](const Place& p, std::size_t i) { return known_value(i / p.part, p.rank * p.part + i % p.part); }},
};

const BenchKind& kind_of(const std::string& collective) {
  return *std::ranges::find_if(kKinds, [&](const BenchKind& kind) { return kind.name == collective; });
}

}  // namespace

BenchArrays bench_arrays(Backend& backend, std::size_t largest) {
  const std::size_t rounding = sizeof(float) * static_cast<std::size_t>(backend.world_size());
  const std::size_t region = MessageWalk::region_bytes(largest + rounding);
  return {backend.memory(region), backend.memory(region)};
}

BenchCase::BenchCase(Backend& backend, const BenchArrays& arrays, const std::string& collective,
                     std::size_t bytes)
    : backend_(backend),
      in_(arrays.in.get()),
      out_(arrays.out.get()),
      kind_(kind_of(collective)),
      world_(backend.world_size()),
      count_(message_bytes(collective, bytes, backend.world_size()) / sizeof(float)),
      part_(count_ / world_) {}

std::string BenchCase::name() const {
  return std::string(kind_.name) + " " + to_text(Bytes(static_cast<double>(bytes())));
}

int BenchCase::iterations(int requested) const {
  constexpr double kFew = 8.0, kMany = 100.0;
  if (requested > 0) return requested;
  return static_cast<int>(std::clamp(32.0 * kMebi / static_cast<double>(bytes()), kFew, kMany));
}

bool BenchCase::is_ping_pong() const { return kind_.issue == nullptr; }

std::vector<int> BenchCase::ranks() const {
  return is_ping_pong() ? std::vector<int>{0, 1} : std::vector<int>{};
}

void BenchCase::call(int times) {
  MessageWalk in(in_, count_, DataType::kFloat32), out(out_, count_, DataType::kFloat32);
  if (is_ping_pong()) return ping_pong(backend_, {0, 1}, in, out, times);
  for (int i = 0; i < times; ++i) issue(in.next(), out.next())->wait();
}

std::vector<WorkPtr> BenchCase::issue(int times) {
  MessageWalk in(in_, count_, DataType::kFloat32), out(out_, count_, DataType::kFloat32);
  return transformed(whole_numbers(0, times), [&](int) { return issue(in.next(), out.next()); });
}

WorkPtr BenchCase::issue(const Array& in, const Array& out) {
  return kind_.issue(backend_,
                     {in, {in.data, part_, DataType::kFloat32}, out, {out.data, part_, DataType::kFloat32}});
}

double BenchCase::check() {
  clear();
  std::vector<float> values(count_);
  for (std::size_t i = 0; i < count_; ++i) values[i] = known_value(rank(), i);
  backend_.copy(in_, values.data(), bytes());
  call(1);
  if (kind_.result_ranks > 0 && backend_.rank() >= kind_.result_ranks) return 0.0;
  values.resize(kind_.result_is_part ? part_ : count_);
  backend_.copy(values.data(), kind_.in_place ? in_ : out_, values.size() * sizeof(float));
  return sum_of(std::views::iota(std::size_t{0}, values.size()), [&](std::size_t i) {
    return values[i] == kind_.expected({world_, rank(), part_}, i) ? 0.0 : 1.0;
  });
}

void BenchCase::clear() {
  for (void* const array : {in_, out_}) backend_.clear(array, MessageWalk::region_bytes(bytes()));
}

Cost BenchCase::queued_calls(int times, DeviceStream& device) {
  std::vector<WorkPtr> works;
  Cost cost = cost_of(times, process_cpu_s, [&] {
    issue_blocked(device, [&] { works = issue(times + 1); });
    for (const WorkPtr& work : works) work->wait();
  });
  const std::chrono::duration<double> took = works.back()->ended() - works.front()->ended();
  cost.time_s = took.count() / times;
  return cost;
}

}  // namespace stepcast

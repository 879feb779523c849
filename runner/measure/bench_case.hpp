#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/backend/message_walk.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/execute/device_queue.hpp"
#include "runner/measure/cost.hpp"

namespace stepcast {

/// The arrays of a rank: for all collectives and sizes the same, so that memory makes no difference.
struct BenchArrays {
  std::shared_ptr<void> in, out;
};

/// One collective at one size: a call, and what the result must be. Every rank holds arrays of the whole
/// message.
class BenchCase {
 public:
  BenchCase(Backend& backend, const BenchArrays& arrays, std::string collective, std::size_t bytes)
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

  [[nodiscard]] bool is_ping_pong() const { return collective_ == "send_recv"; }

  void call(int times) {
    MessageWalk in(in_, count_, DataType::kFloat32);
    MessageWalk out(out_, count_, DataType::kFloat32);
    if (is_ping_pong()) return ping_pong(backend_, {0, 1}, in, out, times);
    for (int i = 0; i < times; ++i) issue(in.next(), out.next())->wait();
  }

  /// Issues them and waits for none. \pre no ping-pong
  std::vector<WorkPtr> issue(int times) {
    MessageWalk in(in_, count_, DataType::kFloat32);
    MessageWalk out(out_, count_, DataType::kFloat32);
    std::vector<WorkPtr> works;
    for (int i = 0; i < times; ++i) works.push_back(issue(in.next(), out.next()));
    return works;
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
  WorkPtr issue(const Array& whole, const Array& whole_out) {
    const Array part{whole.data, part_, DataType::kFloat32};
    const Array part_out{whole_out.data, part_, DataType::kFloat32};
    if (collective_ == "all_reduce") return backend_.all_reduce(whole);
    if (collective_ == "broadcast") return backend_.broadcast(whole, 0);
    if (collective_ == "gather") return backend_.gather(part, whole_out, 0);
    if (collective_ == "all_gather") return backend_.all_gather(part, whole_out);
    if (collective_ == "reduce_scatter") return backend_.reduce_scatter(whole, part_out);
    if (collective_ == "all_to_all") return backend_.all_to_all(whole, whole_out);
    return backend_.scatter(parts_of(whole), part_out, 0);
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

/// Calls behind each other on a device, by its clock: from the end of one more call before them, where all ranks have met.
/// \pre no ping-pong
Cost time_queued_calls(BenchCase& bench_case, int iterations, DeviceQueue& device);

}  // namespace stepcast

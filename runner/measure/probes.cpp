#include "runner/measure/probes.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "runner/measure/sampler.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kMessageTag = 0xFFFF'FD00;
constexpr const char* kRingPair = "ring_pair";
constexpr std::size_t kStreamMessage = std::size_t{1} << 20U;  ///< gloo's largest segment

/// Calls per sample: enough for some milliseconds, few for large sizes.
int repetitions(std::size_t bytes, double bytes_per_sample, int most, int least = 2) {
  return static_cast<int>(std::clamp(bytes_per_sample / static_cast<double>(bytes),
                                     static_cast<double>(least), static_cast<double>(most)));
}

/// A matrix multiplication of fixed size as a plain loop, bound by arithmetic, with all data in the core's
/// own caches. One thread.
class ComputeProbe {
 public:
  /// One unit of work: c = a * b, 192 x 192 floats, 14 Mflop.
  void run() {
    for (int i = 0; i < kOrder; ++i)
      for (int k = 0; k < kOrder; ++k)
        for (int j = 0; j < kOrder; ++j)
          c_[i * kOrder + j] = (k == 0 ? 0.0F : c_[i * kOrder + j]) + a_[i * kOrder + k] * b_[k * kOrder + j];
  }

 private:
  static constexpr int kOrder = 192;
  static constexpr std::size_t kFloats = std::size_t{kOrder} * kOrder;
  std::vector<float> a_ = std::vector(kFloats, 0.5F);
  std::vector<float> b_ = std::vector(kFloats, 0.25F);
  std::vector<float> c_ = std::vector(kFloats, 0.0F);
};

/// Streams three arrays of 96 MiB, c = a + s * b, which exceed a core's own caches. A shared cache of
/// hundreds of megabytes may hold them; training then streams from it, too.
class MemoryProbe {
 public:
  /// One unit of work: the next sixteenth of the arrays.
  void run() {
    constexpr std::size_t kLanes = 16;
    const float* __restrict a = a_.data() + next_ * kPiece;
    const float* __restrict b = b_.data() + next_ * kPiece;
    float* __restrict c = c_.data() + next_ * kPiece;
    // A fixed inner length lets the compiler use vectors without a remainder.
    for (std::size_t i = 0; i < kPiece; i += kLanes)
      for (std::size_t lane = 0; lane < kLanes; ++lane) c[i + lane] = a[i + lane] + 3.0F * b[i + lane];
    next_ = (next_ + 1) % kPieces;
  }

  static constexpr std::size_t kFloats = std::size_t{24} << 20U;  // 96 MiB
  static constexpr std::size_t kPieces = 16, kPiece = kFloats / kPieces;
  /// Bytes read and written by one unit, without the read-for-ownership of c.
  static constexpr double kBytesPerUnit = 3.0 * kPiece * sizeof(float);

 private:
  std::vector<float> a_ = std::vector(kFloats, 1.0F);
  std::vector<float> b_ = std::vector(kFloats, 2.0F);
  std::vector<float> c_ = std::vector(kFloats, 0.0F);
  std::size_t next_ = 0;
};

class Prober {
 public:
  Prober(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings)
      : session_(session), backend_(*session.backend), factory_(factory), settings_(settings) {
    const std::size_t bytes = std::max(
        {32 * kStreamMessage, MessageWalk::region_bytes(largest_of(settings.message_sizes, std::identity())),
         largest_of(settings.array_sizes, std::identity())});
    out_ = backend_.memory(bytes);
    in_ = backend_.memory(bytes);
    std::fill_n(static_cast<float*>(out_.get()), bytes / sizeof(float), 1.0F);
    for (const ProbedPair& pair : settings.pairs) add_messages(pair);
    add_work();
    sampler_.emplace(
        session, cases_,
        SamplerSettings{settings.rounds, settings.budget_s, kThreadsPerRank, settings.shaped_links});
  }

  Sampler& sampler() { return *sampler_; }

  /// Warms caches, connections and clocks up, and measures the cost of every probe.
  void warm_up() {
    std::map<double, std::vector<std::size_t>> by_size;
    for (std::size_t i = 0; i < cases_.size(); ++i) by_size[size_of(cases_[i])].push_back(i);
    for (const auto& [bytes, cases] : by_size) {
      if (largest_given_up_ > 0.0 || !affords(bytes, cases)) {
        if (largest_given_up_ == 0.0) largest_given_up_ = bytes;
        for (const std::size_t i : cases) sampler_->give_up(i);
        continue;
      }
      for (const std::size_t i : cases) sampler_->run(i);
      sampler_->settle();
    }
    require_range();
    sampler_->forget();
  }

  [[nodiscard]] ProbedSamples result() const {
    ProbedSamples all;
    for (std::size_t i = 0; i < cases_.size(); ++i)
      if (!sampler_->set(i).time_s.empty()) all.sets.push_back(sampler_->set(i));
    std::ranges::stable_sort(
        all.sets, {}, [](const SampleSet& one) { return std::tie(one.probe, one.path_class, one.bytes); });
    all.sampling.budget_s = settings_.budget_s;
    all.sampling.spent_s = sampler_->spent_s();
    all.sampling.wanted = sampler_->wanted();
    all.sampling.largest_bytes_given_up = largest_given_up_;
    return all;
  }

 private:
  using Ranks = std::vector<int>;

  static constexpr int kThreadsPerRank = 2;  ///< computing, communicating
  static constexpr int kComputeWindows = 2;
  static constexpr double kLeastRange = 64.0 * kKibi;  ///< sizes without which there is no calibration
  static constexpr std::size_t kLargestHandedOver = std::size_t{16} << 10U;

  [[nodiscard]] bool has_ring() const { return settings_.ring.size() > 2; }

  /// Size of a probe of messages or arrays, which is measured for many sizes; 0 for all others.
  static double size_of(const SampledCase& one) {
    const bool is_message = !one.path_class.empty() && one.name != kRingPair;
    return is_message || one.name == "reduce" || one.name == "copy" ? one.bytes : 0.0;
  }

  void add_messages(const ProbedPair& pair) {
    const Ranks both{pair.ranks.first, pair.ranks.second};
    const auto message = [&](const char* name, std::size_t size, Cost (Prober::*work)(std::size_t bytes)) {
      cases_.push_back({.name = name,
                        .bytes = static_cast<double>(size),
                        .work =
                            [this, size, work, ranks = pair.ranks] {
                              pair_ = ranks;
                              return (this->*work)(size);
                            },
                        .ranks = both,
                        .path_class = pair.path_class});
    };
    for (const std::size_t size : settings_.message_sizes) {
      message("ping_pong", size, &Prober::half_round_trip);
      message("rendezvous", size, &Prober::one_way<false>);
      message("exchange", size, &Prober::exchange);
      if (size <= kLargestHandedOver) message("handed_over", size, &Prober::one_way<true>);
    }
    if (has_ring() && pair.path_class != kSameHost)
      cases_.push_back({.name = kRingPair,
                        .bytes = kStreamMessage,
                        .work = [this, both] { return ring(both); },
                        .ranks = both,
                        .path_class = pair.path_class});
  }

  /// Work that ranks do at once takes the mean time, which preserves the total throughput.
  void add_work() {
    if (has_ring())
      cases_.push_back({.name = "ring_all",
                        .bytes = kStreamMessage,
                        .work = [this] { return ring(settings_.ring); },
                        .ranks = settings_.ring});
    const Ranks first{0}, here = settings_.sharing_ranks;
    const auto work = [&](const char* name, double bytes, const Ranks& ranks, auto of, int windows = 1) {
      cases_.push_back({.name = name,
                        .bytes = bytes,
                        .work = [this, ranks, of] { return together(ranks, of); },
                        .ranks = ranks,
                        .takes_slowest = false,
                        .windows = windows,
                        .alone = true});
    };
    for (const std::size_t size : settings_.array_sizes) {
      work("reduce", static_cast<double>(size), first, [this, size] { return reduction(size); });
      work("copy", static_cast<double>(size), first, [this, size] { return copy(size); });
    }
    const auto stream = [this] { return window(memory_); };
    const auto compute = [this] { return window(compute_); };
    work("memory_one", MemoryProbe::kBytesPerUnit, first, stream);
    work("memory_all", MemoryProbe::kBytesPerUnit, here, stream);
    work("compute_one", 0.0, first, compute, kComputeWindows);
    if (backend_.world_size() == 1) return;
    work("compute_all", 0.0, here, compute, kComputeWindows);
    // Alone, ranks of other hosts do the same.
    const Ranks ranks = here.size() > 1 ? here : all_ranks(session_.ranks.world_size);
    cases_.push_back(
        {.name = "compute_beside_communication",
         .work = [this, ranks] { return together(ranks, [&] { return compute_beside(ranks); }); },
         .ranks = here,
         .takes_slowest = false});
  }

  /// Time of a round of a case that did not run yet: that of the next smaller size times the ratio of the
  /// sizes. 0 for the smallest size.
  [[nodiscard]] double expected_s(const SampledCase& one) const {
    double bytes = 0.0, seconds = 0.0;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const SampledCase& other = cases_[i];
      if (other.name != one.name || other.path_class != one.path_class) continue;
      if (other.bytes >= one.bytes || other.bytes <= bytes) continue;
      bytes = other.bytes;
      seconds = sampler_->round_s(i) * one.bytes / bytes;
    }
    return seconds;
  }

  /// True if the budget lasts for a warm-up and the fewest rounds of one more size, or if that adds less than
  /// a tenth to a round. Sizes of the least range are measured until the budget is spent: first samples of
  /// small messages are slow.
  [[nodiscard]] bool affords(double bytes, const std::vector<std::size_t>& cases) const {
    constexpr double kLittle = 0.1;
    if (bytes <= kLeastRange) return bytes == 0.0 || sampler_->left_s() > 0.0;
    double round_s = 0.0, next_s = 0.0;
    for (std::size_t i = 0; i < cases_.size(); ++i) round_s += sampler_->round_s(i);
    for (const std::size_t i : cases) next_s += expected_s(cases_[i]);
    return next_s <= kLittle * round_s || next_s + kFewestSamples * (round_s + next_s) <= sampler_->left_s();
  }

  /// \throws RunError if too few sizes are measured for a calibration. Equal on all ranks.
  void require_range() const {
    if (largest_given_up_ == 0.0 || largest_given_up_ > kLeastRange) return;
    throw RunError(
        "--budget {} was spent before messages and arrays of {}; a calibration needs those of up to {}. "
        "Raise --budget, or calibrate on an idle machine",
        to_text(Seconds(settings_.budget_s)), to_text(Bytes(largest_given_up_)), to_text(Bytes(kLeastRange)));
  }

  /// Runs `work` on `ranks` at once while the others wait without using a core.
  template <class Work>
  Cost together(const Ranks& ranks, const Work& work) {
    backend_.barrier();
    const bool takes_part = std::ranges::find(ranks, backend_.rank()) != ranks.end();
    const Cost cost = takes_part ? work() : Cost{};
    backend_.barrier();
    return cost;
  }

  MessageWalk outgoing_walk(std::size_t bytes) { return {out_.get(), bytes, DataType::kUInt8}; }
  MessageWalk incoming_walk(std::size_t bytes) { return {in_.get(), bytes, DataType::kUInt8}; }

  /// Cost of one of `messages` that `work` moves on the two ranks of the pair.
  template <class Work>
  Cost per_message(int messages, Work work) {
    backend_.barrier();
    return pair_.has(backend_.rank()) ? cost_of(messages, process_cpu_s, work) : Cost{};
  }

  Cost half_round_trip(std::size_t bytes) {
    const int trips = repetitions(bytes, 4.0 * kMebi, 60, 1);
    MessageWalk out = outgoing_walk(bytes), in = incoming_walk(bytes);
    ping_pong(backend_, pair_, out, in, 1);
    return per_message(2 * trips, [&] { ping_pong(backend_, pair_, out, in, trips); });
  }

  /// The first rank sends messages to the second, one after the other. \tparam handed_over each call is
  /// submitted to the communication thread and waited for, as collectives are
  template <bool handed_over>
  Cost one_way(std::size_t bytes) {
    const int messages = repetitions(bytes, 8.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes), in = incoming_walk(bytes);
    const auto pass = [&] {
      const WorkPtr work = backend_.rank() == pair_.first
                               ? backend_.send(out.next(), pair_.second, kMessageTag)
                               : backend_.recv(in.next(), pair_.first, kMessageTag);
      work->wait();
    };
    return per_message(messages, [&] {
      for (int i = 0; i < messages; ++i) handed_over ? backend_.submit(pass)->wait() : pass();
    });
  }

  /// Both ranks send to each other without a pause, two messages in flight each way, as the segments of a
  /// ring.
  Cost exchange(std::size_t bytes) {
    const int messages = repetitions(bytes, 8.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes), in = incoming_walk(bytes);
    return per_message(messages, [&] {
      constexpr std::size_t kCallsInFlight = 4;
      const int peer = pair_.peer_of(backend_.rank());
      std::deque<WorkPtr> works;
      for (int i = 0; i < messages; ++i) {
        works.push_back(backend_.recv(in.next(), peer, kMessageTag));
        works.push_back(backend_.send(out.next(), peer, kMessageTag));
        for (; works.size() > kCallsInFlight; works.pop_front()) works.front()->wait();
      }
      for (const WorkPtr& work : works) work->wait();
    });
  }

  Cost reduction(std::size_t bytes) {
    MessageWalk into = incoming_walk(bytes);
    const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float));
    return per_array(bytes, [&] {
      return [this, to = static_cast<float*>(into.next().data), count] {
        factory_.add(to, static_cast<const float*>(out_.get()), count);
      };
    });
  }

  Cost copy(std::size_t bytes) {
    MessageWalk to = incoming_walk(bytes), from = outgoing_walk(bytes);
    const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float));
    return per_array(bytes, [&] {
      return settings_.prepare_copy(static_cast<float*>(to.next().data),
                                    static_cast<float*>(from.next().data), 0.5F, count);
    });
  }

  /// Cost of one array, over several walks through the memory.
  template <class Prepare>
  Cost per_array(std::size_t bytes, Prepare prepare) {
    std::vector<std::function<void()>> work;
    for (std::size_t i = 0; i < MessageWalk::region_bytes(bytes) / bytes; ++i) work.push_back(prepare());
    const int walks = repetitions(bytes * work.size(), 32.0 * kMebi, 60);
    for (const auto& one : work) one();
    return cost_alone(walks * static_cast<double>(work.size()), [&] {
      for (int walk = 0; walk < walks; ++walk)
        for (const auto& one : work) one();
    });
  }

  /// Repeats a unit of work for a fixed time, so that ranks that start together also work concurrently. The
  /// first part is not counted: cores of a virtual machine that woke up together were 1.4 times slower for
  /// some 20 ms than the same cores kept busy, as training keeps them.
  template <class Probe>
  static Cost window(Probe& probe) {
    constexpr double kLead = 0.1, kWindow = 0.1;
    repeat(probe, within(kLead));
    int units = 0;
    const Cost all = cost_alone(1, [&] { units = repeat(probe, within(kWindow)); });
    return {all.time_s / units, all.cpu_s / units, all.queued_s / units};
  }

  static std::function<bool()> within(double seconds) {
    return [until = wall_clock_s() + seconds] { return wall_clock_s() < until; };
  }

  /// \returns number of units
  template <class Probe, class Go>
  static int repeat(Probe& probe, Go go) {
    int units = 0;
    do {
      probe.run();
      ++units;
    } while (go());
    return units;
  }

  /// Every rank of `ranks` passes 1 MiB messages to the next one and receives those of the previous one. Per
  /// message.
  Cost ring(const Ranks& ranks) {
    constexpr int kMessages = 16;
    return together(ranks, [&] {
      pass_on(ranks, 1);  // wakes the connections up
      return cost_of(kMessages, process_cpu_s, [&] { pass_on(ranks, kMessages); });
    });
  }

  /// Computes while a second thread exchanges messages with adjacent ranks of a ring.
  Cost compute_beside(const Ranks& ranks) {
    constexpr int kMessages = 40;
    constexpr double kLead = 0.1;
    repeat(compute_, within(kLead));
    auto communication = std::async(std::launch::async, [&] { pass_on(ranks, kMessages); });
    int units = 0;
    const Cost all = cost_of(1, thread_cpu_s, [&] {
      units = repeat(compute_, [&] {
        return communication.wait_for(std::chrono::seconds{0}) != std::future_status::ready;
      });
    });
    communication.get();
    return {all.time_s / units, all.cpu_s / units};
  }

  void pass_on(const Ranks& ranks, int messages) {
    const auto own = static_cast<std::size_t>(std::ranges::find(ranks, backend_.rank()) - ranks.begin());
    const int to = ranks[(own + 1) % ranks.size()], from = ranks[(own + ranks.size() - 1) % ranks.size()];
    MessageWalk out = outgoing_walk(kStreamMessage), in = incoming_walk(kStreamMessage);
    for (int i = 0; i < messages; ++i) {
      const WorkPtr received = backend_.recv(in.next(), from, kMessageTag);
      const WorkPtr sent = backend_.send(out.next(), to, kMessageTag);
      received->wait();
      sent->wait();
    }
  }

  RankSession& session_;
  Backend& backend_;
  const BackendFactory& factory_;
  const ProbeSettings& settings_;
  std::shared_ptr<void> out_, in_;
  ComputeProbe compute_;
  MemoryProbe memory_;
  RankPair pair_;  ///< whose messages are measured now
  std::vector<SampledCase> cases_;
  std::optional<Sampler> sampler_;
  double largest_given_up_ = 0.0;
};

}  // namespace

ProbedSamples run_probes(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings,
                         const std::function<void(const std::string& now)>& on_round) {
  Prober prober(session, factory, settings);
  prober.warm_up();
  on_round("warm-up");
  prober.sampler().run_rounds(nullptr, on_round);
  while (settings.repeats && prober.sampler().repeat()) on_round("repeating samples with interference");
  return prober.result();
}

}  // namespace stepcast

#include "runner/probes.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "runner/clocks.hpp"
#include "runner/host_probes.hpp"
#include "runner/message_walk.hpp"
#include "runner/ping_pong.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kMessageTag = 0xFFFF'FD00;
constexpr std::size_t kStreamMessage = std::size_t{1} << 20U;  ///< gloo's largest segment

/// Calls per sample so that a sample takes some milliseconds, and large ones are not repeated needlessly.
int repetitions(std::size_t bytes, double bytes_per_sample, int most) {
  return static_cast<int>(
      std::clamp(bytes_per_sample / static_cast<double>(bytes), 2.0, static_cast<double>(most)));
}

struct Cost {
  double time_s = 0.0;
  double cpu_s = 0.0;
};

class Prober {
 public:
  Prober(Backend& backend, const BackendFactory& factory, const ProbeSettings& settings)
      : backend_(backend), factory_(factory), settings_(settings) {
    const auto largest = [](const std::vector<std::size_t>& sizes) {
      return sizes.empty() ? std::size_t{0} : *std::max_element(sizes.begin(), sizes.end());
    };
    const std::size_t bytes =
        std::max({32 * kStreamMessage, MessageWalk::region_bytes(largest(settings.message_sizes)),
                  largest(settings.array_sizes)});
    out_ = AlignedFloats(bytes / sizeof(float), 1.0F);
    in_ = AlignedFloats(bytes / sizeof(float), 0.0F);
  }

  void round() {
    if (backend_.world_size() > 1)
      for (const std::size_t size : settings_.message_sizes) {
        record("ping_pong", size, Over::kPair, half_round_trip(size));
        record("rendezvous", size, Over::kPair, one_way(size));
        record("exchange", size, Over::kPair, exchange(size));
        if (size <= kLargestHandedOver) record("handed_over", size, Over::kPair, handed_over(size));
      }
    for (const std::size_t size : settings_.array_sizes) {
      record("reduce", size, Over::kFirst, alone([&] { return reduction(size); }));
      record("copy", size, Over::kFirst, alone([&] { return copy(size); }));
    }
    const auto unit = static_cast<std::size_t>(MemoryProbe::bytes_per_unit());
    record("memory_one", unit, Over::kFirst, alone([&] { return window(memory_); }));
    record("memory_all", unit, Over::kAll, together([&] { return window(memory_); }));
    for (int i = 0; i < kComputeWindows; ++i) {
      record("compute_one", 0, Over::kFirst, alone([&] { return window(compute_); }));
      if (backend_.world_size() > 1)
        record("compute_all", 0, Over::kAll, together([&] { return window(compute_); }));
    }
    if (backend_.world_size() > 1) beside_communication();
  }

  /// Forgets what was measured so far: the first round warms caches, connections and clocks up.
  void forget() { sets_.clear(); }

  [[nodiscard]] std::vector<SampleSet> samples() const {
    std::vector<SampleSet> result;
    for (const auto& [key, set] : sets_) result.push_back(set);
    return result;
  }

 private:
  static constexpr int kComputeWindows = 4;
  static constexpr std::size_t kLargestHandedOver = std::size_t{16} << 10U;
  enum class Over { kFirst, kPair, kAll };  ///< the ranks whose measurements count

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(backend_.rank()); }

  /// Merges the measurements of the ranks into one sample. Messages take as long as for the slowest; work
  /// that ranks do side by side takes the mean, so that total throughput is kept.
  void record(const std::string& probe, std::size_t bytes, Over over, Cost own) {
    const auto world = static_cast<std::size_t>(backend_.world_size());
    std::vector<double> mine{own.time_s, own.cpu_s};
    std::vector<double> all(2 * world);
    backend_.all_gather({mine.data(), 2, DataType::kFloat64}, {all.data(), all.size(), DataType::kFloat64})
        ->wait();
    const std::size_t ranks = over == Over::kFirst ? 1 : over == Over::kPair ? 2 : world;
    Cost merged;
    double slowest = 0.0;
    for (std::size_t r = 0; r < ranks; ++r) {
      merged.time_s += all[2 * r] / static_cast<double>(ranks);
      merged.cpu_s += all[2 * r + 1] / static_cast<double>(ranks);
      slowest = std::max(slowest, all[2 * r]);
    }
    SampleSet& set = sets_[{probe, bytes}];
    set.probe = probe;
    set.bytes = static_cast<double>(bytes);
    set.time_s.push_back(over == Over::kPair ? slowest : merged.time_s);
    set.cpu_s.push_back(merged.cpu_s);
  }

  /// Runs `work` on rank 0 while the others wait without using a processor.
  template <class Work>
  Cost alone(Work work) {
    backend_.barrier();
    const Cost cost = rank() == 0 ? work() : Cost{};
    backend_.barrier();
    return cost;
  }

  template <class Work>
  Cost together(Work work) {
    backend_.barrier();
    const Cost cost = work();
    backend_.barrier();
    return cost;
  }

  MessageWalk outgoing_walk(std::size_t bytes) { return {out_.data(), bytes, DataType::kUInt8}; }
  MessageWalk incoming_walk(std::size_t bytes) { return {in_.data(), bytes, DataType::kUInt8}; }

  /// Time and processor time of one of `messages` that `work` moves.
  template <class Work>
  Cost per_message(int messages, Work work) {
    backend_.barrier();
    const double cpu = process_cpu_s();
    const double begin = wall_clock_s();
    if (rank() < 2) work();
    return {(wall_clock_s() - begin) / messages, (process_cpu_s() - cpu) / messages};
  }

  Cost half_round_trip(std::size_t bytes) {
    const int trips = repetitions(bytes, 16.0 * kMebi, 60);
    MessageWalk out = outgoing_walk(bytes);
    MessageWalk in = incoming_walk(bytes);
    ping_pong(backend_, out, in, 1);
    return per_message(2 * trips, [&] { ping_pong(backend_, out, in, trips); });
  }

  /// Rank 0 sends messages to rank 1, one after the other; a receive is posted when the message before it is
  /// there.
  Cost one_way(std::size_t bytes) {
    const int messages = repetitions(bytes, 32.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes);
    MessageWalk in = incoming_walk(bytes);
    return per_message(messages, [&] {
      for (int i = 0; i < messages; ++i) send_or_receive(out, in)->wait();
    });
  }

  /// The same, but each call is handed to the communication thread and waited for, as collectives are.
  Cost handed_over(std::size_t bytes) {
    const int messages = repetitions(bytes, 32.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes);
    MessageWalk in = incoming_walk(bytes);
    return per_message(messages, [&] {
      for (int i = 0; i < messages; ++i) backend_.submit([&] { send_or_receive(out, in)->wait(); })->wait();
    });
  }

  WorkPtr send_or_receive(MessageWalk& out, MessageWalk& in) {
    return rank() == 0 ? backend_.send(out.next(), 1, kMessageTag) : backend_.recv(in.next(), 0, kMessageTag);
  }

  /// Ranks 0 and 1 send to each other without a pause, two messages in flight each way, as the segments of a
  /// ring. Per message of one way.
  Cost exchange(std::size_t bytes) {
    const int messages = repetitions(bytes, 32.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes);
    MessageWalk in = incoming_walk(bytes);
    return per_message(messages, [&] {
      constexpr std::size_t kCallsInFlight = 4;
      const int peer = 1 - backend_.rank();
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
      return
          [this, to = static_cast<float*>(into.next().data), count] { factory_.add(to, out_.data(), count); };
    });
  }

  Cost copy(std::size_t bytes) {
    MessageWalk to = incoming_walk(bytes);
    MessageWalk from = outgoing_walk(bytes);
    const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float));
    return per_array(bytes, [&] {
      return settings_.prepare_copy(static_cast<float*>(to.next().data),
                                    static_cast<float*>(from.next().data), 0.5F, count);
    });
  }

  /// Time of one array: all that one walk through the memory meets, several times over.
  template <class Prepare>
  Cost per_array(std::size_t bytes, Prepare prepare) {
    std::vector<std::function<void()>> work;
    for (std::size_t i = 0; i < MessageWalk::region_bytes(bytes) / bytes; ++i) work.push_back(prepare());
    const int walks = repetitions(bytes * work.size(), 32.0 * kMebi, 60);
    for (const auto& one : work) one();
    const double cpu = thread_cpu_s();
    const double begin = wall_clock_s();
    for (int walk = 0; walk < walks; ++walk)
      for (const auto& one : work) one();
    const double arrays = walks * static_cast<double>(work.size());
    return {(wall_clock_s() - begin) / arrays, (thread_cpu_s() - cpu) / arrays};
  }

  /// Repeats a unit of work for a fixed time, so that ranks that start together also work side by side all
  /// the time.
  template <class Probe>
  Cost window(Probe& probe) {
    constexpr double kWindow = 0.02;
    return repeat(probe, [until = wall_clock_s() + kWindow] { return wall_clock_s() < until; });
  }

  template <class Probe, class Go>
  static Cost repeat(Probe& probe, Go go) {
    int units = 0;
    const double cpu = thread_cpu_s();
    const double begin = wall_clock_s();
    do {
      probe.run();
      ++units;
    } while (go());
    return {(wall_clock_s() - begin) / units, (thread_cpu_s() - cpu) / units};
  }

  /// Every rank computes while a second thread exchanges messages with the neighbours in a ring.
  void beside_communication() {
    constexpr int kMessages = 40;
    const int world = backend_.world_size();
    std::atomic<bool> done{false};
    Cost messages;
    backend_.barrier();
    const double cpu = process_cpu_s();
    std::exception_ptr error;
    std::thread communication([&] {
      try {
        const double begin = wall_clock_s();
        pass_on((backend_.rank() + 1) % world, (backend_.rank() + world - 1) % world, kMessages);
        messages.time_s = (wall_clock_s() - begin) / kMessages;
      } catch (...) {
        error = std::current_exception();
      }
      done = true;
    });
    const double own = thread_cpu_s();
    const Cost compute = repeat(compute_, [&] { return !done.load(std::memory_order_relaxed); });
    const double computing = thread_cpu_s() - own;
    communication.join();
    if (error) std::rethrow_exception(error);
    messages.cpu_s = (process_cpu_s() - cpu - computing) / (2.0 * kMessages);
    record("compute_beside_communication", 0, Over::kAll, compute);
    record("communication_beside_compute", kStreamMessage, Over::kAll, messages);
  }

  void pass_on(int to, int from, int messages) {
    MessageWalk out = outgoing_walk(kStreamMessage);
    MessageWalk in = incoming_walk(kStreamMessage);
    for (int i = 0; i < messages; ++i) {
      const WorkPtr received = backend_.recv(in.next(), from, kMessageTag);
      const WorkPtr sent = backend_.send(out.next(), to, kMessageTag);
      received->wait();
      sent->wait();
    }
  }

  Backend& backend_;
  const BackendFactory& factory_;
  const ProbeSettings& settings_;
  AlignedFloats out_{1, 0.0F}, in_{1, 0.0F};
  ComputeProbe compute_;
  MemoryProbe memory_;
  std::map<std::pair<std::string, std::size_t>, SampleSet> sets_;
};

}  // namespace

std::vector<SampleSet> run_probes(Backend& backend, const BackendFactory& factory,
                                  const ProbeSettings& settings,
                                  const std::function<void(const std::string& now)>& on_round) {
  Prober prober(backend, factory, settings);
  prober.round();
  prober.forget();
  on_round("warm-up");
  for (int round = 0; round < settings.rounds; ++round) {
    prober.round();
    on_round("round " + std::to_string(round + 1));
  }
  return prober.samples();
}

}  // namespace stepcast

#include "runner/measure/probes.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>

#include "runner/backend/message_walk.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/measure/cost.hpp"
#include "runner/measure/host_probes.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kMessageTag = 0xFFFF'FD00;
constexpr std::size_t kStreamMessage = std::size_t{1} << 20U;  ///< gloo's largest segment

/// Calls per sample so that a sample takes some milliseconds, and large ones are not repeated needlessly.
int repetitions(std::size_t bytes, double bytes_per_sample, int most) {
  return static_cast<int>(
      std::clamp(bytes_per_sample / static_cast<double>(bytes), 2.0, static_cast<double>(most)));
}

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
    for (const ProbedPair& pair : settings_.pairs) messages(pair);
    if (has_ring()) record_slowest("ring_all", kStreamMessage, "", settings_.ring, ring(settings_.ring));
    const std::vector<int>& here = settings_.sharing_ranks;
    for (const std::size_t size : settings_.array_sizes) {
      record_mean("reduce", size, {0}, together({0}, [&] { return reduction(size); }));
      record_mean("copy", size, {0}, together({0}, [&] { return copy(size); }));
    }
    const auto unit = static_cast<std::size_t>(MemoryProbe::bytes_per_unit());
    record_mean("memory_one", unit, {0}, together({0}, [&] { return window(memory_); }));
    record_mean("memory_all", unit, here, together(here, [&] { return window(memory_); }));
    for (int i = 0; i < kComputeWindows; ++i) {
      record_mean("compute_one", 0, {0}, together({0}, [&] { return window(compute_); }));
      if (backend_.world_size() > 1)
        record_mean("compute_all", 0, here, together(here, [&] { return window(compute_); }));
    }
    if (backend_.world_size() > 1) beside_communication();
  }

  /// Forgets what was measured so far: the first round warms caches, connections and clocks up.
  void forget() { notes_.clear(); }

  /// What all ranks noted, sample by sample.
  [[nodiscard]] std::vector<SampleSet> samples(ControlPlane& control) const {
    std::vector<double> mine;
    for (const Note& note : notes_) mine.insert(mine.end(), {note.own.time_s, note.own.cpu_s});
    const auto all = control.all_gather_numbers("probes", mine);
    std::map<std::tuple<std::string, std::string, std::size_t>, SampleSet> sets;
    for (std::size_t i = 0; i < notes_.size(); ++i) {
      const Note& note = notes_[i];
      const auto count = static_cast<double>(note.ranks.size());
      double mean_s = 0.0, slowest_s = 0.0, cpu_s = 0.0;
      for (const int rank : note.ranks) {
        const std::vector<double>& theirs = all[static_cast<std::size_t>(rank)];
        mean_s += theirs[2 * i] / count;
        slowest_s = std::max(slowest_s, theirs[2 * i]);
        cpu_s += theirs[2 * i + 1] / count;
      }
      SampleSet& set = sets[{note.probe, note.path_class, note.bytes}];
      set.probe = note.probe;
      set.path_class = note.path_class;
      set.bytes = static_cast<double>(note.bytes);
      set.time_s.push_back(note.takes_slowest ? slowest_s : mean_s);
      set.cpu_s.push_back(cpu_s);
    }
    std::vector<SampleSet> result;
    for (auto& [key, set] : sets) result.push_back(std::move(set));
    return result;
  }

 private:
  using Ranks = std::vector<int>;

  /// One sample, as this rank saw it; equal on all ranks but for `own`.
  struct Note {
    std::string probe, path_class;
    std::size_t bytes = 0;
    Ranks ranks;  ///< that take part
    bool takes_slowest = false;
    Cost own;
  };

  static constexpr int kComputeWindows = 4;
  static constexpr std::size_t kLargestHandedOver = std::size_t{16} << 10U;

  [[nodiscard]] bool among(const Ranks& ranks) const {
    return std::find(ranks.begin(), ranks.end(), backend_.rank()) != ranks.end();
  }
  [[nodiscard]] bool has_ring() const { return settings_.ring.size() > 2; }

  void messages(const ProbedPair& pair) {
    pair_ = pair.ranks;
    const Ranks both{pair_.first, pair_.second};
    const auto add = [&](const char* probe, std::size_t size, Cost own) {
      record_slowest(probe, size, pair.path_class, both, own);
    };
    for (const std::size_t size : settings_.message_sizes) {
      add("ping_pong", size, half_round_trip(size));
      add("rendezvous", size, one_way(size, false));
      add("exchange", size, exchange(size));
      if (size <= kLargestHandedOver) add("handed_over", size, one_way(size, true));
    }
    if (has_ring() && pair.path_class != kSameHost) add("ring_pair", kStreamMessage, ring(both));
  }

  /// Messages take as long as for the slowest of `ranks`.
  void record_slowest(const std::string& probe, std::size_t bytes, const std::string& path_class,
                      const Ranks& ranks, Cost own) {
    notes_.push_back({probe, path_class, bytes, ranks, true, own});
  }

  /// Work that ranks do side by side takes the mean, so that total throughput is kept.
  void record_mean(const std::string& probe, std::size_t bytes, const Ranks& ranks, Cost own) {
    notes_.push_back({probe, "", bytes, ranks, false, own});
  }

  /// Runs `work` on `ranks` at once while the others wait without using a processor.
  template <class Work>
  Cost together(const Ranks& ranks, Work work) {
    backend_.barrier();
    const Cost cost = among(ranks) ? work() : Cost{};
    backend_.barrier();
    return cost;
  }

  MessageWalk outgoing_walk(std::size_t bytes) { return {out_.data(), bytes, DataType::kUInt8}; }
  MessageWalk incoming_walk(std::size_t bytes) { return {in_.data(), bytes, DataType::kUInt8}; }

  /// Time and processor time of one of `messages` that `work` moves on the two ranks of the pair.
  template <class Work>
  Cost per_message(int messages, Work work) {
    backend_.barrier();
    if (!pair_.has(backend_.rank())) return {};
    return cost_of(messages, process_cpu_s, work);
  }

  Cost half_round_trip(std::size_t bytes) {
    const int trips = repetitions(bytes, 16.0 * kMebi, 60);
    MessageWalk out = outgoing_walk(bytes), in = incoming_walk(bytes);
    ping_pong(backend_, pair_, out, in, 1);
    return per_message(2 * trips, [&] { ping_pong(backend_, pair_, out, in, trips); });
  }

  /// The first rank sends messages to the second, one after the other; a receive is posted when the message
  /// before it is there. \param handed_over each call is handed to the communication thread and waited for, as
  /// collectives are
  Cost one_way(std::size_t bytes, bool handed_over) {
    const int messages = repetitions(bytes, 32.0 * kMebi, 120);
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
  /// ring. Per message of one way.
  Cost exchange(std::size_t bytes) {
    const int messages = repetitions(bytes, 32.0 * kMebi, 120);
    MessageWalk out = outgoing_walk(bytes);
    MessageWalk in = incoming_walk(bytes);
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
    return cost_of(walks * static_cast<double>(work.size()), thread_cpu_s, [&] {
      for (int walk = 0; walk < walks; ++walk)
        for (const auto& one : work) one();
    });
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
    const Cost all = cost_of(1, thread_cpu_s, [&] {
      do {
        probe.run();
        ++units;
      } while (go());
    });
    return {all.time_s / units, all.cpu_s / units};
  }

  /// Every rank of `ranks` passes 1 MiB messages to the next one and takes those of the one before. Per
  /// message.
  Cost ring(const Ranks& ranks) {
    constexpr int kMessages = 16;
    return together(ranks, [&] {
      pass_on(ranks, 1);  // wakes the connections up
      return cost_of(kMessages, process_cpu_s, [&] { pass_on(ranks, kMessages); });
    });
  }

  /// Every rank of the machine computes while a second thread exchanges messages with the neighbours in a
  /// ring. A rank that is alone there exchanges them with the other hosts, whose ranks do the same.
  void beside_communication() {
    Ranks ranks = settings_.sharing_ranks;
    if (ranks.size() == 1) {
      ranks.resize(static_cast<std::size_t>(backend_.world_size()));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    record_mean("compute_beside_communication", 0, settings_.sharing_ranks,
                together(ranks, [&] { return compute_beside(ranks); }));
  }

  Cost compute_beside(const Ranks& ranks) {
    constexpr int kMessages = 40;
    std::atomic<bool> done{false};
    std::exception_ptr error;
    std::thread communication([&] {
      try {
        pass_on(ranks, kMessages);
      } catch (...) {
        error = std::current_exception();
      }
      done = true;
    });
    const Cost compute = repeat(compute_, [&] { return !done.load(std::memory_order_relaxed); });
    communication.join();
    if (error) std::rethrow_exception(error);
    return compute;
  }

  void pass_on(const Ranks& ranks, int messages) {
    const auto own =
        static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), backend_.rank()) - ranks.begin());
    const int to = ranks[(own + 1) % ranks.size()];
    const int from = ranks[(own + ranks.size() - 1) % ranks.size()];
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
  RankPair pair_;  ///< whose messages are measured now
  std::vector<Note> notes_;
};

}  // namespace

std::vector<SampleSet> run_probes(RankSession& session, const BackendFactory& factory,
                                  const ProbeSettings& settings,
                                  const std::function<void(const std::string& now)>& on_round) {
  Prober prober(*session.backend, factory, settings);
  prober.round();
  prober.forget();
  on_round("warm-up");
  for (int round = 0; round < settings.rounds; ++round) {
    prober.round();
    on_round("round " + std::to_string(round + 1));
  }
  return prober.samples(*session.control);
}

}  // namespace stepcast

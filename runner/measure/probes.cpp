#include "runner/measure/probes.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <thread>
#include <tuple>

#include "runner/backend/message_walk.hpp"
#include "runner/backend/ping_pong.hpp"
#include "runner/execute/core_sharing.hpp"
#include "runner/measure/cost.hpp"
#include "runner/measure/host_probes.hpp"
#include "runner/measure/sampling_plan.hpp"

namespace stepcast {
namespace {

constexpr std::uint32_t kMessageTag = 0xFFFF'FD00;
constexpr std::size_t kStreamMessage = std::size_t{1} << 20U;  ///< gloo's largest segment

/// Calls per sample so that a sample takes some milliseconds, and large ones are not repeated needlessly.
int repetitions(std::size_t bytes, double bytes_per_sample, int most, int least = 2) {
  return static_cast<int>(std::clamp(bytes_per_sample / static_cast<double>(bytes),
                                     static_cast<double>(least), static_cast<double>(most)));
}

/// The median of fewer samples is not taken.
constexpr int kFewestRounds = 3;

class Prober {
 public:
  Prober(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings)
      : session_(session),
        backend_(*session.backend),
        factory_(factory),
        settings_(settings),
        sharing_(find_core_sharing(session)),
        watch_(sharing_.watch(kThreadsPerRank)) {
    if (settings.shaped_links) watch_.own_stolen_time();
    const auto largest = [](const std::vector<std::size_t>& sizes) {
      return sizes.empty() ? std::size_t{0} : *std::max_element(sizes.begin(), sizes.end());
    };
    const std::size_t bytes =
        std::max({32 * kStreamMessage, MessageWalk::region_bytes(largest(settings.message_sizes)),
                  largest(settings.array_sizes)});
    out_ = AlignedFloats(bytes / sizeof(float), 1.0F);
    in_ = AlignedFloats(bytes / sizeof(float), 0.0F);
    for (const ProbedPair& pair : settings.pairs) add_messages(pair);
    add_work();
  }

  /// Warms caches, connections and clocks up, and finds what every item costs.
  void warm_up() {
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (!items_[i].message) run(i);
    settle();
    for (const std::size_t size : settings_.message_sizes) {
      if (!affords(size)) {
        sampling_.largest_bytes_given_up = static_cast<double>(size);
        std::erase_if(items_,
                      [size](const Item& item) { return item.message && item.set.bytes >= double(size); });
        break;
      }
      for (std::size_t i = 0; i < items_.size(); ++i)
        if (items_[i].message && items_[i].set.bytes == static_cast<double>(size)) run(i);
      settle();
    }
    for (Item& item : items_) item.forget();
  }

  void round(int number) {
    std::vector<double> costs;
    for (const Item& item : items_) costs.push_back(item.cost_s);
    const std::vector<int> rounds =
        rounds_within(costs, settings_.rounds - number,
                      std::max(0, std::min(kFewestRounds, settings_.rounds) - number), left_s());
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (rounds[i] > 0) run(i);
    settle();
  }

  /// One turn of samples of what lacks undisturbed ones; false when nothing does, or nothing fits into the budget.
  bool repeat() {
    constexpr double kTurn = 1.0;
    const std::vector<std::size_t> lacking = lacking_items();
    std::vector<double> costs, spent;
    for (const Item& item : items_) {
      costs.push_back(item.cost_s);
      spent.push_back(item.spent_s);
    }
    const std::vector<std::size_t> turn = items_to_repeat(lacking, costs, spent, kTurn, left_s());
    for (const std::size_t i : turn) run(i);
    settle();
    return !turn.empty();
  }

  [[nodiscard]] ProbedSamples result() const {
    ProbedSamples all{{}, sampling_};
    for (const Item& item : items_)
      if (!item.set.time_s.empty()) all.sets.push_back(item.set);
    std::stable_sort(all.sets.begin(), all.sets.end(), [](const SampleSet& a, const SampleSet& b) {
      return std::tie(a.probe, a.path_class, a.bytes) < std::tie(b.probe, b.path_class, b.bytes);
    });
    all.sampling.budget_s = settings_.budget_s;
    all.sampling.spent_s = spent_s_;
    all.sampling.wanted = enough();
    return all;
  }

 private:
  using Ranks = std::vector<int>;

  /// What is sampled, and the samples, equal on all ranks once they are settled.
  struct Item {
    SampleSet set{};
    Ranks ranks{};  ///< that take part
    bool takes_slowest = false;
    bool message = false;  ///< of one of the message sizes
    bool alone = false;    ///< each rank works in one thread, without a pause and on a core of its own
    int windows = 1;       ///< samples per round
    std::function<Cost()> work{};
    std::vector<double> taken{}, waited{};  ///< beside each sample: MachineState's, of all ranks
    double cost_s = 0.0;                    ///< of one round, with what ranks wait for each other
    double spent_s = 0.0;

    void forget() {
      set.time_s.clear();
      set.cpu_s.clear();
      set.machine = {};
      taken.clear();
      waited.clear();
      spent_s = 0.0;
    }

    /// Ticks of the system's clock say too little of a sample that takes as long as one. What its threads stood in line is
    /// exact, but they also wait for each other: beyond the least of all samples they waited for others.
    void judge() {
      if (waited.empty()) return;
      const double least = *std::min_element(waited.begin(), waited.end());
      for (std::size_t i = 0; i < waited.size(); ++i)
        set.machine.taken[i] = std::clamp(std::max(taken[i], waited[i] - least), 0.0, 1.0);
    }
  };
  /// One sample, as this rank saw it.
  struct Note {
    std::size_t item = 0;
    Cost own;
    MachineState machine;
    double elapsed_s = 0.0;
  };

  static constexpr int kThreadsPerRank = 2;  ///< computing, communicating
  static constexpr int kComputeWindows = 2;
  static constexpr std::size_t kLargestHandedOver = std::size_t{16} << 10U;

  [[nodiscard]] bool among(const Ranks& ranks) const {
    return std::find(ranks.begin(), ranks.end(), backend_.rank()) != ranks.end();
  }
  [[nodiscard]] bool has_ring() const { return settings_.ring.size() > 2; }
  [[nodiscard]] double left_s() const { return settings_.budget_s - spent_s_; }
  /// Undisturbed samples of each item.
  [[nodiscard]] int enough() const {
    return std::max(std::min(kFewestRounds, settings_.rounds), (2 * settings_.rounds + 2) / 3);
  }

  void add(const std::string& probe, std::size_t bytes, const std::string& path_class, Item item) {
    item.set.probe = probe;
    item.set.path_class = path_class;
    item.set.bytes = static_cast<double>(bytes);
    items_.push_back(std::move(item));
  }

  /// Messages take as long as for the slowest of the ranks.
  void add_messages(const ProbedPair& pair) {
    const Ranks both{pair.ranks.first, pair.ranks.second};
    for (const std::size_t size : settings_.message_sizes) {
      const auto message = [&](const char* probe, auto work) {
        add(probe, size, pair.path_class,
            {.ranks = both, .takes_slowest = true, .message = true, .work = [this, ranks = pair.ranks, work] {
               pair_ = ranks;
               return work();
             }});
      };
      message("ping_pong", [this, size] { return half_round_trip(size); });
      message("rendezvous", [this, size] { return one_way(size, false); });
      message("exchange", [this, size] { return exchange(size); });
      if (size <= kLargestHandedOver) message("handed_over", [this, size] { return one_way(size, true); });
    }
    if (has_ring() && pair.path_class != kSameHost)
      add("ring_pair", kStreamMessage, pair.path_class,
          {.ranks = both, .takes_slowest = true, .work = [this, both] { return ring(both); }});
  }

  /// Work that ranks do side by side takes the mean, so that total throughput is kept.
  void add_work() {
    if (has_ring())
      add("ring_all", kStreamMessage, "",
          {.ranks = settings_.ring, .takes_slowest = true, .work = [this] { return ring(settings_.ring); }});
    const Ranks first{0}, here = settings_.sharing_ranks;
    const auto work = [this](const char* probe, std::size_t bytes, const Ranks& ranks, auto of,
                             int windows = 1) {
      add(probe, bytes, "",
          {.ranks = ranks,
           .alone = ranks.size() == 1 || !sharing_.crowded,
           .windows = windows,
           .work = [this, ranks, of] { return together(ranks, of); }});
    };
    for (const std::size_t size : settings_.array_sizes) {
      work("reduce", size, first, [this, size] { return reduction(size); });
      work("copy", size, first, [this, size] { return copy(size); });
    }
    const auto unit = static_cast<std::size_t>(MemoryProbe::bytes_per_unit());
    work("memory_one", unit, first, [this] { return window(memory_); });
    work("memory_all", unit, here, [this] { return window(memory_); });
    work(
        "compute_one", 0, first, [this] { return window(compute_); }, kComputeWindows);
    if (backend_.world_size() == 1) return;
    work(
        "compute_all", 0, here, [this] { return window(compute_); }, kComputeWindows);
    Ranks ranks = here;
    if (ranks.size() == 1) {  // alone there: the other hosts' ranks do the same
      ranks.resize(static_cast<std::size_t>(backend_.world_size()));
      std::iota(ranks.begin(), ranks.end(), 0);
    }
    add("compute_beside_communication", 0, "",
        {.ranks = here,
         .work = [this, ranks] { return together(ranks, [&] { return compute_beside(ranks); }); }});
  }

  void run(std::size_t index) {
    const Item& item = items_[index];
    for (int i = 0; i < item.windows; ++i) {
      const double begin = wall_clock_s();
      watch_.restart();
      Note note{index, item.work(), {}, 0.0};
      note.machine = look(session_, sharing_, watch_, item.ranks, looks_++);
      if (item.alone) {  // it takes so long where nobody else wants its core
        note.own.time_s -= note.own.waited_s;
        if (note.own.waited_s > 0.0)  // else nothing was taken off, or the system does not say
          note.machine.taken = std::min(note.machine.taken, note.machine.stolen);
        note.machine.waited = 0.0;
      }
      note.elapsed_s = wall_clock_s() - begin;
      notes_.push_back(note);
    }
  }

  /// Joins what all ranks noted since the last time.
  void settle() {
    constexpr std::size_t kNumbers = 6;
    std::vector<double> mine{wall_clock_s() - began_s_};
    for (const Note& note : notes_)
      mine.insert(mine.end(), {note.own.time_s, note.own.cpu_s, note.machine.probe_per_s, note.machine.taken,
                               note.elapsed_s, note.machine.waited});
    const auto all = session_.control->all_gather_numbers("probes", mine);
    spent_s_ = all.front().front();
    std::vector<double> costs(items_.size(), 0.0);
    for (std::size_t i = 0; i < notes_.size(); ++i) {
      Item& item = items_[notes_[i].item];
      const auto count = static_cast<double>(item.ranks.size());
      std::vector<double> probes;
      double mean_s = 0.0, slowest_s = 0.0, cpu_s = 0.0, taken = 0.0, elapsed_s = 0.0, waited = 0.0;
      for (int rank = 0; rank < backend_.world_size(); ++rank) {
        const double* theirs = &all[static_cast<std::size_t>(rank)][1 + kNumbers * i];
        elapsed_s = std::max(elapsed_s, theirs[4]);
        if (std::find(item.ranks.begin(), item.ranks.end(), rank) == item.ranks.end()) continue;
        mean_s += theirs[0] / count;
        slowest_s = std::max(slowest_s, theirs[0]);
        cpu_s += theirs[1] / count;
        probes.push_back(theirs[2]);
        taken = std::max(taken, theirs[3]);
        waited += theirs[5];
      }
      item.set.time_s.push_back(item.takes_slowest ? slowest_s : mean_s);
      item.set.cpu_s.push_back(cpu_s);
      item.set.machine.add(slowest_probe(probes), taken);
      item.taken.push_back(taken);
      item.waited.push_back(waited);
      item.spent_s += elapsed_s;
      costs[notes_[i].item] += elapsed_s;
    }
    for (std::size_t i = 0; i < items_.size(); ++i)
      if (costs[i] > 0.0) items_[i].cost_s = costs[i];
    for (Item& item : items_) item.judge();
    notes_.clear();
  }

  /// Whether the budget lasts for a warm-up and the fewest rounds of one more size, which takes at most twice as
  /// long as the one before. The smallest is always measured, and one that adds next to nothing to a round is not what
  /// uses the budget up.
  [[nodiscard]] bool affords(std::size_t size) const {
    constexpr double kNextToNothing = 0.1;
    double round_s = 0.0, before_s = 0.0;
    for (const Item& item : items_) {
      round_s += item.cost_s;
      if (item.message && 2.0 * item.set.bytes == static_cast<double>(size)) before_s += item.cost_s;
    }
    const double next_s = 2.0 * before_s;
    const bool is_little = before_s > 0.0 && next_s <= kNextToNothing * round_s;
    return size == settings_.message_sizes.front() || is_little ||
           next_s + kFewestRounds * (round_s + next_s) <= left_s();
  }

  [[nodiscard]] std::vector<std::size_t> lacking_items() const {
    std::vector<double> probes;
    for (const Item& item : items_)
      probes.insert(probes.end(), item.set.machine.probe_per_s.begin(), item.set.machine.probe_per_s.end());
    const double best = best_probe(std::move(probes));
    std::vector<std::size_t> lacking;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const std::vector<char> clean = undisturbed(items_[i].set.machine, best);
      if (std::count(clean.begin(), clean.end(), 1) < enough() * items_[i].windows) lacking.push_back(i);
    }
    return lacking;
  }

  /// Runs `work` on `ranks` at once while the others wait without using a processor.
  template <class Work>
  Cost together(const Ranks& ranks, const Work& work) {
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
    const int trips = repetitions(bytes, 4.0 * kMebi, 60, 1);
    MessageWalk out = outgoing_walk(bytes), in = incoming_walk(bytes);
    ping_pong(backend_, pair_, out, in, 1);
    return per_message(2 * trips, [&] { ping_pong(backend_, pair_, out, in, trips); });
  }

  /// The first rank sends messages to the second, one after the other; a receive is posted when the message
  /// before it is there. \param handed_over each call is handed to the communication thread and waited for, as
  /// collectives are
  Cost one_way(std::size_t bytes, bool handed_over) {
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
  /// ring. Per message of one way.
  Cost exchange(std::size_t bytes) {
    const int messages = repetitions(bytes, 8.0 * kMebi, 120);
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
    return cost_alone(walks * static_cast<double>(work.size()), [&] {
      for (int walk = 0; walk < walks; ++walk)
        for (const auto& one : work) one();
    });
  }

  /// Repeats a unit of work for a fixed time, so that ranks that start together also work side by side all
  /// the time; what comes first is not kept. Cores of a virtual machine that wake up together were 1.4 times
  /// slower for some 20 ms than the same cores kept busy, as training keeps them.
  template <class Probe>
  Cost window(Probe& probe) {
    constexpr double kWindow = 0.1;
    lead_in(probe);
    int units = 0;
    const Cost all = cost_alone(1, [&] { units = repeat(probe, within(kWindow)); });
    return {all.time_s / units, all.cpu_s / units, all.waited_s / units};
  }

  template <class Probe>
  static void lead_in(Probe& probe) {
    constexpr double kLeadIn = 0.1;
    repeat(probe, within(kLeadIn));
  }

  static std::function<bool()> within(double seconds) {
    return [until = wall_clock_s() + seconds] { return wall_clock_s() < until; };
  }

  /// How many units it was.
  template <class Probe, class Go>
  static int repeat(Probe& probe, Go go) {
    int units = 0;
    do {
      probe.run();
      ++units;
    } while (go());
    return units;
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

  /// Computes while a second thread exchanges messages with the neighbours in a ring.
  Cost compute_beside(const Ranks& ranks) {
    constexpr int kMessages = 40;
    lead_in(compute_);
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
    int units = 0;
    const Cost all = cost_of(1, thread_cpu_s, [&] {
      units = repeat(compute_, [&] { return !done.load(std::memory_order_relaxed); });
    });
    communication.join();
    if (error) std::rethrow_exception(error);
    return {all.time_s / units, all.cpu_s / units};
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

  RankSession& session_;
  Backend& backend_;
  const BackendFactory& factory_;
  const ProbeSettings& settings_;
  CoreSharing sharing_;
  MachineWatch watch_;
  AlignedFloats out_{1, 0.0F}, in_{1, 0.0F};
  ComputeProbe compute_;
  MemoryProbe memory_;
  RankPair pair_;  ///< whose messages are measured now
  std::vector<Item> items_;
  int looks_ = 0;
  std::vector<Note> notes_;  ///< since the last time that they were joined
  Sampling sampling_;
  double began_s_ = wall_clock_s();
  double spent_s_ = 0.0;  ///< of the budget, as rank 0 said last
};

}  // namespace

ProbedSamples run_probes(RankSession& session, const BackendFactory& factory, const ProbeSettings& settings,
                         const std::function<void(const std::string& now)>& on_round) {
  Prober prober(session, factory, settings);
  prober.warm_up();
  on_round("warm-up");
  for (int round = 0; round < settings.rounds; ++round) {
    prober.round(round);
    on_round("round " + std::to_string(round + 1));
  }
  while (prober.repeat()) on_round("repeating what was disturbed");
  return prober.result();
}

}  // namespace stepcast

#include "sim/replay/replay.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "schedule/operations.hpp"
#include "sim/collectives/nccl_graph.hpp"
#include "sim/replay/link_search.hpp"
#include "sim/replay/load_network.hpp"
#include "sim/replay/memory.hpp"
#include "sim/replay/platform.hpp"
#include "sim/replay/rank_run.hpp"
#include "sim/strategies/strategy.hpp"
#include "topologies/devices.hpp"
#include "topologies/link_tiers.hpp"
#include "topologies/token_bucket.hpp"

namespace stepcast {
namespace {

constexpr int kDeadlockLines = 10;
constexpr double kRecordedTimes = 2e6;  // operations whose times are kept: 80 MB
// Larger worlds report spans of three ranks, and times and memory of a rank of each program.
constexpr int kDetailedRanks = 64;

/// Cluster, collectives and classes of ranks of one replay.
struct ReplaySetup {
  explicit ReplaySetup(const ReplayInput& from)
      : input(from),
        backend(backend_of(from)),
        folds(Symmetry::may_fold(from, backend)),
        own_cluster(folds ? std::nullopt : std::optional(replayed_cluster(from))),
        cluster(own_cluster ? *own_cluster : *from.cluster),
        own_routes(cluster),
        plans(from, backend),
        symmetry(folds ? Symmetry::folded(from, plans, routes()) : Symmetry(from, plans, routes())),
        platform(make_platform()) {}

  /// True if collectives share links as a whole: in classes of ranks, and NCCL's.
  [[nodiscard]] bool fluid() const { return folds || backend == "nccl"; }
  /// True if SimGrid shares the links of NCCL's collectives.
  [[nodiscard]] bool oracle() const { return input.exact && input.simgrid && backend == "nccl"; }
  /// Routes of NCCL's graphs, which several replays share, over the same cluster.
  [[nodiscard]] Routes& routes() {
    const bool shared = input.nccl_graphs != nullptr && &input.nccl_graphs->cluster() == &cluster;
    return folds && shared ? input.nccl_graphs->routes() : own_routes;
  }
  [[nodiscard]] std::unique_ptr<Network> make_network(Clock& clock) {
    if (!fluid()) return make_simgrid_network(*platform, routes());
    if (!oracle()) return make_fluid_network(clock, symmetry);
    return make_simgrid_loads(clock, symmetry, input, plans);
  }
  [[nodiscard]] Platform* make_platform() {
    if (oracle()) Platform::start_engine(Platform::Updates::kFull);
    return fluid() ? nullptr : &Platform::of(cluster, used_nodes());
  }

  /// Cores of the hosts. Hosts that are parts of one machine divide its cores, if there are enough for all.
  [[nodiscard]] Processors processors(Clock& clock) const {
    const SharingCost sharing = input.calibration == nullptr ? SharingCost{} : input.calibration->sharing;
    const int shared = cluster.shared_cores;
    std::vector<std::size_t> machine(input.cluster->nodes.size(), 0);
    if (shared > 0) return {clock, {shared}, {shared / input.schedule->world_size}, machine, sharing};
    std::iota(machine.begin(), machine.end(), 0);
    return {clock, cores(), cores_per_rank(), machine, sharing};
  }

  const ReplayInput& input;
  const std::string backend;
  const bool folds;
  const std::optional<Cluster> own_cluster;  ///< with what this replay adds to it
  const Cluster& cluster;
  Routes own_routes;
  CollectivePlans plans;
  Symmetry symmetry;
  Platform* platform;  ///< null if SimGrid does not share the links

  /// \throws UsageError if NCCL cannot run where the ranks are
  static std::string backend_of(const ReplayInput& input) {
    std::string backend = input.backend;
    if (backend.empty() && input.calibration != nullptr) backend = input.calibration->job.backend;
    assert(backend != "nccl" || input.nccl_graphs != nullptr);
    if (backend == "nccl") check_nccl_places(*input.cluster, input.node_of_rank);
    return backend;
  }

  /// The cluster with what the calibration found of its hosts and links, unless the cluster states it.
  static Cluster replayed_cluster(const ReplayInput& input) {
    Cluster cluster = Copies::with_staging(input);
    cluster.shared_cores = shared_cores(input.calibration, cluster);
    if (input.calibration != nullptr && input.calibration->cluster.slowest_shaped_link_bytes_per_s > 0.0 &&
        !has_token_buckets(cluster))
      shape_links(cluster, slowest_link(*input.cluster));
    return cluster;
  }

  [[nodiscard]] std::vector<int> used_nodes() const {
    std::vector<int> nodes = Copies::nodes(input, cluster);
    append(nodes, input.node_of_rank);
    return sorted_unique(std::move(nodes));
  }

  /// Cores by node: the cores of a host belong to its first socket, a device counts as one.
  [[nodiscard]] std::vector<int> cores() const {
    std::vector<int> result(input.cluster->nodes.size(), 1);
    for (const Host& host : input.cluster->hosts) result[host.node] = host.cores;
    return result;
  }

  /// Even share of a host's cores that each of its ranks is bound to, if the calibration was bound; 0 if
  /// ranks are not bound or outnumber the cores.
  [[nodiscard]] std::vector<int> cores_per_rank() const {
    std::vector<int> result(input.cluster->nodes.size(), 0);
    if (input.calibration == nullptr || input.calibration->context.placement.binding != "core") return result;
    std::vector<int> ranks(result.size(), 0);
    for (const int node : input.node_of_rank) ++ranks[node];
    const std::vector<int> of_node = cores();
    for (std::size_t i = 0; i < result.size(); ++i)
      if (ranks[i] > 0) result[i] = of_node[i] / ranks[i];
    return result;
  }
};

/// One replay: the simulated world and its report.
class Replay {
 public:
  explicit Replay(const ReplayInput& input)
      : input_(input),
        setup_(input),
        clock_(setup_.fluid() && !setup_.oracle() ? Clock::Driver::kTimers : Clock::Driver::kSimGrid),
        network_(setup_.make_network(clock_)),
        processors_(setup_.processors(clock_)),
        transport_(clock_, *network_, processors_, input, symmetry_, setup_.routes()),
        collectives_(world_, *input.schedule, setup_.plans),
        point_to_point_(clock_, transport_),
        copies_(*network_, input, setup_.cluster),
        costs_(input),
        world_{input,       clock_,     *network_,       dynamic_cast<LoadNetwork*>(network_.get()),
               processors_, transport_, collectives_,    point_to_point_,
               copies_,     costs_,     recorded_steps()},
        runs_(input.schedule->world_size) {
    for (const Program& program : input.schedule->programs)
      programs_.emplace_back(program, input.model->execution.dispatch_overlap == "micro-batches");
    for (const int rank : symmetry_.replayed()) {
      const ProgramIndex& program = programs_[input.schedule->program_of_rank[rank]];
      runs_[rank] = std::make_unique<RankRun>(world_, program, rank);
    }
  }

  Result run() {
    for (const int rank : symmetry_.replayed()) runs_[rank]->start();
    network_->run();
    check_finished();
    return result();
  }

 private:
  [[nodiscard]] int recorded_steps() const {
    const double operations = 1.0 + count_operations(*input_.schedule, symmetry_.replayed());
    const int kept = std::clamp(static_cast<int>(kRecordedTimes / operations), 1, input_.run.steps);
    if (!input_.run.shown_steps.empty() && *input_.run.shown_steps.rbegin() >= kept)
      throw UsageError(
          "--timeline-steps: found step {}, expected at most {}: steps with so many operations are not kept "
          "beyond it",
          *input_.run.shown_steps.rbegin(), kept - 1);
    return kept;
  }

  void check_finished() const {
    std::vector<std::string> lines;
    int stuck = 0;
    for (std::size_t number = 0; number < runs_.size(); ++number) {
      if (rank(static_cast<int>(number)).finished()) continue;
      ++stuck;
      if (runs_[number] == nullptr) continue;
      for (std::string& line : runs_[number]->waiting()) lines.push_back(std::move(line));
    }
    if (stuck == 0) return;
    std::string report =
        fmt::format("deadlock: {} of {} ranks wait for an operation that never starts", stuck, runs_.size());
    for (std::size_t i = 0; i < std::min<std::size_t>(lines.size(), kDeadlockLines); ++i)
      report += "\n  " + lines[i];
    if (lines.size() > kDeadlockLines)
      report += fmt::format("\n  and {} more operations", lines.size() - kDeadlockLines);
    throw RunError(report);
  }

  Result result() {
    Result result;
    result.origin = Origin::kPredicted;
    result.configuration =
        configuration_of(*input_.schedule, input_.model->specification, input_.compute.batch);
    result.configuration.threads = input_.compute.threads;
    if (!setup_.backend.empty()) result.configuration.backend = setup_.backend;
    result.configuration.cluster = input_.cluster->name;
    result.configuration.steps = input_.run.steps;
    const auto warmup = static_cast<std::size_t>(input_.run.warmup_steps);
    for (int number = 0; number < input_.schedule->world_size; ++number) {
      std::vector<double> times = rank(number).step_ends();
      std::adjacent_difference(times.begin(), times.end(), times.begin());
      if (result.step_time_s.empty())
        result.warmup_step_time_s.assign(times.begin(), times.begin() + input_.run.warmup_steps);
      result.step_time_s.emplace_back(times.begin() + warmup, times.end());
    }
    result.bytes_sent_per_rank = bytes_per_step();
    result.forecast.operations = count_operations(*input_.schedule, symmetry_.replayed()) *
                                 (input_.run.steps + input_.run.warmup_steps);
    result.notes["collective_fidelity"] = setup_.plans.fidelity_used();
    for (const auto& [about, what] : {std::pair{"algorithms", setup_.plans.algorithms_used()},
                                      {"nccl", setup_.plans.nccl_choices()},
                                      {"path_classes", transport_.stand_ins()},
                                      {"messages", transport_.extrapolated()}})
      if (!what.empty()) result.notes[about] = what;
    if (std::ranges::any_of(setup_.cluster.links,
                            [](const Link& link) { return link.queue == Queue::kFifo; }))
      result.notes["queue"] = "fifo ports are forecast as fair (docs/research/queues.md)";
    if (setup_.oracle())
      result.notes["exact"] = "every rank is replayed, and SimGrid (CM02) shares the links";
    if (symmetry_.coarse())
      result.notes["ranks"] = fmt::format("in {} classes, each as slow as its slowest; --exact replays all",
                                          symmetry_.replayed().size());
    add_details(result);
    return result;
  }

  /// Most bytes per step that a rank sent, or moved by its copies where a step only moves data.
  [[nodiscard]] double bytes_per_step() const {
    double most = 0.0;
    const std::vector<double> by_nccl = collectives_.bytes_sent();
    const double copies = input_.schedule->data_parallel == 0 ? 1.0 : 0.0;
    for (const int rank : symmetry_.replayed())
      most = std::max(most,
                      transport_.bytes_sent()[rank] + by_nccl[rank] + copies * copies_.bytes_moved()[rank]);
    return most / (input_.run.steps + input_.run.warmup_steps);
  }

  [[nodiscard]] int slowest_rank(int step) const {
    const std::vector<int>& all = symmetry_.replayed();
    return *std::ranges::max_element(all, {}, [&](int one) { return length(rank(one), step); });
  }

  /// Adds spans and breakdown of the recorded step whose slowest rank took the median time.
  void add_details(Result& result) {
    std::vector<std::pair<double, int>> by_time;
    by_time.reserve(world_.recorded_steps);
    for (int step = 0; step < world_.recorded_steps; ++step)
      by_time.emplace_back(length(rank(slowest_rank(step)), step), step);
    std::ranges::sort(by_time);
    const int step = by_time[(by_time.size() - 1) / 2].second;
    std::vector<int> detailed{0, slowest_rank(step)}, listed = first_of_programs();
    if (input_.schedule->world_size <= kDetailedRanks) {
      detailed = listed = whole_numbers(0, runs_.size());
    } else {
      const auto peak = [&](int number) { return memory(number, step, 0.0).peak_bytes; };
      detailed.push_back(*std::ranges::max_element(listed, {}, peak));
      if (input_.run.record_spans && std::ssize(listed) > kDetailedRanks) listed.clear();
    }
    append(listed, detailed);
    detailed = sorted_unique(std::move(detailed));
    std::map<int, std::pair<Breakdown, MemoryUse>> of_classes;
    for (const int number : sorted_unique(std::move(listed))) {
      const auto [of, first] = of_classes.try_emplace(symmetry_.rank(number));
      if (first) of->second = {breakdown(number, step), memory(number, step, step_start(rank(0), step))};
      result.breakdown.push_back(of->second.first);
      result.memory.push_back(of->second.second);
      result.memory.back().rank = number;
    }
    if (!input_.run.record_spans) return;
    if (input_.schedule->world_size > kDetailedRanks) result.forecast.balance = balance(step);
    for (const int number : detailed) add_shown(result.shown, number);
    if (input_.run.recording != nullptr) record(step);
    for (const int number : detailed) {
      std::vector<Span> own = spans(number, step, step_start(rank(0), step));
      std::move(own.begin(), own.end(), std::back_inserter(result.spans));
    }
  }

  /// ForecastNotes::balance of a step: of all ranks, those of a class being equal.
  [[nodiscard]] std::map<std::string, double> balance(int step) const {
    Result all;
    for (int number = 0; number < input_.schedule->world_size; ++number) {
      const int first = symmetry_.rank(number);
      all.breakdown.push_back(first < number ? all.breakdown[first] : breakdown(number, step));
      all.memory.emplace_back().peak_bytes =
          first < number ? all.memory[first].peak_bytes : memory(number, step, 0.0).peak_bytes;
    }
    return all.balance();
  }

  /// The end of a layer's collective beside which the layer computed is overlapped.
  [[nodiscard]] Breakdown breakdown(int number, int step) const {
    std::vector<Span> all = spans(number, step, step_start(rank(number), step));
    const std::vector<OpTimes>& times = rank(number).times(step);
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (times[i].beside <= 0.0) continue;
      Span beside = all[i];
      beside.start_s = all[i].end_s -= times[i].beside;
      beside.stream = Stream::kComm;
      all.push_back(std::move(beside));
    }
    return make_breakdown(all, number, length(rank(number), step));
  }

  /// Memory of one rank in one step, times counted from `origin`.
  [[nodiscard]] MemoryUse memory(int number, int step, double origin) const {
    const double own_start = step_start(rank(number), step);
    MemoryUse use =
        memory_use(number, *input_.schedule, rank(number).times(step), costs_.phases(), own_start);
    for (double& time : use.time_s) time += own_start - origin;
    return use;
  }

  void add_shown(ShownSteps& shown, int number) const {
    if (input_.run.shown_steps.empty()) return;
    const double origin = step_start(rank(0), *input_.run.shown_steps.begin());
    MemoryUse& held = shown.memory.emplace_back();
    held.rank = number;
    for (const int step : input_.run.shown_steps) {
      for (Span& span : spans(number, step, origin)) {
        span.step = step;
        shown.spans.push_back(std::move(span));
      }
      const MemoryUse use = memory(number, step, origin);
      append(held.time_s, use.time_s);
      append(held.live_bytes, use.live_bytes);
    }
  }

  [[nodiscard]] std::vector<RecordedOp> recorded(int number, int step, double origin,
                                                 LinkSearch& links) const {
    const std::vector<OpTimes>& times = rank(number).times(step);
    std::vector<RecordedOp> ops;
    for (std::size_t i = 0; i < times.size(); ++i)
      ops.push_back({times[i].start - origin, times[i].end - origin, times[i].issued - origin, times[i].host,
                     links.of(rank(number).program().ops[i], number)});
    return ops;
  }

  void record(int step) {
    Recording& recording = *input_.run.recording;
    recording = {.schedule = *input_.schedule,
                 .stands_for = transformed(whole_numbers(0, input_.schedule->world_size),
                                           [&](int number) { return symmetry_.rank(number); }),
                 .slowest = symmetry_.rank(slowest_rank(step)),
                 .stream_per_group = collectives_.stream_per_group(),
                 .tiers = sorted_unique(link_tiers(*input_.cluster)),
                 .segment_of_tensor = std::vector<int>(input_.model->parameters.size(), -1)};
    LinkSearch links{input_, setup_.plans, setup_.routes(), copies_.ends(), recording.links};
    const double origin = step_start(rank(recording.slowest), step);
    for (const int number : symmetry_.replayed()) {
      RecordedRank& one = recording.ranks[number];
      one.start_s = step_start(rank(number), step) - origin;
      one.end_s = one.start_s + length(rank(number), step);
      one.ops = recorded(number, step, origin, links);
      if (step - 1 < rank(number).first_recorded()) continue;
      one.before_s = step_start(rank(number), step - 1) - origin;
      one.before = recorded(number, step - 1, origin, links);
    }
    for (const Segment& segment : input_.model->segments) {
      for (const int tensor : segment.parameters)
        recording.segment_of_tensor[tensor] = static_cast<int>(recording.segments.size());
      recording.segments.push_back(segment.name);
    }
  }

  [[nodiscard]] std::vector<int> first_of_programs() const {
    const std::vector<int>& programs = input_.schedule->program_of_rank;
    return transformed(whole_numbers(0, programs_.size()), [&](int program) {
      return static_cast<int>(std::ranges::find(programs, program) - programs.begin());
    });
  }

  [[nodiscard]] const RankRun& rank(int number) const { return *runs_[symmetry_.rank(number)]; }
  /// Start of measured step `step` on one rank.
  [[nodiscard]] double step_start(const RankRun& rank, int step) const {
    const int index = input_.run.warmup_steps + step;
    return index == 0 ? 0.0 : rank.step_ends()[index - 1];
  }
  [[nodiscard]] double length(const RankRun& rank, int step) const {
    const int index = input_.run.warmup_steps + step;
    return rank.step_ends()[index] - step_start(rank, step);
  }

  /// Spans of one rank and step, times counted from `origin`.
  [[nodiscard]] std::vector<Span> spans(int number, int step, double origin) const {
    std::vector<Span> result;
    const std::vector<OpTimes>& times = rank(number).times(step);
    for (std::size_t i = 0; i < times.size(); ++i)
      result.push_back(span_of(number, rank(number).program().ops[i],
                               times[i].start - times[i].waited - origin, times[i].end - origin));
    return result;
  }

  const ReplayInput& input_;
  ReplaySetup setup_;
  Symmetry& symmetry_ = setup_.symmetry;
  Clock clock_;
  std::unique_ptr<Network> network_;
  Processors processors_;
  Transport transport_;
  Collectives collectives_;
  PointToPoint point_to_point_;
  Copies copies_;
  Costs costs_;
  ReplayWorld world_;
  std::vector<ProgramIndex> programs_;          ///< of the schedule
  std::vector<std::unique_ptr<RankRun>> runs_;  ///< by rank; null if another rank represents it
};

}  // namespace

int shared_cores(const Calibration* calibration, const Cluster& cluster) {
  if (cluster.shared_cores > 0 || calibration == nullptr) return cluster.shared_cores;
  return calibration->cluster.shared_cores;
}

Result replay(const ReplayInput& input) {
  assert(input.schedule != nullptr && input.model != nullptr && input.cluster != nullptr);
  assert(input.node_of_rank.size() == static_cast<std::size_t>(input.schedule->world_size));
  assert(input.run.steps >= 1 && input.run.warmup_steps >= 0);
  if (!has_action<Copy>(*input.schedule, &Copy::touches_socket)) return Replay(input).run();
  const Cluster cluster = with_socket_memory(*input.cluster, input.copies.host_memory);
  ReplayInput with_memory = input;
  with_memory.cluster = &cluster;
  return Replay(with_memory).run();
}

}  // namespace stepcast

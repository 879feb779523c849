#include "sim/kineto/host_sweep.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <ranges>
#include <set>
#include <utility>

#include "sim/kineto/called_collective.hpp"
#include "sim/kineto/forwards.hpp"
#include "sim/kineto/host_times.hpp"

namespace stepcast {
namespace {

constexpr double kTolerance = 0.002;  // us; ends are rounded
constexpr double kNextNode = 20.0;    // us from one node of a backward to the next

/// Name in parentheses: `FSDP::pre_forward (blocks.0)`.
std::string in_parentheses(const std::string& name) {
  const auto open = name.find('(');
  return open == std::string::npos ? "" : name.substr(open + 1, name.find(')', open) - open - 1);
}

struct HostSweep {
  const KinetoFile& file;
  const std::vector<NameKind>& kinds;
  const int main_track;
  std::vector<ProfiledStep>& steps;

  HostLaunches run() {
    find_calls();
    sweep(main_track);
    std::vector<char> done(file.tracks.size(), 0);
    done[main_track] = 1;
    for (const KinetoEvent& event : file.events)
      if (!event.on_device() && std::exchange(done[event.track], 1) == 0) sweep(event.track);
    std::ranges::for_each(steps, [this](ProfiledStep& step) { add_operations(step); });
    return std::move(launches);
  }

  struct Frame {
    double end = 0.0;
    Place place{};
    bool definite = false;   ///< its time is its own, not that of what follows
    bool operation = false;  ///< `cpu_op`
    bool closure = false;    ///< an optimizer's step around the backward
    NameKind kind = NameKind::kOther;
  };
  struct Track {
    std::vector<Frame> frames{};
    double cursor = 0.0;
    int current = -1;  ///< operation whose backward runs
    bool is_main = false;
    bool called = false;  ///< the last operation called a collective
  };
  struct MainState {
    int step = -1, operation = -1;
    bool in_loss = false, updated = false;
    std::string module{};
    std::vector<std::string> units{};  ///< of FSDP, in each other
  };

  /// Copies of pageable memory, and the kind of event that calls of collectives are read from: the most
  /// detailed one.
  void find_calls() {
    static constexpr std::array kPrefixes{"record_param_comms", "nccl:", "gloo:", "c10d::", ""};
    std::size_t best = kPrefixes.size() - 1;
    for (const KinetoEvent& event : file.events) {
      if (event.category == KinetoCategory::kCopy && file.name(event).find("Pageable") != std::string::npos)
        copy_ends[event.correlation()] = event.end;
      if (event.on_device()) continue;
      has_sequences = has_sequences || (event.sequence() >= 0 && !event.backward);
      for (std::size_t i = 0; i < best; ++i)
        if (file.name(event).starts_with(kPrefixes[i]) && (i > 0 || call_of(file, event))) best = i;
    }
    call_prefix = kPrefixes[best];
  }

  void sweep(int which) {
    Track track;
    track.is_main = which == main_track;
    if (track.is_main) track.cursor = steps.front().begin;
    const auto first = std::ranges::lower_bound(file.events, which, {}, &KinetoEvent::track);
    for (auto event = first; event != file.events.end() && event->track == which; ++event)
      enter(track, static_cast<int>(event - file.events.begin()));
    leave(track, 1e300);
    if (track.is_main) end_step(track, steps.back().end);
  }

  /// Adds up the operations' times. What follows a loss in the middle of the forward, of an auxiliary head,
  /// is no loss up to the last operation with parameters.
  void add_operations(ProfiledStep& step) {
    join_forwards(file, step);
    split_forwards(step);
    int micro_batch = -1;  // with parameters in later operations
    for (ProfiledOperation& each : step.operations | std::views::reverse) {
      if (!each.gradients.empty()) micro_batch = each.micro_batch;
      if (each.micro_batch == micro_batch && kinds[file.events[each.event].name] != NameKind::kLoss)
        each.is_loss = false;
      step.parts[each.is_loss ? StepPart::kLoss : StepPart::kForward].host += each.forward.host;
      step.parts[each.is_loss ? StepPart::kLoss : StepPart::kBackward].host += each.backward.host;
    }
  }

  void enter(Track& track, int index) {
    const KinetoEvent& event = file.events[index];
    NameKind kind = kinds[event.name];
    // A call that returns after its copy of pageable memory has ended waits for the device.
    if (const auto copy = copy_ends.find(event.correlation());
        event.correlation() > 0 && copy != copy_ends.end() && copy->second <= event.end)
      kind = NameKind::kBlocking;
    if (kind == NameKind::kBlocking && event.category != KinetoCategory::kRuntime) kind = NameKind::kOther;
    const bool closure = kind == NameKind::kOptimizer && times.has_nodes(event.begin, event.end);
    if (closure) kind = NameKind::kOther;
    leave(track, event.begin + kTolerance);
    if (kind == NameKind::kStep && track.is_main) end_step(track, event.begin);
    if (const int step = step_at(steps, event.begin); track.is_main && step != state.step)
      state = {.step = step};
    // The time of a collective of Gloo overlaps that of operations: it is no frame.
    if (file.name(event).starts_with("gloo:") && (track.is_main || track.current >= 0))
      return void(place_of(track, event, index, kind));
    if (kind == NameKind::kModule) state.module = file.name(event);
    if (kind == NameKind::kOptimizer && track.is_main) state.updated = true;
    if (kind == NameKind::kUnitForward && track.is_main)
      state.units.push_back(in_parentheses(file.name(event)));
    note_node(track, event);
    Frame frame{.end = event.end,
                .operation = event.category == KinetoCategory::kOperation,
                .closure = closure,
                .kind = kind};
    frame.place = place_of(track, event, index, kind);
    if (track.is_main && frame.operation && event.sequence() >= 0 && !event.backward &&
        frame.place.part == StepPart::kForward)
      creators[event.sequence()] = {frame.place.step, frame.place.operation};
    const bool parent_definite = !track.frames.empty() && track.frames.back().definite;
    frame.definite = parent_definite || frame.operation || event.category == KinetoCategory::kRuntime ||
                     frame.place.part == StepPart::kOptimizer || frame.place.part == StepPart::kZeroGrad ||
                     frame.place.part == StepPart::kInput || frame.place.owner != Owner::kModel;
    if (kind == NameKind::kStep || kind == NameKind::kReplica || kind == NameKind::kModule)
      frame.definite = false;
    if (frame.place.step >= 0) {
      ProfiledStep& step = steps[frame.place.step];
      ++step.events;
      if (kind == NameKind::kNode) ++step.nodes;
      if (parent_definite) {
        account(track, event.begin);
      } else if (frame.definite) {
        track.cursor = gap_begin(track, event.begin);
        if (track.cursor < event.begin && frame.place.owner != Owner::kBlocked)
          give(track, frame.place, event.begin, true, true);
        track.cursor = event.begin;
      }
    }
    if (event.category == KinetoCategory::kRuntime && event.correlation() > 0)
      if (HostLaunch& last = launches[event.correlation()]; event.begin >= last.time)
        last = {frame.place, event.begin};
    if (frame.operation) track.called = kind == NameKind::kCollective;
    track.frames.push_back(frame);
  }

  /// Time of the main thread after its last operation in a step.
  void end_step(Track& track, double until) {
    track.cursor = gap_begin(track, until);
    give(track, {.step = step_at(steps, track.cursor)}, until, true, true);
    track.cursor = until;
  }

  /// Begin of the time before `until` in which the thread did nothing. Main thread: without the backward that
  /// runs beside it; other threads: from the begin of that backward.
  double gap_begin(const Track& track, double until) {
    const double from = track.cursor;
    if (track.is_main) {
      const auto first = std::ranges::lower_bound(times.engine, from, {}, &HostTimes::Span::begin);
      if (first == times.engine.end() || first->begin >= until) return from;
      double last = first->end;
      for (auto node = first; node != times.engine.end() && node->begin < until; ++node)
        last = std::max(last, node->end);
      windows.push_back({first->begin, std::min(last, until)});
      if (first->begin > from)
        add({.step = step_at(steps, from), .part = StepPart::kLoss}, first->begin - from, false);
      return std::min(last, until);
    }
    auto window = std::ranges::upper_bound(windows, until, {}, &HostTimes::Span::begin);
    if (window == windows.begin()) return until;
    --window;
    return until > window->end ? until : std::max(from, window->begin);
  }

  /// Ends the frames that end by then, innermost first.
  void leave(Track& track, double until) {
    while (!track.frames.empty() && track.frames.back().end <= until) {
      const Frame frame = track.frames.back();
      if (frame.definite) account(track, frame.end);
      if (frame.kind == NameKind::kCollective) track.called = true;
      if (frame.kind == NameKind::kUnitEnd && track.is_main && !state.units.empty()) state.units.pop_back();
      if (frame.kind == NameKind::kModule && state.operation < 0) state.module.clear();
      track.frames.pop_back();
    }
  }

  /// Time since the cursor for the innermost frame.
  void account(Track& track, double until) {
    const Frame& frame = track.frames.back();
    Place place = frame.place;
    if (place.part == StepPart::kBackward) place.operation = track.current;
    // Waits of FSDP lie in no operation, but in its annotations; those of hooks in nodes.
    const bool may_wait = !frame.operation || frame.kind == NameKind::kNode;
    const bool waits = place.owner != Owner::kModel && !frame.operation;
    const bool computes = track.is_main || track.current >= 0;  // else it is a thread of a transport
    if (until > track.cursor && computes) give(track, place, until, waits, may_wait);
    track.cursor = std::max(track.cursor, until);
  }

  /// Gives a place the time since the cursor, in which the thread entered nothing, without waits for Gloo.
  /// \param may_wait time between operations; inside of one the thread waits for a collective that it called
  void give(const Track& track, Place place, double until, bool gap, bool may_wait) {
    if (until <= track.cursor) return;
    const bool waits = track.is_main && place.owner == Owner::kModel && (may_wait || track.called);
    const double wait = waits ? times.waited(track.cursor, until, track.called) : 0.0;
    add(place, until - track.cursor - wait, gap);
    place.owner = Owner::kCollective;
    if (wait > 0.0) add(place, wait, true);
  }

  void add(const Place& place, double duration, bool gap) {
    if (place.step < 0) return;
    ProfiledStep& step = steps[place.step];
    if (place.owner == Owner::kBlocked) {
      step.blocked += duration;
    } else if (place.owner != Owner::kModel) {
      (gap ? step.waited : step.strategy.host) += duration;
      if (place.part == StepPart::kBackward && step.has(place.operation))
        step.operations[place.operation].strategy += duration;
    } else if (step.has(place.operation) && place.part == StepPart::kForward) {
      step.operations[place.operation].forward.host += duration;
    } else if (step.has(place.operation) && place.part == StepPart::kBackward) {
      step.operations[place.operation].backward.host += duration;
    } else {
      step.parts[place.part].host += duration;
    }
  }

  /// Nodes around an event: more than its own are of a recomputed forward (reentrant checkpointing).
  static std::ptrdiff_t nodes_around(const Track& track, const KinetoEvent& event) {
    return std::ranges::count_if(track.frames, [&](const Frame& frame) {
      return frame.kind == NameKind::kNode && frame.end >= event.end;
    });
  }

  /// The operation whose backward begins. The thread of a recomputed forward has numbers of its own.
  void note_node(Track& track, const KinetoEvent& event) {
    if (event.sequence() < 0 || !event.backward) return;
    if (nodes_around(track, event) > (kinds[event.name] == NameKind::kNode ? 0 : 1)) return;
    const auto found = creators.find(event.sequence());
    if (found == creators.end() || found->second.first != step_at(steps, event.begin)) return;
    track.current = found->second.second;
    ProfiledOperation& operation = steps[found->second.first].operations[track.current];
    operation.node_begin = std::min(operation.node_begin, event.begin);
    if (kinds[event.name] != NameKind::kNode || ran.insert(event.sequence()).second) return;
    ++operation.reruns;
    operation.rerun_begin = event.begin;
  }

  /// True for the gradient of an input of the recomputed forward of an operation. Each input has one.
  bool is_of_input(int operation, const std::vector<std::int64_t>& extents) {
    auto& left = inputs.try_emplace(operation, dims_of(file, file.events[operation])).first->second;
    const auto found = std::ranges::find(left, extents);
    if (extents.empty() || found == left.end()) return false;
    left.erase(found);
    return true;
  }

  void note_gradient(const Track& track, const KinetoEvent& event) {
    const int step = step_at(steps, event.begin);
    if (step < 0) return;
    ProfiledStep& own = steps[step];
    const auto dims = dims_of(file, event);
    if (own.has(track.current) && !dims.empty() && nodes_around(track, event) > 1 &&
        is_of_input(own.operations[track.current].event, dims.front()))
      return;
    ++own.gradients;
    if (!own.has(track.current)) return;
    ProfiledOperation& operation = own.operations[track.current];
    ReadyGradient ready{.at = event.begin, .reruns = operation.reruns, .dtype = type_of(file, event)};
    if (!dims.empty()) ready.extents = dims.front();
    if (!dims.empty()) ready.elements = elements_of(dims.front());
    const auto before = std::ranges::find_if(operation.gradients, [&](const ReadyGradient& each) {
      return each.reruns < ready.reruns && each.extents == ready.extents;
    });
    if (before != operation.gradients.end()) {  // of the same parameter
      operation.gradients.erase(before);
      --own.gradients;
    }
    ready.host_s = operation.backward.host + std::max(0.0, event.begin - track.cursor);
    operation.gradients.push_back(ready);
  }

  int note_collective(int index, int step) {
    ProfiledCollective call = called_collective(file, index);
    if (call.kind.empty()) return -1;
    ProfiledStep& own = steps[step];
    call.in_forward =
        !own.operations.empty() && times.has_nodes(call.called, own.end) && !nodes_since(own, call.called);
    own.collectives.push_back(std::move(call));
    return static_cast<int>(own.collectives.size()) - 1;
  }

  /// True if a node began between the last operation before `time` and it.
  [[nodiscard]] bool nodes_since(const ProfiledStep& step, double time) const {
    const auto begin = [this](const ProfiledOperation& each) { return file.events[each.event].begin; };
    const auto later = std::ranges::upper_bound(step.operations, time, {}, begin);
    return later != step.operations.begin() && times.last_node(time).begin > begin(*std::prev(later));
  }

  /// True if operations inside have numbers of autograd nodes.
  [[nodiscard]] bool holds_sequences(int index) const {
    const KinetoEvent& outer = file.events[index];
    for (auto i = static_cast<std::size_t>(index) + 1; i < file.events.size(); ++i) {
      const KinetoEvent& inner = file.events[i];
      if (inner.track != outer.track || inner.begin >= outer.end) return false;
      if (inner.sequence() >= 0 && !inner.backward) return true;
    }
    return false;
  }

  /// An outermost differentiable operation of the main thread.
  void begin_operation(const KinetoEvent& event, int index, NameKind kind, int step, Place& place) {
    ProfiledStep& own = steps[step];
    state.in_loss = state.in_loss || kind == NameKind::kLoss;
    const bool after_nodes = !own.operations.empty() && nodes_since(own, event.begin);
    if (after_nodes) state.in_loss = kind == NameKind::kLoss;
    if (own.operations.empty() || after_nodes) ++own.micro_batches;
    state.operation = static_cast<int>(own.operations.size());
    own.operations.push_back({.name = file.name(event),
                              .module = state.module,
                              .unit = state.units.empty() ? "" : state.units.back(),
                              .event = index,
                              .micro_batch = own.micro_batches - 1,
                              .is_loss = state.in_loss});
    place.part = StepPart::kForward;
    place.operation = state.operation;
  }

  /// Of an event of the main thread that lies in no part yet.
  Place main_place(const Track& track, const KinetoEvent& event, int index, NameKind kind, int step) {
    Place place{.step = step};
    if (event.category == KinetoCategory::kAnnotation || kind == NameKind::kScript) return place;
    ProfiledStep& own = steps[step];
    const bool ahead = times.has_nodes(event.begin, own.end);
    const bool differentiable =
        (event.sequence() >= 0 && !event.backward) || !has_sequences || holds_sequences(index);
    if (event.category == KinetoCategory::kOperation && ahead && differentiable) {
      begin_operation(event, index, kind, step, place);
      return place;
    }
    const bool behind = !own.operations.empty() && nodes_since(own, event.begin);
    if (own.operations.empty()) {
      if (ahead) place.part = StepPart::kInput;
    } else if (!ahead) {
      if (!state.updated) place.part = StepPart::kOptimizer;
    } else if (!behind) {
      place.part = StepPart::kForward;
      place.operation = static_cast<int>(own.operations.size()) - 1;
    } else if (event.begin < times.last_node(event.begin).end + kNextNode) {
      place.part = StepPart::kBackward;  // outside its node by rounding
      place.operation = track.current;
    } else {  // between two backwards
      const bool closure = std::ranges::count(track.frames, true, &Frame::closure) > 0;
      place.part = closure || times.updates_next(event.begin) ? StepPart::kOptimizer : StepPart::kInput;
    }
    if (behind && place.part != StepPart::kRest && file.name(event) == "aten::as_strided")
      place.owner = Owner::kCopies;  // views of DDP's buckets
    return place;
  }

  Place place_of(const Track& track, const KinetoEvent& event, int index, NameKind kind) {
    const int step = step_at(steps, event.begin);
    if (step < 0 || event.begin > steps[step].end) return {};
    Place place = track.frames.empty() ? Place{} : track.frames.back().place;
    if (place.step != step) place = {.step = step};
    const std::string& name = file.name(event);
    if (kind == NameKind::kCollective) place.owner = Owner::kCollective;
    if (kind == NameKind::kCollective && place.call < 0 && name.starts_with(call_prefix) &&
        (call_prefix != "record_param_comms" || call_of(file, event)))
      place.call = note_collective(index, step);
    if (kind == NameKind::kAccumulate) note_gradient(track, event);
    if (kind == NameKind::kCopies || kind == NameKind::kUnitForward || kind == NameKind::kUnitEnd)
      place.owner = Owner::kCopies;
    if (kind == NameKind::kBlocking) place.owner = Owner::kBlocked;
    if (kind == NameKind::kOptimizer) place.part = StepPart::kOptimizer;
    if (kind == NameKind::kZeroGrad) place.part = StepPart::kZeroGrad;
    if (kind == NameKind::kInput) place.part = StepPart::kInput;
    if (kind == NameKind::kNode) place.part = StepPart::kBackward;
    if (place.part == StepPart::kBackward && place.operation < 0) place.operation = track.current;
    if (kind == NameKind::kNode) place.operation = track.current;
    if (place.part != StepPart::kRest || place.owner != Owner::kModel) return place;
    if (!track.is_main) {
      if (!track.frames.empty() || track.current < 0) return place;
      place.part = StepPart::kBackward;  // callbacks of the engine
      place.operation = track.current;
      return place;
    }
    const bool replica = std::ranges::count(track.frames, NameKind::kReplica, &Frame::kind) > 0 &&
                         event.sequence() < 0 && has_sequences && steps[step].operations.empty() &&
                         event.category != KinetoCategory::kAnnotation;
    if (replica) return {.step = step, .owner = Owner::kCopies};  // buffers that DDP broadcasts
    return main_place(track, event, index, kind, step);
  }

  HostLaunches launches{};
  std::unordered_map<int, double> copy_ends{};              ///< of pageable memory, by correlation
  std::unordered_map<int, std::pair<int, int>> creators{};  ///< step and operation by sequence number
  std::unordered_map<int, std::vector<std::vector<std::int64_t>>> inputs{};  ///< without a gradient, by event
  std::set<int> ran{};                                                       ///< numbers of nodes
  const HostTimes times{file, kinds, main_track};
  std::vector<HostTimes::Span> windows{};  ///< backwards beside the main thread
  MainState state{};                       ///< of the main thread
  std::string call_prefix{};
  bool has_sequences = false;
};

}  // namespace

int step_at(const std::vector<ProfiledStep>& steps, double time) {
  const auto found = std::ranges::upper_bound(steps, time, {}, &ProfiledStep::begin);
  return static_cast<int>(found - steps.begin()) - 1;
}

HostLaunches sweep_host(const KinetoFile& file, const std::vector<NameKind>& kinds, int main_track,
                        std::vector<ProfiledStep>& steps) {
  return HostSweep{file, kinds, main_track, steps}.run();
}

}  // namespace stepcast

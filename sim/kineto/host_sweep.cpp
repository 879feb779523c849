#include "sim/kineto/host_sweep.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <ranges>
#include <set>
#include <utility>

namespace stepcast {
namespace {

constexpr double kTolerance = 0.002;  // us; ends are rounded

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
    find_nodes();
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
    NameKind kind = NameKind::kOther;
  };
  struct Track {
    std::vector<Frame> frames{};
    double cursor = 0.0;
    int current = -1;  ///< operation whose backward runs
    bool is_main = false;
  };
  struct MainState {
    int step = -1, operation = -1;
    bool in_loss = false, updated = false;
    std::string module{};
    std::vector<std::string> units{};  ///< of FSDP, in each other
  };
  struct NodeTime {
    double begin = 0.0, end = 0.0;
  };

  /// Nodes of autograd, and the kind of event that calls of collectives are read from: the most detailed one.
  void find_nodes() {
    std::set<int> engines;  // threads of autograd beside the main one
    static constexpr std::array kPrefixes{"record_param_comms", "nccl:", "gloo:", "c10d::", ""};
    std::size_t best = kPrefixes.size() - 1;
    for (const KinetoEvent& event : file.events) {
      if (event.category == KinetoCategory::kCopy && file.name(event).find("Pageable") != std::string::npos)
        copy_ends[event.correlation()] = event.end;
      if (event.on_device()) continue;
      has_sequences = has_sequences || (event.sequence() >= 0 && !event.backward);
      for (std::size_t i = 0; i < best; ++i)
        if (file.name(event).starts_with(kPrefixes[i]) && (i > 0 || call_of(file, event))) best = i;
      if (kinds[event.name] != NameKind::kNode) continue;
      nodes.push_back({event.begin, event.end});
      if (event.track != main_track) engines.insert(event.track);
    }
    for (const KinetoEvent& event : file.events)  // also what the engine runs after its nodes
      if (!event.on_device() && engines.contains(event.track))
        other_nodes.push_back({event.begin, event.end});
    std::ranges::sort(nodes, {}, &NodeTime::begin);
    std::ranges::sort(other_nodes, {}, &NodeTime::begin);
    call_prefix = kPrefixes[best];
  }

  void sweep(int which) {
    Track track;
    track.is_main = which == main_track;
    const auto first = std::ranges::lower_bound(file.events, which, {}, &KinetoEvent::track);
    for (auto event = first; event != file.events.end() && event->track == which; ++event)
      enter(track, static_cast<int>(event - file.events.begin()));
    leave(track, 1e300);
    if (track.is_main) gap_begin(track, steps.back().end);
  }

  /// Adds up the operations' times. What follows a loss in the middle of the forward, of an auxiliary head,
  /// is no loss up to the last operation with parameters.
  void add_operations(ProfiledStep& step) {
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

  /// True if nodes of autograd begin between two times.
  [[nodiscard]] bool has_nodes(double from, double to) const {
    const auto next = std::ranges::lower_bound(nodes, from, {}, &NodeTime::begin);
    return next != nodes.end() && next->begin < to;
  }

  void enter(Track& track, int index) {
    const KinetoEvent& event = file.events[index];
    NameKind kind = kinds[event.name];
    // A call that returns after its copy of pageable memory has ended waits for the device.
    if (const auto copy = copy_ends.find(event.correlation());
        event.correlation() > 0 && copy != copy_ends.end() && copy->second <= event.end)
      kind = NameKind::kBlocking;
    // An optimizer step around a closure.
    if (kind == NameKind::kOptimizer && has_nodes(event.begin, event.end)) kind = NameKind::kOther;
    leave(track, event.begin + kTolerance);
    if (kind == NameKind::kStep && track.is_main) {
      gap_begin(track, event.begin);
      track.cursor = event.begin;
    }
    if (const int step = step_at(steps, event.begin); track.is_main && step != state.step)
      state = {.step = step};
    if (kind == NameKind::kModule) state.module = file.name(event);
    if (kind == NameKind::kOptimizer && track.is_main) state.updated = true;
    if (kind == NameKind::kUnitForward && track.is_main)
      state.units.push_back(in_parentheses(file.name(event)));
    note_node(track, event);
    Frame frame{.end = event.end, .operation = event.category == KinetoCategory::kOperation, .kind = kind};
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
        const double from = gap_begin(track, event.begin);
        if (from < event.begin && frame.place.owner != Owner::kBlocked)
          add(frame.place, event.begin - from, true);
        track.cursor = event.begin;
      }
    }
    if (event.category == KinetoCategory::kRuntime && event.correlation() > 0)
      if (HostLaunch& last = launches[event.correlation()]; event.begin >= last.time)
        last = {frame.place, event.begin};
    track.frames.push_back(frame);
  }

  /// Begin of the time before `until` in which the thread did nothing. Main thread: without the backward that
  /// runs beside it; other threads: from the begin of that backward.
  double gap_begin(const Track& track, double until) {
    const double from = track.cursor;
    if (track.is_main) {
      const auto first = std::ranges::lower_bound(other_nodes, from, {}, &NodeTime::begin);
      if (first == other_nodes.end() || first->begin >= until) return from;
      double last = first->end;
      for (auto node = first; node != other_nodes.end() && node->begin < until; ++node)
        last = std::max(last, node->end);
      windows.push_back({first->begin, std::min(last, until)});
      if (first->begin > from)
        add({.step = step_at(steps, from), .part = StepPart::kLoss}, first->begin - from, false);
      return std::min(last, until);
    }
    auto window = std::ranges::upper_bound(windows, until, {}, &NodeTime::begin);
    if (window == windows.begin()) return until;
    --window;
    return until > window->end ? until : std::max(from, window->begin);
  }

  /// Ends the frames that end by then, innermost first.
  void leave(Track& track, double until) {
    while (!track.frames.empty() && track.frames.back().end <= until) {
      const Frame frame = track.frames.back();
      if (frame.definite) account(track, frame.end);
      if (frame.kind == NameKind::kUnitEnd && track.is_main && !state.units.empty()) state.units.pop_back();
      if (frame.kind == NameKind::kModule && state.operation < 0) state.module.clear();
      track.frames.pop_back();
    }
  }

  /// Time since the cursor for the innermost frame.
  void account(Track& track, double until) {
    Place place = track.frames.back().place;
    if (place.part == StepPart::kBackward) place.operation = track.current;
    // Waits of FSDP lie in no operation, but in its annotations.
    const bool waits = place.owner != Owner::kModel && !track.frames.back().operation;
    const bool computes = track.is_main || track.current >= 0;  // else it is a thread of a transport
    if (until > track.cursor && computes) add(place, until - track.cursor, waits);
    track.cursor = std::max(track.cursor, until);
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
    double& begin = steps[found->second.first].operations[track.current].node_begin;
    begin = std::min(begin, event.begin);
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
    ReadyGradient ready{.at = event.begin, .dtype = type_of(file, event)};
    if (!dims.empty()) ready.elements = elements_of(dims.front());
    ProfiledOperation& operation = own.operations[track.current];
    ready.host_s = operation.backward.host + std::max(0.0, event.begin - track.cursor);
    operation.gradients.push_back(ready);
  }

  /// Elements that an all-gather makes of those of one rank: as PyTorch's own call around it has them.
  [[nodiscard]] double gathered(int index, double own) const {
    constexpr int kMostBetween = 16;  // events
    const KinetoEvent& event = file.events[index];
    for (int i = index - 1; i >= std::max(0, index - kMostBetween); --i) {
      const KinetoEvent& outer = file.events[i];
      const bool around = outer.track == event.track && outer.end >= event.end;
      if (!around || !file.name(outer).starts_with("c10d::_allgather_base_")) continue;
      if (const auto dims = dims_of(file, outer); !dims.empty()) return elements_of(dims.front());
    }
    return own * std::max(1, file.metadata.world_size);
  }

  int note_collective(int index, const std::string& name, int step) {
    const KinetoEvent& event = file.events[index];
    ProfiledCollective call{.called = event.begin};
    std::vector<std::vector<std::int64_t>> dims = dims_of(file, event);
    if (const auto from = call_of(file, event)) {
      call.kind = collective_kind(from->collective);
      call.dtype = from->dtype;
      call.ranks = from->ranks;
      call.group = from->group;
      call.bytes = call.kind == "all_gather" ? from->out : from->in;
    } else {
      call.kind = collective_kind(name);
      call.dtype = type_of(file, event);
      if (name.starts_with("nccl:") || name.starts_with("gloo:"))
        for (const auto& tensor : dims) call.bytes += elements_of(tensor);
      else if (!dims.empty())
        call.bytes =
            elements_of(dims[name.find("reduce_scatter") != std::string::npos && dims.size() > 1 ? 1 : 0]);
      if (call.kind == "all_gather" && !name.starts_with("c10d::")) call.bytes = gathered(index, call.bytes);
      if (name.starts_with("gloo:")) call.begin = event.begin, call.end = event.end;
    }
    if (call.kind.empty()) return -1;
    call.bytes *= element_bytes(call.dtype);
    ProfiledStep& own = steps[step];
    call.in_forward =
        !own.operations.empty() && has_nodes(event.begin, own.end) && !nodes_since(own, event.begin);
    own.collectives.push_back(call);
    return static_cast<int>(own.collectives.size()) - 1;
  }

  /// True if a node began between the last operation before `time` and it.
  [[nodiscard]] bool nodes_since(const ProfiledStep& step, double time) const {
    const auto begin = [this](const ProfiledOperation& each) { return file.events[each.event].begin; };
    const auto later = std::ranges::upper_bound(step.operations, time, {}, begin);
    const auto next = std::ranges::lower_bound(nodes, time, {}, &NodeTime::begin);
    return next != nodes.begin() && later != step.operations.begin() &&
           std::prev(next)->begin > begin(*std::prev(later));
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
  Place main_place(const KinetoEvent& event, int index, NameKind kind, int step, int current) {
    Place place{.step = step};
    if (event.category == KinetoCategory::kAnnotation || kind == NameKind::kScript) return place;
    ProfiledStep& own = steps[step];
    const bool ahead = has_nodes(event.begin, own.end);
    const bool differentiable =
        (event.sequence() >= 0 && !event.backward) || !has_sequences || holds_sequences(index);
    if (event.category == KinetoCategory::kOperation && ahead && differentiable) {
      begin_operation(event, index, kind, step, place);
    } else if (ahead && !own.operations.empty() && nodes_since(own, event.begin)) {
      place.part = StepPart::kBackward;  // outside its node by rounding
      place.operation = current;
    } else if (ahead && own.operations.empty()) {
      place.part = StepPart::kInput;
    } else if (ahead) {
      place.part = StepPart::kForward;
      place.operation = static_cast<int>(own.operations.size()) - 1;
    } else if (!state.updated && !own.operations.empty()) {
      place.part = StepPart::kOptimizer;
      if (file.name(event) == "aten::as_strided") place.owner = Owner::kCopies;  // views of DDP's buckets
    }
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
      place.call = note_collective(index, name, step);
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
    return main_place(event, index, kind, step, track.current);
  }

  HostLaunches launches{};
  std::unordered_map<int, double> copy_ends{};              ///< of pageable memory, by correlation
  std::unordered_map<int, std::pair<int, int>> creators{};  ///< step and operation by sequence number
  std::unordered_map<int, std::vector<std::vector<std::int64_t>>> inputs{};  ///< without a gradient, by event
  std::deque<NodeTime> nodes{};                                              ///< of all tracks, sorted
  std::deque<NodeTime> other_nodes{};  ///< events of autograd's other threads, sorted
  std::vector<NodeTime> windows{};     ///< backwards beside the main thread
  MainState state{};                   ///< of the main thread
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

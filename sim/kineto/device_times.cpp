#include "sim/kineto/device_times.hpp"

#include <algorithm>
#include <map>

#include "core/number.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

constexpr double kMostGap = 50.0;  // us; longer gaps are waits

using Interval = std::pair<double, double>;

/// Disjoint intervals in order.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> result;
  for (const Interval& each : intervals)
    if (!result.empty() && each.first <= result.back().second)
      result.back().second = std::max(result.back().second, each.second);
    else
      result.push_back(each);
  return result;
}

double length(const std::vector<Interval>& disjoint) {
  double sum = 0.0;
  for (const auto& [begin, end] : disjoint) sum += end - begin;
  return sum;
}

/// Length of the parts of `a` that no part of `b` covers. Both are disjoint.
double uncovered(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = length(a);
  std::size_t from = 0;
  for (const auto& [begin, end] : a) {
    while (from < b.size() && b[from].second <= begin) ++from;
    for (std::size_t i = from; i < b.size() && b[i].first < end; ++i)
      sum -= std::min(end, b[i].second) - std::max(begin, b[i].first);
  }
  return sum;
}

}  // namespace

DeviceTimes::DeviceTimes(const KinetoFile& file, const std::vector<NameKind>& /*kinds*/,
                         const HostSweep& host, std::vector<ProfiledStep>& steps)
    : file_(file), host_(host), steps_(steps) {}

void DeviceTimes::run() {
  place_events();
  if (events_.empty()) return;
  add_times();
  end_gradients();
  add_uses();
  find_periods();
}

void DeviceTimes::place_events() {
  for (int i = 0; i < file_.names.size(); ++i) collectives_.push_back(collective_kernel(file_.names[i]));
  std::map<int, double> busy;
  std::vector<Placed> unlinked;
  bool linked = false;
  for (int i = 0; i < static_cast<int>(file_.events.size()); ++i) {
    const KinetoEvent& event = file_.events[static_cast<std::size_t>(i)];
    if (!event.on_device()) continue;
    Placed placed{.event = i};
    const std::string& kind = collectives_[static_cast<std::size_t>(event.name)];
    if (event.category == KinetoCategory::kKernel && !kind.empty()) placed.collective = &kind;
    if (const HostSweep::Launch* launch = host_.launch(event.correlation)) {
      placed.place = launch->place;
      placed.launched = launch->time;
    } else {
      ++unlinked_;
      placed.launched = event.begin;
      if (placed.collective != nullptr) unlinked.push_back(placed);
    }
    if (placed.place.step < 0) continue;
    if (placed.collective == nullptr) {
      busy[event.track] += event.duration();
      if (event.category == KinetoCategory::kKernel)
        devices_.insert(file_.tracks[static_cast<std::size_t>(event.track)].process);
    }
    linked = linked || placed.collective != nullptr;
    events_.push_back(placed);
  }
  for (Placed& placed : unlinked) {  // else they were launched before the window
    const KinetoEvent& event = file_.events[static_cast<std::size_t>(placed.event)];
    placed.place.step = host_.step_at(event.begin);
    if (!linked && placed.place.step >= 0) events_.push_back(placed);
  }
  if (busy.empty()) return;
  busiest_ = std::ranges::max_element(busy, {}, [](const auto& each) { return each.second; })->first;
  const int process = file_.tracks[static_cast<std::size_t>(busiest_)].process;
  const auto number = number_in<int>(file_.texts[process]);
  if (number && *number >= 0 && *number < static_cast<int>(file_.metadata.devices.size()))
    name_ = file_.metadata.devices[static_cast<std::size_t>(*number)];
  else if (!file_.metadata.devices.empty())
    name_ = file_.metadata.devices.front();
}

void DeviceTimes::add_times() {
  double last_end = 0.0;
  for (const Placed& placed : events_) {
    const KinetoEvent& event = file_.events[static_cast<std::size_t>(placed.event)];
    ProfiledStep& step = steps_[static_cast<std::size_t>(placed.place.step)];
    step.device_end = std::max(step.device_end, event.end);
    if (placed.collective != nullptr) {
      if (placed.place.call >= 0) {
        ProfiledCollective& call = step.collectives[static_cast<std::size_t>(placed.place.call)];
        call.begin = call.end > 0.0 ? std::min(call.begin, event.begin) : event.begin;
        call.end = std::max(call.end, event.end);
      } else if (placed.place.owner != Owner::kCollective) {
        step.collectives.push_back(
            {.kind = *placed.collective, .called = placed.launched, .begin = event.begin, .end = event.end});
      }
      continue;
    }
    double duration = event.duration();
    if (event.track == busiest_) {
      const double gap = event.begin - last_end;
      if (last_end > 0.0 && gap > 0.0 && gap < kMostGap && placed.launched < last_end) duration += gap;
      last_end = std::max(last_end, event.end);
    }
    add(placed, duration);
  }
}

void DeviceTimes::add(const Placed& placed, double duration) {
  const KinetoEvent& event = file_.events[static_cast<std::size_t>(placed.event)];
  ProfiledStep& step = steps_[static_cast<std::size_t>(placed.place.step)];
  StepPart part = placed.place.part;
  if (placed.place.owner == Owner::kCopies || placed.place.owner == Owner::kCollective) {
    step.strategy.device += duration;
    return;
  }
  const bool from_host = file_.name(event).find("HtoD") != std::string::npos;
  if (from_host && part == StepPart::kForward) part = StepPart::kInput;
  if (step.has(placed.place.operation) && (part == StepPart::kForward || part == StepPart::kBackward)) {
    ProfiledOperation& operation = step.operations[static_cast<std::size_t>(placed.place.operation)];
    (part == StepPart::kForward ? operation.forward : operation.backward).device += duration;
    if (part == StepPart::kBackward) operation.launched.emplace_back(placed.launched, duration);
    if (operation.is_loss) part = StepPart::kLoss;
  }
  step.part(part).device += duration;
}

/// Parts of the backwards' device time that were launched before a gradient was accumulated.
void DeviceTimes::end_gradients() {
  for (ProfiledStep& step : steps_)
    for (ProfiledOperation& operation : step.operations) {
      for (ReadyGradient& ready : operation.gradients)
        for (const auto& [time, duration] : operation.launched)
          if (time <= ready.at) ready.device_s += duration;
      operation.launched = {};
    }
}

void DeviceTimes::add_uses() {
  struct Uses {
    std::vector<Interval> compute, copies, collectives;
  };
  std::vector<Uses> uses(steps_.size());
  std::vector<Interval> all_work;
  for (const Placed& placed : events_) {
    const KinetoEvent& event = file_.events[static_cast<std::size_t>(placed.event)];
    Uses& own = uses[static_cast<std::size_t>(placed.place.step)];
    const bool copy = event.category == KinetoCategory::kCopy;
    (placed.collective != nullptr ? own.collectives
     : copy                       ? own.copies
                                  : own.compute)
        .emplace_back(event.begin, event.end);
    if (placed.collective == nullptr) all_work.emplace_back(event.begin, event.end);
  }
  all_work = united(std::move(all_work));
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto compute = united(uses[i].compute), copies = united(uses[i].copies),
               collectives = united(uses[i].collectives);
    std::vector<Interval> all = compute;
    for (const auto* more : {&copies, &collectives}) all.insert(all.end(), more->begin(), more->end());
    steps_[i].use = {length(compute), length(copies), length(collectives), uncovered(collectives, all_work),
                     length(united(std::move(all)))};
  }
}

void DeviceTimes::find_periods() {
  std::vector<std::vector<const KinetoEvent*>> kernels(steps_.size());
  for (const Placed& placed : events_) {
    const KinetoEvent& event = file_.events[static_cast<std::size_t>(placed.event)];
    if (event.track == busiest_ && event.category == KinetoCategory::kKernel && placed.collective == nullptr)
      kernels[static_cast<std::size_t>(placed.place.step)].push_back(&event);
  }
  for (std::size_t i = 0; i + 1 < steps_.size(); ++i) {
    const auto &first = kernels[i], &second = kernels[i + 1];
    std::vector<double> distances;
    for (std::size_t k = 0; k < std::min(first.size(), second.size()); ++k)
      if (first[k]->name == second[k]->name) distances.push_back(second[k]->begin - first[k]->begin);
    constexpr double kLeastAgreement = 0.5;
    if (static_cast<double>(distances.size()) > kLeastAgreement * static_cast<double>(first.size()) &&
        steps_[i].nodes > 0 && steps_[i + 1].nodes > 0)
      periods_.push_back(median(distances));
  }
  runs_behind_ =
      steps_.size() > 1 && steps_.back().device_end > steps_.back().end + 0.1 * steps_.back().duration();
}

}  // namespace stepcast

#include "sim/kineto/device_times.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

constexpr double kMostGap = 50.0;     // us; longer gaps are waits
constexpr double kEndsRound = 0.002;  // us; an end may be so much later than what begins with it

using Interval = std::pair<double, double>;

/// Disjoint intervals in order.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::size_t count = 0;
  for (const Interval& each : intervals)
    if (count > 0 && each.first <= intervals[count - 1].second)
      intervals[count - 1].second = std::max(intervals[count - 1].second, each.second);
    else
      intervals[count++] = each;
  intervals.resize(count);
  return intervals;
}

double length(const std::vector<Interval>& disjoint) {
  return sum_of(disjoint, [](const Interval& each) { return each.second - each.first; });
}

/// Length of the parts of `a` that no part of `b` covers. Both are disjoint.
double uncovered(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  if (a.empty()) return 0.0;
  double sum = length(a);
  auto from = static_cast<std::size_t>(std::ranges::upper_bound(b, a.front().first, {}, &Interval::second) -
                                       b.begin());
  for (const auto& [begin, end] : a) {
    while (from < b.size() && b[from].second <= begin) ++from;
    for (std::size_t i = from; i < b.size() && b[i].first < end; ++i)
      sum -= std::min(end, b[i].second) - std::max(begin, b[i].first);
  }
  return std::max(0.0, sum);  // rounding
}

/// Gives the times of a device's events to the steps and operations that launched them.
struct DeviceTimes {
  const KinetoFile& file;
  const HostLaunches& launches;
  std::vector<ProfiledStep>& steps;

  DeviceReport run() {
    report.events.resize(steps.size());
    place_events();
    report.any = !events.empty();
    report.gpus = devices.size();
    if (!report.any) return report;
    add_times();
    end_gradients();
    add_uses();
    find_periods();
    return std::move(report);
  }

  struct Placed {
    int event = 0;
    Place place{};
    double launched = 0.0;
  };
  [[nodiscard]] const KinetoEvent& event_of(const Placed& placed) const { return file.events[placed.event]; }

  /// Kind of collective of a kernel, by its name or the call that it states; "": another kernel, or a copy.
  [[nodiscard]] std::string collective_of(const KinetoEvent& event) const {
    if (event.category != KinetoCategory::kKernel) return "";
    const std::string& named = kind_of_name[event.name];
    const auto call = named.empty() && event.arguments >= 0 ? call_of(file, event) : std::nullopt;
    if (!call) return named;
    const std::string kind = collective_kind(call->collective);
    return kind.empty() ? "collective" : kind;
  }

  void place_events() {
    kind_of_name = transformed(file.names, collective_kernel);
    std::vector<int> order;  // by begin
    bool linked = false;     // a collective
    for (int i = 0; i < static_cast<int>(file.events.size()); ++i) {
      const KinetoEvent& event = file.events[i];
      if (!event.on_device()) continue;
      order.push_back(i);
      linked = linked || (!collective_of(event).empty() && launches.contains(event.correlation()));
    }
    std::ranges::stable_sort(order, {}, [this](int i) { return file.events[i].begin; });
    std::map<int, double> busy;
    std::map<int, HostLaunch> last;  // by stream, which keeps the order of launches
    int step = -1;                   // of the last event; the host may be ahead
    for (const int i : order) {
      const KinetoEvent& event = file.events[i];
      HostLaunch& before = last[event.track];
      const bool collective = !collective_of(event).empty();
      const auto launch = launches.find(event.correlation());
      if (launch != launches.end()) before = launch->second;
      Placed placed{.event = i, .place = before.place, .launched = before.time};
      if (collective && launch == launches.end()) {
        placed.place = {.step = linked ? before.place.step : std::max(step, before.place.step)};
        placed.launched = event.begin;
      }
      if (placed.place.step < 0 && launch == launches.end()) ++report.unlinked;
      if (placed.place.step < 0) continue;
      step = placed.place.step;
      events.push_back(placed);
      if (collective) continue;
      busy[event.track] += event.duration();
      if (event.category == KinetoCategory::kKernel) devices.insert(file.tracks[event.track].process);
    }
    std::ranges::sort(events, {}, [](const Placed& each) { return std::pair(each.place.step, each.event); });
    if (busy.empty()) return;
    busiest = std::ranges::max_element(busy, {}, [](const auto& each) { return each.second; })->first;
    const auto number = number_in<int>(file.texts[file.tracks[busiest].process]);
    if (const auto& names = file.metadata.devices; !names.empty())
      report.name = names[number && *number > 0 && *number < std::ssize(names) ? *number : 0];
  }

  void add_times() {
    double last_end = 0.0;
    std::vector<const Placed*> coalesced;
    std::vector<Interval> busy;  // of the busiest stream
    std::vector<double> ends;    // of the device's other streams, and of collectives
    for (const Placed& placed : events) {
      const KinetoEvent& event = event_of(placed);
      if (event.track == busiest && collective_of(event).empty())
        busy.emplace_back(event.begin, event.end);
      else
        ends.push_back(event.end);
    }
    busy = united(std::move(busy));
    std::ranges::sort(ends);
    for (const Placed& placed : events) {
      const KinetoEvent& event = event_of(placed);
      ProfiledStep& step = steps[placed.place.step];
      ++report.events[placed.place.step];
      step.device_end = std::max(step.device_end, event.end);
      if (!collective_of(event).empty()) {
        if (placed.place.call >= 0) {
          ProfiledCollective& call = step.collectives[placed.place.call];
          call.begin = call.end > 0.0 ? std::min(call.begin, event.begin) : event.begin;
          call.end = std::max(call.end, event.end);
        } else {
          coalesced.push_back(&placed);
        }
        continue;
      }
      double duration = event.duration();
      if (event.track == busiest) {
        const auto next = std::ranges::upper_bound(ends, event.begin + kEndsRound);
        const double gap =
            event.begin - (next == ends.begin() ? last_end : std::max(last_end, *std::prev(next)));
        if (last_end > 0.0 && gap > 0.0 && gap < kMostGap && placed.launched < last_end) duration += gap;
        last_end = std::max(last_end, event.end);
      } else if (busiest >= 0 && file.tracks[event.track].process == file.tracks[busiest].process) {
        duration = uncovered({{event.begin, event.end}}, busy);
      }
      add(placed, duration);
    }
    std::ranges::stable_sort(coalesced, {}, &Placed::launched);
    for (const Placed* placed : coalesced) add_coalesced(*placed);
  }

  /// A kernel that no call launched, but what followed or holds calls: of all calls so far without a kernel,
  /// which share its time; of the first, if the launch is unknown. A kernel of a barrier has no call.
  void add_coalesced(const Placed& placed) {
    const KinetoEvent& event = event_of(placed);
    const std::string kind = collective_of(event);
    std::vector<ProfiledCollective>& calls = steps[placed.place.step].collectives;
    std::vector<ProfiledCollective*> own;
    for (ProfiledCollective& each : calls) {
      const bool sends = each.kind == "send" || each.kind == "recv" || each.kind == "all_to_all";
      const bool fits = kind == "collective" || each.kind == kind || (kind == "send_recv" && sends);
      if (fits && each.end == 0.0 && each.called <= placed.launched &&
          (own.empty() || placed.launched < event.begin))
        own.push_back(&each);
    }
    if (own.empty() && placed.place.owner == Owner::kCollective) return;
    if (own.empty()) own.push_back(&calls.emplace_back(ProfiledCollective{.kind = kind}));
    double begin = event.begin;
    for (ProfiledCollective* each : own) {
      each->begin = begin;
      each->end = begin += event.duration() / static_cast<double>(own.size());
    }
  }

  void add(const Placed& placed, double duration) {
    const KinetoEvent& event = event_of(placed);
    ProfiledStep& step = steps[placed.place.step];
    StepPart part = placed.place.part;
    if (placed.place.owner == Owner::kCopies || placed.place.owner == Owner::kCollective)
      return void(step.strategy.device += duration);
    const bool from_host = file.name(event).find("HtoD") != std::string::npos;
    if (from_host && part == StepPart::kForward) part = StepPart::kInput;
    if (step.has(placed.place.operation) && (part == StepPart::kForward || part == StepPart::kBackward)) {
      ProfiledOperation& operation = step.operations[placed.place.operation];
      (part == StepPart::kForward ? operation.forward : operation.backward).device += duration;
      if (part == StepPart::kBackward) operation.launched.emplace_back(placed.launched, duration);
      if (operation.is_loss) part = StepPart::kLoss;
    }
    step.parts[part].device += duration;
  }

  /// Parts of the backwards' device time that were launched before a gradient was accumulated.
  void end_gradients() {
    for (ProfiledStep& step : steps)
      for (ProfiledOperation& operation : step.operations) {
        for (ReadyGradient& ready : operation.gradients)
          for (const auto& [time, duration] : operation.launched)
            if (time <= ready.at) ready.device_s += duration;
        operation.launched = {};
      }
  }

  void add_uses() {
    std::vector<Interval> all_work;  // a collective may run beside the work of other steps
    for (const Placed& placed : events)
      if (const KinetoEvent& event = event_of(placed); collective_of(event).empty())
        all_work.emplace_back(event.begin, event.end);
    all_work = united(std::move(all_work));
    for (auto placed = events.begin(); placed != events.end();) {
      const auto step = static_cast<std::size_t>(placed->place.step);
      std::vector<Interval> compute, copies, collectives, all;
      for (; placed != events.end() && placed->place.step == static_cast<int>(step); ++placed) {
        const KinetoEvent& event = event_of(*placed);
        const bool copy = event.category == KinetoCategory::kCopy;
        std::vector<Interval>& use = copy ? copies : collective_of(event).empty() ? compute : collectives;
        for (std::vector<Interval>* each : {&use, &all}) each->emplace_back(event.begin, event.end);
      }
      if (collectives.empty())  // of a transport on the host, as Gloo's
        for (const ProfiledCollective& call : steps[step].collectives)
          if (call.end > 0.0) collectives.emplace_back(call.begin, call.end);
      collectives = united(std::move(collectives));
      steps[step].use = {length(united(std::move(compute))), length(united(std::move(copies))),
                         length(collectives), uncovered(collectives, all_work),
                         length(united(std::move(all)))};
    }
  }

  void find_periods() {
    std::vector<std::vector<const KinetoEvent*>> kernels(steps.size());
    std::vector<double> leads;
    for (const Placed& placed : events) {
      const KinetoEvent& event = event_of(placed);
      if (event.track != busiest || event.category != KinetoCategory::kKernel ||
          !collective_of(event).empty())
        continue;
      std::vector<const KinetoEvent*>& own = kernels[placed.place.step];
      if (own.empty() && steps[placed.place.step].nodes > 0) leads.push_back(event.begin - placed.launched);
      own.push_back(&event);
    }
    if (!leads.empty()) report.lead = median(leads);
    for (const ProfiledStep& step : steps)  // the last with a backward
      if (step.nodes > 0) report.runs_behind = step.device_end > step.end + 0.1 * step.duration();
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
      const auto &first = kernels[i], &second = kernels[i + 1];
      if (steps[i].nodes == 0 || first.empty() || second.empty()) continue;
      std::vector<double> distances;
      for (std::size_t k = 0; k < std::min(first.size(), second.size()); ++k)
        if (first[k]->name == second[k]->name) distances.push_back(second[k]->begin - first[k]->begin);
      const bool alike = 2 * distances.size() > first.size();
      report.periods.push_back(alike ? median(distances) : second.front()->begin - first.front()->begin);
    }
    if (steps.size() == 1 && !kernels.front().empty())
      report.periods.push_back(
          std::max(steps.front().duration(), steps.front().device_end - kernels.front().front()->begin));
  }

  std::vector<std::string> kind_of_name{};  ///< of collectives, by number of a kernel's name; "": none
  std::deque<Placed> events{};              ///< sorted by step, track and begin
  int busiest = -1;                         ///< stream
  std::set<int> devices{};
  DeviceReport report{};
};

}  // namespace

DeviceReport add_device_times(const KinetoFile& file, const HostLaunches& launches,
                              std::vector<ProfiledStep>& steps) {
  return DeviceTimes{file, launches, steps}.run();
}

}  // namespace stepcast

#include "sim/kineto/steps.hpp"

#include <algorithm>
#include <ranges>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {
namespace {

constexpr double kMostOfMedian = 1.5;  // longer steps are left out

/// Steps by the thread with the longest of them. Each lasts until the next begins.
std::pair<int, std::vector<ProfiledStep>> annotated_steps(const KinetoFile& file,
                                                          const std::vector<NameKind>& kinds, NameKind kind) {
  std::map<int, std::vector<ProfiledStep>> by_track;
  for (const KinetoEvent& event : file.events)
    if (event.category == KinetoCategory::kAnnotation && kinds[event.name] == kind)
      by_track[event.track].push_back({.name = file.name(event), .begin = event.begin, .end = event.end});
  if (by_track.empty()) return {-1, {}};
  const auto total = [](const auto& track) { return sum_of(track.second, &ProfiledStep::duration); };
  auto& [track, steps] = *std::ranges::max_element(by_track, {}, total);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) steps[i].end = steps[i + 1].begin;
  return {track, steps};
}

bool any_within(const std::vector<double>& begins, double from, double to) {
  const auto next = std::ranges::lower_bound(begins, from);
  return next != begins.end() && *next < to;
}

/// Joins the steps up to each one with an `Optimizer.step#` if others have a backward alone, because step()
/// of the profiler was called after every micro-batch. Joins of fewer steps than others were cut by the
/// window.
void join_micro_batches(EventBegins& begins, std::vector<ProfiledStep>& steps,
                        std::vector<std::string>& notes) {
  const auto has = [&](NameKind kind, const ProfiledStep& step) {
    return any_within(begins[kind], step.begin, step.end);
  };
  const auto is_part = [&](const ProfiledStep& step) {
    return has(NameKind::kNode, step) && !has(NameKind::kOptimizer, step);
  };
  if (begins[NameKind::kOptimizer].empty() || std::ranges::none_of(steps, is_part)) return;
  std::vector<std::pair<ProfiledStep, int>> joins;
  bool is_open = false;
  for (const ProfiledStep& step : steps) {
    if (is_open)
      joins.back().first.end = step.end, ++joins.back().second;
    else
      joins.emplace_back(step, 1);
    is_open = is_part(step);
  }
  if (is_open) joins.pop_back();
  const auto alike = [&](int parts) { return std::ranges::count(joins | std::views::values, parts); };
  int most = 0;
  for (const int parts : joins | std::views::values)
    if (std::pair(alike(parts), parts) > std::pair(alike(most), most)) most = parts;
  // If all have it, they may as well be steps, and the Optimizer.step of one was skipped or lost.
  const NameKind sign = begins[NameKind::kZeroGrad].empty() ? NameKind::kCollective : NameKind::kZeroGrad;
  const bool whole = std::ranges::all_of(steps, [&](const ProfiledStep& step) { return has(sign, step); });
  if (most < 2 || (alike(most) < 2 && most < 3 && whole))
    return notes.push_back("not every ProfilerStep# with a backward has an Optimizer.step");
  note(notes, "{} ProfilerStep# were joined to each of {} with an Optimizer.step", most,
       counted(static_cast<std::size_t>(alike(most)), "step"));
  steps.clear();
  for (const auto& [step, parts] : joins)
    if (parts == most) steps.push_back(step);
}

/// True if most nodes belong to operations of the step before.
bool cut_graphs(const KinetoFile& file, const std::vector<NameKind>& kinds, int track,
                const std::vector<ProfiledStep>& steps) {
  std::map<int, int> created;  // step by number of the node
  for (const KinetoEvent& event : file.events)
    if (event.track == track && event.sequence() >= 0 && !event.backward)
      created[event.sequence()] = step_at(steps, event.begin);
  std::ptrdiff_t whole = 0, cut = 0;
  for (const KinetoEvent& event : file.events)
    if (const auto found = created.find(event.sequence());
        kinds[event.name] == NameKind::kNode && found != created.end())
      ++(found->second == step_at(steps, event.begin) ? whole : cut);
  return cut > whole;
}

/// Joins every two steps if the numbers of gradients from update to update alternate, as of two models.
void join_updates(const std::vector<double>& gradients, std::vector<double>& ends,
                  std::vector<std::string>& notes) {
  const auto before = [&](double end) {
    return std::ranges::upper_bound(gradients, end) - gradients.begin();
  };
  std::vector<std::ptrdiff_t> counts;
  for (std::size_t i = 1; i < ends.size(); ++i) counts.push_back(before(ends[i]) - before(ends[i - 1]));
  if (counts.size() < 4 || counts[0] == counts[1] ||
      !std::equal(counts.begin() + 2, counts.end(), counts.begin()))
    return;
  for (std::size_t i = 1; i < ends.size(); ++i) ends.erase(ends.begin() + static_cast<long>(i));
  notes.emplace_back("gradients alternate between two updates, which are one step");
}

/// Updates in a step that follow backwards of their own.
std::size_t updates_in(EventBegins& begins, const ProfiledStep& step) {
  std::size_t updates = 0;
  double last = step.begin;
  for (const double at : begins[NameKind::kOptimizer])
    if (at < step.end && any_within(begins[NameKind::kNode], last, at)) {
      ++updates;
      last = at;
    }
  return updates;
}

}  // namespace

EventBegins begins_of(const KinetoFile& file, const std::vector<NameKind>& kinds) {
  EventBegins begins;
  for (const KinetoEvent& event : file.events) {
    const bool scaler = file.name(event) == "aten::_amp_update_scale_";
    begins[scaler ? NameKind::kOptimizer : kinds[event.name]].push_back(event.begin);
  }
  for (auto& [kind, all] : begins) std::ranges::sort(all);
  return begins;
}

std::pair<int, std::vector<ProfiledStep>> steps_of(const KinetoFile& file, const std::vector<NameKind>& kinds,
                                                   EventBegins& begins, std::vector<std::string>& notes) {
  auto steps = annotated_steps(file, kinds, NameKind::kStep);
  const int track = annotated_steps(file, kinds, NameKind::kOptimizer).first;
  std::string why = "no ProfilerStep#";
  double stop = 1e300;  // the profiler's, inside the last update
  if (steps.first >= 0) {
    if (!cut_graphs(file, kinds, steps.first, steps.second)) {
      join_micro_batches(begins, steps.second, notes);
      return steps;
    }
    why = "step() of the profiler is called between forward and backward";
    if (track < 0) throw InputError("{}: {}, and no Optimizer.step# ends a step", file.path, why);
    stop = steps.second.back().end;
  }
  const std::vector<double>& nodes = begins[NameKind::kNode];
  std::vector<double> ends;
  double first = 1e300, node_end = 0.0;
  for (const KinetoEvent& event : file.events) {
    if (event.track != track) continue;
    first = std::min(first, event.begin);
    if (kinds[event.name] == NameKind::kNode) node_end = std::max(node_end, event.end);
    if (kinds[event.name] != NameKind::kOptimizer || event.end <= node_end || event.end > stop) continue;
    if (ends.empty() || any_within(nodes, ends.back(), event.end))
      ends.push_back(event.end);
    else  // one of several optimizers
      ends.back() = std::max(ends.back(), event.end);
  }
  if (ends.empty()) return {-1, {}};
  if (ends.size() == 1) ends.insert(ends.begin(), first);
  join_updates(begins[NameKind::kAccumulate], ends, notes);
  std::vector<ProfiledStep> between;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i)
    between.push_back({.name = fmt::format("step {}", i + 1), .begin = ends[i], .end = ends[i + 1]});
  notes.push_back(why + (between.front().begin == first
                             ? ": one step, from the first event to the end of Optimizer.step"
                             : ": a step lasts from the end of one Optimizer.step to the end of the next"));
  return {track, between};
}

void drop_cut_steps(const KinetoFile& file, const DeviceReport& device, std::vector<ProfiledStep>& steps,
                    std::vector<std::string>& notes) {
  const double host_step = median(transformed(steps, &ProfiledStep::duration));
  const double most = 0.95 * static_cast<double>(std::ranges::max(device.events));
  const auto ended = [](const ProfiledStep& step) {
    return std::ranges::count_if(step.collectives, [](const auto& call) { return call.end > 0.0; });
  };
  const auto most_ended = std::ranges::max(transformed(steps, ended));
  const bool nccl = file.metadata.backend.find("nccl") != std::string::npos;
  std::size_t next = 0;
  std::vector<ProfiledStep> whole = steps;
  const auto dropped = std::erase_if(whole, [&](const ProfiledStep& step) {
    bool lacks = static_cast<double>(device.events[next++]) < most;
    for (const StepPart part : {StepPart::kForward, StepPart::kOptimizer})
      lacks = lacks || step.parts[part].device <= 0.0;
    const auto calls = ended(step);
    return lacks || (nccl && !step.collectives.empty() && (calls == 0 || calls < most_ended));
  });
  if (whole.empty() && file.cut.empty()) return;  // all alike
  if (whole.empty())
    throw InputError(
        "{}: ends early or is damaged at {}, before the kernels of a whole step: times of the device are "
        "unknown; steps of the host take {}",
        file.path, file.cut, to_text(Seconds(host_step / kSecond)));
  steps = std::move(whole);
  if (dropped > 0) notes.push_back(counted(dropped, "step") + " without all events of the device: left out");
}

void drop_steps(EventBegins& begins, const DeviceReport& device, std::vector<ProfiledStep>& steps,
                std::vector<std::string>& notes) {
  std::map<std::size_t, std::vector<double>> times;  // by gradients
  for (const ProfiledStep& step : steps)
    if (step.nodes > 0) times[step.gradients].push_back(step.duration());
  const auto most = [](const auto& each) { return each.second.size(); };
  const std::size_t usual = times.empty() ? 0 : std::ranges::max_element(times, {}, most)->first;
  std::erase_if(steps, [&](const ProfiledStep& step) {
    const std::vector<double>& alike = times[step.gradients];
    const std::size_t updates = updates_in(begins, step);
    const char* why =
        step.nodes == 0 ? "it has no backward"
        : alike.size() > 2 && step.duration() > kMostOfMedian * median(alike) && !device.runs_behind
            ? "it is much longer than the others"
        : usual > 0 && updates > 1 && step.gradients == updates * usual
            ? "it has the updates of several steps"
            : nullptr;
    if (why != nullptr)
      note(notes, "{} of {} is left out: {}", step.name, to_text(Seconds(step.duration() * 1e-6)), why);
    return why != nullptr;
  });
}

void note_updates(EventBegins& begins, const ProfiledStep& step, std::vector<std::string>& notes) {
  const std::size_t updates = updates_in(begins, step);
  if (updates > 1 && static_cast<int>(updates) <= step.micro_batches)  // more: inside the backward
    note(notes,
         "{} has {} backwards with an Optimizer.step each, which count as one step: call "
         "step() of the profiler after every training step",
         step.name, updates);
}

}  // namespace stepcast

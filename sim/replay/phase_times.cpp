#include "sim/replay/phase_times.hpp"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr double kForwardShare = 1.0 / 3.0;

const std::map<std::string, std::optional<Seconds> PhaseTimes::*> kKnownPhases{
    {"forward", &PhaseTimes::forward},
    {"backward", &PhaseTimes::backward},
    {"optimizer", &PhaseTimes::optimizer},
    {"input", &PhaseTimes::input},
    {"host", &PhaseTimes::host}};

void scale(PhaseCosts& costs, PhaseCost SegmentCosts::*phase, const std::optional<Seconds>& known,
           bool shares) {
  if (!known && !shares) return;
  const double sum =
      sum_of(costs.segments, [&](const SegmentCosts& segment) { return (segment.*phase).device_s; });
  const double factor = sum > 0.0 ? known.value_or(Seconds(0)).count() / sum : 0.0;
  for (SegmentCosts& each : costs.segments) each.*phase = {.device_s = factor * (each.*phase).device_s};
}

/// Bytes of the gradient of a parameter that two segments of a program use, by segment: positive for its last
/// user, negative for its owner. Autograd holds the first one until the second one, and both beside their sum
/// (torch/csrc/autograd/input_buffer.cpp).
std::map<int, Bytes> tied_gradients(const Program& program, const Model& model) {
  std::map<int, Bytes> sizes;
  for (const int user : std::ranges::reverse_view(program.segments))
    for (const int tensor : model.segments[user].tied) {
      const Parameter& one = model.parameters[tensor];
      if (!contains(program.segments, one.segment) || sizes.contains(one.segment)) continue;
      sizes[user] = one.gradient;
      sizes[one.segment] = -1.0 * one.gradient;
    }
  return sizes;
}

}  // namespace

PhaseTimes parse_phase_times(const std::string& text) {
  PhaseTimes times;
  if (text.empty()) return times;
  const Specification given = Specification::parse("phase times", "times:" + text);
  if (given.overrides.empty())
    throw InputError("'{}': expected phase=time[,phase=time], as forward=120ms,backward=130ms", text);
  for (const auto& [name, value] : given.overrides) {
    const Seconds time = parse_seconds(value, name);
    const auto found = kKnownPhases.find(name);
    if (found != kKnownPhases.end()) {
      times.*found->second = time;
    } else if (name == "compute") {
      times.forward = kForwardShare * time;
      times.backward = time - *times.forward;
    } else if (name == "stage") {
      times.stage = time;
    } else {
      std::vector<std::string> known = names_of(kKnownPhases);
      append(known, {"compute", "stage"});
      throw InputError(unknown_name("phase", name, known));
    }
  }
  return times;
}

std::string to_text(const PhaseTimes& times) {
  std::vector<std::string> texts;
  for (const auto& [name, phase] : kKnownPhases)
    if (times.*phase) texts.push_back(name + " " + to_text(*(times.*phase)));
  if (times.stage > Seconds(0)) texts.push_back("stage " + to_text(times.stage));
  return joined(texts);
}

PhaseCosts flop_shares(const Model& model, int samples) {
  PhaseCosts costs(model);
  costs.rows = {0};
  for (std::size_t i = 0; i < costs.segments.size(); ++i) {
    const Segment& from = model.segments[i];
    SegmentCosts& to = costs.segments[i];
    to.forward.device_s = from.flop.forward.count();
    to.backward.device_s = from.flop.backward.count();
    to.optimizer.device_s = model.gradient_bytes(from).count();
    to.saved_bytes = to.forward_peak_bytes = samples * from.saved.size.count();
  }
  return costs;
}

void apply(const PhaseTimes& times, PhaseCosts& costs, bool shares) {
  scale(costs, &SegmentCosts::forward, times.forward, shares);
  scale(costs, &SegmentCosts::backward, times.backward, shares);
  scale(costs, &SegmentCosts::optimizer, times.optimizer, shares);
  if (times.input) costs.input.device_s = times.input->count();
  if (times.host) costs.host.device_s = times.host->count();
  costs.sum_segments();
}

void add_stage_times(Seconds stage, const Schedule& schedule, PhaseCosts& costs) {
  std::set<int> openers;
  for (const Program& program : schedule.programs)
    if (!program.segments.empty()) openers.insert(program.segments.front());
  for (const int opener : openers) {
    SegmentCosts& segment = costs.segments[opener];
    segment.forward.device_s += kForwardShare * stage.count();
    segment.backward.device_s += (1.0 - kForwardShare) * stage.count();
  }
}

void free_gradients(Schedule& schedule, const Model& model) {
  for (Program& program : schedule.programs) {
    Bytes held;
    std::erase_if(program.resident, [&held](const MemoryChange& change) {
      const bool gradients = change.category == MemoryCategory::kGradients;
      if (gradients) held += change.size;
      return gradients;
    });
    double whole = 0.0;  // sharded gradients are a part of it
    for (const int segment : program.segments) whole += model.gradient_bytes(model.segments[segment]).count();
    if (whole <= 0.0 || held <= Bytes(0)) continue;
    std::map<int, Bytes> tied;
    if (held.count() > (1.0 - 1e-9) * whole) tied = tied_gradients(program, model);
    std::set<int> made;
    Bytes taken;
    for (Op& op : program.ops) {
      const auto* compute = std::get_if<Compute>(&op.action);
      if (compute == nullptr || !accumulates(compute->phase)) continue;
      const auto change = [&op](Bytes size, bool at_end = false) {
        op.memory.push_back({.category = MemoryCategory::kGradients, .size = size, .at_end = at_end});
      };
      const bool first = made.insert(compute->segment).second;  // its sum becomes the gradient
      const Bytes shared = value_or(tied, compute->segment, Bytes(0));
      if (shared < Bytes(0)) change((first ? 2.0 : 3.0) * shared, true);
      if (shared != Bytes(0)) change(shared > Bytes(0) ? shared : (first ? -1.0 : -2.0) * shared);
      if (!first) continue;
      const Segment& segment = model.segments[compute->segment];
      const Bytes part = (model.gradient_bytes(segment).count() / whole) * held;
      change(part);
      taken += part;
    }
    program.ops.back().memory.push_back(
        {.category = MemoryCategory::kGradients, .size = -1.0 * taken, .at_end = true});
  }
}

}  // namespace stepcast

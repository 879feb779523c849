#include "sim/replay/profile.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "sim/replay/device_estimate.hpp"

namespace stepcast {
namespace {

using Layer = std::array<double, 3>;  // forward, backward, update
using Layers = std::map<int, Layer>;

/// Values of an object by their keys, whole numbers of at least `least`. \throws InputError
std::map<int, nlohmann::json> by_number(const nlohmann::json& json, int least, const std::string& where) {
  if (!json.is_object() || json.empty())
    throw InputError("{}: expected an object with whole numbers as keys", where);
  std::map<int, nlohmann::json> result;
  for (const auto& [key, value] : json.items()) {
    const auto number = number_in<int>(key);
    if (!number || *number < least)
      throw InputError("{}: found key '{}', expected a whole number of at least {}", where, key, least);
    result.emplace(*number, value);
  }
  return result;
}

Layers layers_of(const nlohmann::json& json, std::size_t wanted, const std::string& where) {
  Layers layers;
  for (const auto& [layer, times] : by_number(json, 0, where)) {
    const bool three =
        times.is_array() && times.size() == 3 &&
        std::ranges::all_of(times, [](const auto& one) { return one.is_number() && one >= 0.0; });
    if (!three)
      throw InputError("{}.{}: expected [forward, backward, update] in seconds, none negative", where, layer);
    layers[layer] = times.get<Layer>();
  }
  if (layers.size() != wanted || layers.rbegin()->first != static_cast<int>(wanted) - 1)
    throw InputError("{}: has {} up to '{}', the model's segments are layers 0 to {}", where,
                     counted(layers.size(), "layer"), layers.rbegin()->first, wanted - 1);
  return layers;
}

TraceEntry profiled_entry(const Layers& layers, int samples, const Model& model) {
  TraceEntry entry;
  entry.batch = samples;
  entry.launch = {0};
  entry.input_s = entry.host_s = entry.loss_s = entry.step_s = {0.0};
  entry.loss_peak_bytes = loss_bytes(model, samples);
  for (const auto& [layer, times] : layers) {
    const Segment& segment = model.segments[layer];
    SegmentTrace& trace = entry.segments.emplace_back();
    trace.name = segment.name;
    trace.forward_s = {times[0]};
    trace.backward_s = {times[1]};
    trace.optimizer_s = {times[2]};
    trace.zero_grad_s = {0.0};
    trace.saved_bytes = trace.forward_peak_bytes = samples * segment.saved.size.count();
    entry.step_s.front() += times[0] + times[1] + times[2];
  }
  return entry;
}

}  // namespace

bool is_profile(const std::string& path) {
  std::ifstream file(path);
  char brace = 0, quote = 0, digit = 0;
  file >> brace >> quote >> digit;
  return brace == '{' && quote == '"' && digit >= '0' && digit <= '9';
}

Trace trace_of_profile(const std::string& path, const Model& model) {
  if (model.parallel.context > 1 || model.parallel.expert_ranks() > 1)
    throw InputError("{}: a profile contains tensor parallelism; --mesh context and expert need a trace",
                     path);
  Trace trace;
  trace.model = model.specification;
  trace.has_exchanges = true;
  std::set<int> others;
  Layers more;  // samples
  const auto batches = by_number(parse_json_file(path), 1, path);
  for (auto batch = batches.rbegin(); batch != batches.rend(); ++batch) {
    const std::string key = path + ": key '" + std::to_string(batch->first);
    for (const auto& [tensor, json] : by_number(batch->second, 1, key + "'")) {
      others.insert(tensor);
      if (tensor != model.parallel.tensor) continue;
      Layers layers = layers_of(json, model.segments.size(), key + "." + std::to_string(tensor) + "'");
      for (auto& [layer, times] : layers)
        for (std::size_t k = 0; k < times.size() && !more.empty(); ++k)
          times[k] = std::min(times[k], more.at(layer)[k]);
      trace.entries.insert(trace.entries.begin(), profiled_entry(layers, batch->first, model));
      more = std::move(layers);
    }
  }
  if (trace.entries.empty())
    throw InputError("{}: has no tensor parallelism {}; it has {}", path, model.parallel.tensor,
                     joined(others));
  return trace;
}

}  // namespace stepcast

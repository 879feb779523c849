#include "sim/replay/device_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/table.hpp"
#include "sim/replay/roofline.hpp"

namespace stepcast {
namespace {

std::string known_devices() {
  std::string names;
  for (const DeviceModel& device : device_models()) names += (names.empty() ? "" : ", ") + device.name;
  return names;
}

void check_describes_work(const Model& model) {
  if (model.has_fixed_times())
    throw InputError(
        "model '" + model.specification +
        "' declares its times; its layers say nothing of flop and bytes that a device could scale");
}

/// The samples of one phase, moved from device to device.
class PhaseMove {
 public:
  PhaseMove(const Model& model, double samples, const DeviceRates& from, const DeviceRates& to)
      : model_(model), samples_(samples), from_(from), to_(to) {}

  [[nodiscard]] std::vector<double> operator()(const std::vector<double>& measured, int segment,
                                               WorkPhase phase) const {
    const double factor = this->factor(segment, phase);
    const double floor = kernels_of(model_, segment, phase) * to_.kernel_launch.count();
    std::vector<double> result;
    result.reserve(measured.size());
    for (const double time : measured) result.push_back(std::max(factor * time, floor));
    return result;
  }

 private:
  /// Where the layers do nothing that is counted, what was measured is taken for moving memory.
  [[nodiscard]] double factor(int segment, WorkPhase phase) const {
    const Seconds before = roofline_time(model_, segment, phase, samples_, from_);
    const Seconds after = roofline_time(model_, segment, phase, samples_, to_);
    return before > Seconds(0) ? after / before : from_.memory / to_.memory;
  }

  const Model& model_;
  double samples_;
  DeviceRates from_, to_;
};

void add(std::vector<double>& total, const std::vector<double>& part) {
  for (std::size_t i = 0; i < std::min(total.size(), part.size()); ++i) total[i] += part[i];
}

/// Whole steps from their phases.
void sum_steps(TraceEntry& entry) {
  std::vector<double> steps(entry.steps(), 0.0);
  for (const auto* phase : {&entry.input_s, &entry.loss_s, &entry.host_s}) add(steps, *phase);
  for (const SegmentTrace& segment : entry.segments)
    for (const auto* phase :
         {&segment.forward_s, &segment.backward_s, &segment.zero_grad_s, &segment.optimizer_s})
      add(steps, *phase);
  entry.step_s = std::move(steps);
}

std::filesystem::path device_error_file() {
  return home_folder() / "calibration" / "data" / "device-errors.json";
}

}  // namespace

STEPCAST_JSON_REQUIRED(DeviceError, device, model, strategy, cluster, world_size, batch, predicted_s,
                       measured_s, source, remark)

const DeviceModel& traced_device(const Trace& trace, const std::string& path, const std::string& named) {
  if (!named.empty()) {
    const DeviceModel& device = device_model(named);
    if (device.gpu && trace.device.find("NVIDIA") == std::string::npos)
      throw UsageError("--trace-device " + named + ": " + path + " was measured on '" + trace.device +
                       "', which is no GPU");
    return device;
  }
  if (const DeviceModel* device = reported_device(trace.device)) return *device;
  throw InputError(
      path + ": was measured on '" + trace.device +
      "', which is none of the known devices; name the one that is most like it with --trace-device: " +
      known_devices());
}

TraceEntry moved(const TraceEntry& entry, const Model& model, const std::string& dtype,
                 const DeviceModel& traced, const DeviceModel& device) {
  check_describes_work(model);
  const PhaseMove move(model, entry.batch, rates_of(traced, dtype, entry.threads),
                       rates_of(device, dtype, entry.threads));
  TraceEntry result = entry;
  result.loss_s = move(entry.loss_s, -1, WorkPhase::kLoss);
  for (std::size_t i = 0; i < entry.segments.size(); ++i) {
    const SegmentTrace& before = entry.segments[i];
    const auto segment = static_cast<int>(i);
    SegmentTrace& after = result.segments[i];
    after.forward_s = move(before.forward_s, segment, WorkPhase::kForward);
    after.backward_s = move(before.backward_s, segment, WorkPhase::kBackward);
    after.zero_grad_s = move(before.zero_grad_s, segment, WorkPhase::kZeroGrad);
    after.optimizer_s = move(before.optimizer_s, segment, WorkPhase::kOptimizer);
  }
  sum_steps(result);
  result.native_step_s.clear();
  return result;
}

TraceEntry estimated(const Model& model, const std::string& dtype, const DeviceModel& device, int samples,
                     int threads) {
  check_describes_work(model);
  DeviceRates rates = rates_of(device, dtype, threads);
  rates.peak = kEstimatedComputeEfficiency * rates.peak;
  rates.memory = kEstimatedMemoryEfficiency * rates.memory;
  const auto time = [&](int segment, WorkPhase phase) {
    const double launches = kernels_of(model, segment, phase) * rates.kernel_launch.count();
    return std::vector<double>{
        std::max(roofline_time(model, segment, phase, samples, rates).count(), launches)};
  };
  TraceEntry entry;
  entry.batch = samples;
  entry.threads = threads;
  entry.launch = {0};
  entry.input_s = entry.host_s = entry.step_s = {0.0};
  entry.loss_s = time(-1, WorkPhase::kLoss);
  for (std::size_t i = 0; i < model.segments.size(); ++i) {
    const auto segment = static_cast<int>(i);
    SegmentTrace trace;
    trace.name = model.segments[i].name;
    trace.forward_s = time(segment, WorkPhase::kForward);
    trace.backward_s = time(segment, WorkPhase::kBackward);
    trace.zero_grad_s = {0.0};
    trace.optimizer_s = time(segment, WorkPhase::kOptimizer);
    trace.saved_bytes = trace.forward_peak_bytes = samples * model.segments[i].saved_size.count();
    entry.segments.push_back(std::move(trace));
  }
  sum_steps(entry);
  return entry;
}

std::string estimate_note(const std::string& dtype) {
  return "ESTIMATE, nothing was measured: " + dtype + " at " + percent_text(kEstimatedComputeEfficiency, 0) +
         " of the peak rate, " + percent_text(kEstimatedMemoryEfficiency, 0) +
         " of the memory bandwidth, kernel launches; no host time, no loading";
}

std::vector<DeviceError> device_errors() {
  const nlohmann::json json = load_json(device_error_file(), "stepcast.device-errors/1");
  try {
    return json.at("rows").get<std::vector<DeviceError>>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(device_error_file().string() + ": " + error.what());
  }
}

std::string known_errors_note(const DeviceModel& device) {
  std::string text;
  for (const DeviceError& row : device_errors()) {
    if (row.device != device.name) continue;
    const double ratio = row.predicted_s / row.measured_s;
    text.append(text.empty() ? "" : "; ");
    text += ratio < 0.5 ? std::to_string(std::lround(1.0 / ratio)) + " times too fast"
                        : signed_percent_text(ratio - 1.0);
    text.append(" for ").append(row.model);
    text.append(row.world_size > 1 ? ", " + row.strategy + " on " + std::to_string(row.world_size) : "");
    text.append(row.remark.empty() ? "" : ", " + row.remark).append(" (").append(row.source).append(")");
  }
  return text.empty() ? "not known: no estimate for " + device.name + " was ever held against a measurement"
                      : text;
}

std::string memory_warning(const Result& result, const DeviceModel& device) {
  if (device.memory <= Bytes(0)) return "";
  const auto largest =
      std::max_element(result.memory.begin(), result.memory.end(),
                       [](const MemoryUse& a, const MemoryUse& b) { return a.peak_bytes < b.peak_bytes; });
  if (largest == result.memory.end() || largest->peak_bytes <= device.memory.count()) return "";
  return "rank " + std::to_string(largest->rank) + " needs " + to_text(Bytes(largest->peak_bytes)) + ", " +
         device.name + " holds " + to_text(device.memory) + ": the step does not fit";
}

void check_places(const Cluster& cluster, const DeviceModel& device) {
  for (const int place : cluster.places()) {
    const std::string& other = cluster.node(place).device;
    if (other.empty() || other == device.name) continue;
    throw InputError("cluster '" + cluster.specification + "': " + cluster.node_name(place) + " is " + other +
                     ", but --device is " + device.name);
  }
}

}  // namespace stepcast

#include "runner/measure/gpu_watch.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ranges>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// libnvidia-ml.so.1 without its header. The interface of nvml.h is fixed.
class Nvml {
 public:
  using Device = void*;

  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ != nullptr && !call("nvmlInit_v2")) library_ = nullptr;
  }

  [[nodiscard]] Device device(const std::string& bus) const {
    Device device = nullptr;
    return call("nvmlDeviceGetHandleByPciBusId_v2", bus.c_str(), &device) ? device : nullptr;
  }
  [[nodiscard]] std::string version() const {
    std::array<char, 96> text{};
    const auto size = static_cast<unsigned>(text.size());
    return call("nvmlSystemGetDriverVersion", text.data(), size) ? text.data() : "unknown";
  }
  [[nodiscard]] double highest_clock_mhz(Device device) const {
    return number("nvmlDeviceGetMaxClockInfo", device, kMultiprocessors);
  }
  [[nodiscard]] std::optional<GpuReading> read(Device device) const {
    constexpr double kMilli = 1e-3;
    GpuReading reading;
    if (!call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reading.throttle_reasons))
      return std::nullopt;
    reading.sm_clock_mhz = number("nvmlDeviceGetClockInfo", device, kMultiprocessors);
    reading.memory_clock_mhz = number("nvmlDeviceGetClockInfo", device, kMemory);
    reading.temperature_c = number("nvmlDeviceGetTemperature", device, 0);
    if (unsigned milliwatts = 0; call("nvmlDeviceGetPowerUsage", device, &milliwatts))
      reading.power_w = kMilli * milliwatts;
    return reading;
  }

 private:
  static constexpr int kMultiprocessors = 1, kMemory = 2;  // nvmlClockType_t

  double number(const char* name, Device device, int which) const {
    unsigned value = 0;
    return call(name, device, which, &value) ? value : 0.0;
  }
  /// False if the library or the function is missing, or the call fails.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    auto* const function =
        library_ == nullptr ? nullptr : reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    return function != nullptr && function(arguments...) == 0;
  }

  void* library_;
};

}  // namespace

GpuDriver gpu_driver(const std::string& bus) {
  static const Nvml library;
  Nvml::Device const device = library.device(bus);
  if (device == nullptr) return {};
  return {library.version(), library.highest_clock_mhz(device), [device] { return library.read(device); }};
}

std::string throttle_text(unsigned long long reasons) {
  static constexpr std::array<std::pair<unsigned long long, const char*>, 6> kReasons{{
      {0x4, "software power cap"},
      {0x8, "hardware slowdown"},
      {0x10, "waits for GPUs of its group"},
      {0x20, "software thermal slowdown"},
      {0x40, "hardware thermal slowdown"},
      {0x80, "hardware power brake"},
  }};
  const auto applies = [&](const auto& one) { return (reasons & one.first) != 0; };
  return joined(
      transformed(kReasons | std::views::filter(applies), [](const auto& one) { return one.second; }));
}

std::vector<std::string> doubts(const GpuState& state) {
  if (state.name.empty()) return {};
  if (state.readings == 0)
    return {"clocks, power and throttling of the GPU are not known: libnvidia-ml.so.1 does not report them"};
  if (state.throttled.empty()) return {};
  return {"the GPU was slowed down: " + state.throttled};
}

GpuWatch::GpuWatch(std::string name, GpuDriver driver) : name_(std::move(name)), driver_(std::move(driver)) {
  if (!driver_.read) return;
  thread_ = std::jthread([this](const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kPeriod{200};
    while (!stop.stop_requested()) {
      if (const auto reading = driver_.read()) readings_.push_back(*reading);
      std::this_thread::sleep_for(kPeriod);
    }
  });
}

GpuWatch::GpuWatch(const DeviceStream* device)
    : GpuWatch(device == nullptr ? "" : device->device(),
               device == nullptr ? GpuDriver{} : gpu_driver(device->bus())) {}

GpuState GpuWatch::report() {
  thread_ = {};  // ends it
  GpuState state;
  state.name = name_;
  state.driver = driver_.version;
  state.highest_clock_mhz = driver_.highest_clock_mhz;
  if (readings_.empty()) return state;
  const std::vector<double> sm = transformed(readings_, &GpuReading::sm_clock_mhz);
  unsigned long long reasons = 0;
  for (const GpuReading& reading : readings_) reasons |= reading.throttle_reasons;
  state.power_w = largest_of(readings_, &GpuReading::power_w);
  state.temperature_c = largest_of(readings_, &GpuReading::temperature_c);
  state.readings = static_cast<int>(readings_.size());
  state.sm_clock_mhz = median(sm);
  state.lowest_clock_mhz = *std::ranges::min_element(sm);
  state.memory_clock_mhz = median(transformed(readings_, &GpuReading::memory_clock_mhz));
  state.throttled = throttle_text(reasons);
  return state;
}

}  // namespace stepcast

#include "runner/measure/gpu_watch.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/statistics.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// The few calls of nvml.h, whose interface is fixed, without that header.
class Nvml {
 public:
  using Device = void*;

  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    found_ = find(init_, "nvmlInit_v2") && find(by_bus_, "nvmlDeviceGetHandleByPciBusId_v2") &&
             find(version_, "nvmlSystemGetDriverVersion") && find(clock_, "nvmlDeviceGetClockInfo") &&
             find(highest_clock_, "nvmlDeviceGetMaxClockInfo") && find(power_, "nvmlDeviceGetPowerUsage") &&
             find(temperature_, "nvmlDeviceGetTemperature") &&
             find(reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons") && init_() == kSuccess;
  }

  [[nodiscard]] Device device(const std::string& bus) const {
    Device device = nullptr;
    return found_ && by_bus_(bus.c_str(), &device) == kSuccess ? device : nullptr;
  }
  [[nodiscard]] std::string version() const {
    std::array<char, 96> text{};
    return version_(text.data(), static_cast<unsigned>(text.size())) == kSuccess ? text.data() : "unknown";
  }
  [[nodiscard]] double highest_clock_mhz(Device device) const {
    return number(highest_clock_, device, kMultiprocessors);
  }
  [[nodiscard]] std::optional<GpuReading> read(Device device) const {
    constexpr double kMilli = 1e-3;
    GpuReading reading;
    if (reasons_(device, &reading.throttle_reasons) != kSuccess) return std::nullopt;
    reading.sm_clock_mhz = number(clock_, device, kMultiprocessors);
    reading.memory_clock_mhz = number(clock_, device, kMemory);
    reading.temperature_c = number(temperature_, device, 0);
    if (unsigned milliwatts = 0; power_(device, &milliwatts) == kSuccess)
      reading.power_w = kMilli * milliwatts;
    return reading;
  }

 private:
  static constexpr int kSuccess = 0;
  static constexpr int kMultiprocessors = 1, kMemory = 2;  // nvmlClockType_t
  using Ask = int (*)(Device, int which, unsigned* number);

  static double number(Ask ask, Device device, int which) {
    unsigned value = 0;
    return ask(device, which, &value) == kSuccess ? value : 0.0;
  }
  template <class Call>
  bool find(Call& call, const char* name) {
    call = reinterpret_cast<Call>(::dlsym(library_, name));
    return call != nullptr;
  }

  void* library_;
  bool found_ = false;
  int (*init_)() = nullptr;
  int (*by_bus_)(const char* bus, Device*) = nullptr;
  int (*version_)(char*, unsigned length) = nullptr;
  Ask clock_ = nullptr, highest_clock_ = nullptr, temperature_ = nullptr;
  int (*power_)(Device, unsigned* milliwatts) = nullptr;
  int (*reasons_)(Device, unsigned long long*) = nullptr;
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
  std::vector<std::string> words;
  for (const auto& [bit, name] : kReasons)
    if ((reasons & bit) != 0) words.emplace_back(name);
  return joined(words);
}

std::vector<std::string> doubts(const GpuState& state) {
  if (state.name.empty()) return {};
  if (state.readings == 0)
    return {"clocks, power and throttling of the GPU are not known: libnvidia-ml.so.1 says nothing of it"};
  if (state.throttled.empty()) return {};
  return {"the GPU was slowed down: " + state.throttled};
}

GpuWatch::GpuWatch(std::string name, GpuDriver driver) : name_(std::move(name)), driver_(std::move(driver)) {
  if (!driver_.read) return;
  thread_ = std::thread([this] {
    constexpr std::chrono::milliseconds kPeriod{200};
    while (!stopping_) {
      if (const auto reading = driver_.read()) readings_.push_back(*reading);
      std::this_thread::sleep_for(kPeriod);
    }
  });
}

GpuWatch::~GpuWatch() { stop(); }

void GpuWatch::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

GpuState GpuWatch::report() {
  stop();
  GpuState state;
  state.name = name_;
  state.driver = driver_.version;
  state.highest_clock_mhz = driver_.highest_clock_mhz;
  if (readings_.empty()) return state;
  std::vector<double> sm, memory;
  unsigned long long reasons = 0;
  for (const GpuReading& reading : readings_) {
    sm.push_back(reading.sm_clock_mhz);
    memory.push_back(reading.memory_clock_mhz);
    state.power_w = std::max(state.power_w, reading.power_w);
    state.temperature_c = std::max(state.temperature_c, reading.temperature_c);
    reasons |= reading.throttle_reasons;
  }
  state.readings = static_cast<int>(readings_.size());
  state.sm_clock_mhz = median(sm);
  state.lowest_clock_mhz = *std::min_element(sm.begin(), sm.end());
  state.memory_clock_mhz = median(memory);
  state.throttled = throttle_text(reasons);
  return state;
}

}  // namespace stepcast

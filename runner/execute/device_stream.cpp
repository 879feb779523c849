#include "runner/execute/device_stream.hpp"

#include "core/error.hpp"

namespace stepcast {

Registry<DeviceStreamFactory>& device_streams() {
  static Registry<DeviceStreamFactory> registry("device");
  return registry;
}

bool names_device(const std::string& name) {
  if (name == "cpu") return false;
  if (name != "cuda") throw UsageError("--device: " + unknown_name("device", name, {"cpu", "cuda"}));
  if (device_streams().entries().empty())
    throw CapabilityError(
        "--device cuda: this stepcast-runner was built without CUDA; './dev cuda-build DIR' builds one with "
        "the LibTorch in DIR");
  return true;
}

std::unique_ptr<DeviceStream> open_device(const std::string& name, int number) {
  return names_device(name) ? device_streams().find(name)(number) : nullptr;
}

}  // namespace stepcast

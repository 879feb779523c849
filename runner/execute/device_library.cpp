#include "runner/execute/device_library.hpp"

#include "core/error.hpp"

namespace stepcast {

Registry<DeviceLibrary>& device_libraries() {
  static Registry<DeviceLibrary> registry("device");
  return registry;
}

const Registry<DeviceLibrary>::Entry& find_device_library(const std::string& requested_by) {
  if (device_libraries().entries().empty())
    throw CapabilityError(
        "{}: this stepcast-runner was built without CUDA; build it where CMake finds the CUDA toolkit "
        "(-DCUDAToolkit_ROOT=...)",
        requested_by);
  return device_libraries().entries().front();
}

bool names_device(const std::string& name) {
  if (name == "cpu") return false;
  if (name != "cuda") throw UsageError("--device: " + unknown_name("device", name, {"cpu", "cuda"}));
  if (device_libraries().entries().empty())
    throw CapabilityError(
        "--device cuda: this stepcast-runner was built without CUDA; './dev cuda-build DIR' builds one with "
        "the LibTorch in DIR");
  return true;
}

std::unique_ptr<DeviceStream> open_device(const std::string& name, int number) {
  return names_device(name) ? device_libraries().find(name).open(number) : nullptr;
}

}  // namespace stepcast

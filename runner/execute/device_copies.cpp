#include "runner/execute/device_copies.hpp"

#include "core/error.hpp"

namespace stepcast {

Registry<DeviceCopiesFactory>& device_copies() {
  static Registry<DeviceCopiesFactory> registry("device");
  return registry;
}

const Registry<DeviceCopiesFactory>::Entry& find_device_copies(const std::string& requested_by) {
  if (device_copies().entries().empty())
    throw CapabilityError(
        "{}: this stepcast-runner was built without CUDA; build it where CMake finds the CUDA toolkit "
        "(-DCUDAToolkit_ROOT=...)",
        requested_by);
  return device_copies().entries().front();
}

std::vector<unsigned char> copied_pattern(std::size_t bytes, unsigned seed) {
  constexpr std::size_t kPeriod = 251;  // a prime
  std::vector<unsigned char> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<unsigned char>(1 + (i + seed) % kPeriod);
  return result;
}

}  // namespace stepcast

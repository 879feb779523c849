#include "runner/backend/backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"

namespace stepcast {

std::size_t size_of(DataType type) {
  constexpr std::array<std::size_t, 6> kSizes{2, 2, 4, 8, 8, 1};  // in the order of DataType
  return kSizes.at(static_cast<std::size_t>(type));
}

/// On whole cache lines, as LibTorch allocates its tensors: copies from odd addresses are slower.
std::shared_ptr<void> Backend::memory(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  void* const place =
      std::aligned_alloc(kLine, (std::max<std::size_t>(bytes, 1) + kLine - 1) / kLine * kLine);
  if (place == nullptr) throw RunError("no memory for " + std::to_string(bytes) + " B");
  std::memset(place, 0, bytes);
  return {place, std::free};
}

void Backend::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void Backend::clear(void* memory, std::size_t bytes) {
  if (bytes != 0) std::memset(memory, 0, bytes);
}

Registry<BackendFactory>& backends() {
  static Registry<BackendFactory> registry("backend");
  return registry;
}

const BackendFactory& find_backend(const std::string& name) {
  if (name == "nccl" && !backends().has(name))
    throw CapabilityError(
        "--backend nccl: this stepcast-runner was built without CUDA and NCCL; install the CUDA toolkit and "
        "NCCL's headers and build it again: cmake -DSTEPCAST_CUDA=ON prints what it does not find");
  return backends().find(name);
}

}  // namespace stepcast

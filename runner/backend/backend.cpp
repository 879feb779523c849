#include "runner/backend/backend.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

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

std::vector<int> GroupMembers::others() const {
  std::vector<int> result = ranks;
  result.erase(result.begin() + own);
  return result;
}

GroupMembers GroupMembers::subgroup(const std::string& group, const std::vector<int>& indices) {
  const auto place = std::ranges::find(indices, own);
  if (place == indices.end())
    throw std::logic_error("a rank makes a group '" + group + "' that it is not in");
  GroupMembers members{"", transformed(indices, [this](int rank) { return ranks.at(rank); }),
                       static_cast<int>(place - indices.begin())};
  const std::string key = group + "/" + ranks_in_words(members.ranks, {});
  members.name = name + "/" + key + "/" + std::to_string(groups[key]++);
  return members;
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

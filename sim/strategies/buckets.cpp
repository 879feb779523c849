#include "sim/strategies/buckets.hpp"

#include <utility>

namespace stepcast {

std::vector<Bucket> assign_buckets(const Model& model, Bytes first_cap, Bytes cap) {
  std::vector<Bucket> buckets;
  Bucket open;
  for (const int tensor : model.ready_order) {
    open.tensors.push_back(tensor);
    open.size += model.parameters[static_cast<std::size_t>(tensor)].size;
    if (open.size < (buckets.empty() ? first_cap : cap)) continue;
    buckets.push_back(std::exchange(open, {}));
  }
  if (!open.tensors.empty()) buckets.push_back(std::move(open));
  return buckets;
}

}  // namespace stepcast

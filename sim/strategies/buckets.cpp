#include "sim/strategies/buckets.hpp"

#include <algorithm>
#include <utility>

namespace stepcast {

std::vector<Bucket> assign_buckets(const Model& model, const std::vector<int>& segments, Bytes first_cap,
                                   Bytes cap) {
  std::vector<Bucket> buckets;
  Bucket open;
  for (const int tensor : model.ready_order) {
    const int segment = model.parameters[static_cast<std::size_t>(tensor)].segment;
    if (std::find(segments.begin(), segments.end(), segment) == segments.end()) continue;
    open.tensors.push_back(tensor);
    open.size += model.parameters[static_cast<std::size_t>(tensor)].size;
    if (open.size < (buckets.empty() ? first_cap : cap)) continue;
    buckets.push_back(std::exchange(open, {}));
  }
  if (!open.tensors.empty()) buckets.push_back(std::move(open));
  return buckets;
}

}  // namespace stepcast

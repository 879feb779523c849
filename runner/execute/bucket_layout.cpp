#include "runner/execute/bucket_layout.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace stepcast {

std::string bucket_layout(const Model& model, const std::vector<Bucket>& buckets) {
  nlohmann::json layout = nlohmann::json::array();
  for (const Bucket& bucket : buckets) {
    nlohmann::json tensors = nlohmann::json::array();
    for (const int tensor : bucket.tensors)
      tensors.push_back(model.parameters[static_cast<std::size_t>(tensor)].name);
    layout.push_back({{"bytes", static_cast<std::int64_t>(bucket.size.count())}, {"tensors", tensors}});
  }
  return layout.dump();
}

}  // namespace stepcast

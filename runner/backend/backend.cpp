#include "runner/backend/backend.hpp"

namespace stepcast {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return sizeof(std::uint16_t);
    case DataType::kFloat32:
      return sizeof(float);
    case DataType::kFloat64:
      return sizeof(double);
    case DataType::kInt64:
      return sizeof(std::int64_t);
    case DataType::kUInt8:
      return sizeof(std::uint8_t);
  }
  return 0;
}

Registry<BackendFactory>& backends() {
  static Registry<BackendFactory> registry("backend");
  return registry;
}

}  // namespace stepcast

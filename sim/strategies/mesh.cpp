#include "sim/strategies/mesh.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {

int Mesh::size(const std::string& dimension) const {
  for (const auto& [name, size] : dimensions)
    if (name == dimension) return size;
  return 1;
}

int Mesh::stride(const std::string& dimension) const {
  int stride = 1;
  for (auto it = dimensions.rbegin(); it != dimensions.rend() && it->first != dimension; ++it)
    stride *= it->second;
  return stride;
}

int Mesh::index(const std::string& dimension, int rank) const {
  return size(dimension) == 1 ? 0 : rank / stride(dimension) % size(dimension);
}

std::string Mesh::text() const {
  std::string text;
  for (const auto& [name, size] : dimensions)
    if (size > 1) text += (text.empty() ? "" : ",") + name + "=" + std::to_string(size);
  return text;
}

Mesh Mesh::parse(const std::string& text, int world_size, const std::vector<std::string>& known) {
  Mesh mesh;
  if (text.empty()) {
    mesh.dimensions.emplace_back(known.front(), world_size);
    return mesh;
  }
  const std::string what = "--mesh " + text + ": ";
  long long product = 1;
  for (const std::string& part : parts_of(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError(what + unknown_name("dimension", name, known));
    const auto size = equals == std::string::npos ? std::nullopt : positive_number(part.substr(equals + 1));
    if (!size) throw UsageError(what + "'" + part + "' needs a size of at least 1, such as " + name + "=2");
    for (const auto& [other, its_size] : mesh.dimensions)
      if (other == name) throw UsageError(what + "dimension '" + name + "' stands twice");
    mesh.dimensions.emplace_back(name, *size);
    product *= *size;
  }
  if (product != world_size)
    throw UsageError("--mesh " + text + " is " + std::to_string(product) + " ranks, the world size is " +
                     std::to_string(world_size));
  return mesh;
}

}  // namespace stepcast

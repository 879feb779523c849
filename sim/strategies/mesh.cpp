#include "sim/strategies/mesh.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace stepcast {
namespace {

[[noreturn]] void refuse(const std::string& mesh, const std::vector<std::string>& reason) {
  std::string message = "--mesh " + mesh + ": ";
  for (const std::string& part : reason) message += part;
  throw UsageError(message);
}

}  // namespace

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
  long long product = 1;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string part = text.substr(start, end - start);
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string digits = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UsageError("--mesh " + text + ": " + unknown_name("dimension", name, known));
    const bool number =
        !digits.empty() && digits.size() <= 6 &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!number || std::stoi(digits) < 1)
      refuse(text, {"'", part, "' needs a size of at least 1, such as ", name, "=2"});
    for (const auto& [other, size] : mesh.dimensions)
      if (other == name) refuse(text, {"dimension '", name, "' stands twice"});
    mesh.dimensions.emplace_back(name, std::stoi(digits));
    product *= mesh.dimensions.back().second;
    start = end + 1;
  }
  if (product != world_size)
    throw UsageError("--mesh " + text + " is " + std::to_string(product) + " ranks, the world size is " +
                     std::to_string(world_size));
  return mesh;
}

}  // namespace stepcast

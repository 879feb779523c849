#include "sim/strategies/mesh.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/overloaded.hpp"
#include "core/table.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {
namespace {

const std::vector<std::string> kStandardOrder{"pipeline", "data",   "shard",        "context",
                                              "tensor",   "expert", "expert_tensor"};

/// Position in standard order.
auto place_of(const std::string& dimension) { return std::ranges::find(kStandardOrder, dimension); }

/// True for what divides ranks of other dimensions a second time.
bool is_folded(const std::string& dimension) { return dimension.starts_with("expert"); }

/// Product of sizes, or a number above that of all ranks.
long long ranks_of(const std::vector<Mesh::Dimension>& dimensions) {
  constexpr long long kMost = 1'000'000'000'000;
  long long product = 1;
  for (const auto& [name, size] : dimensions)
    if (!is_folded(name)) product = std::min(kMost, product * size);
  return product;
}

std::string text_of(const std::vector<Mesh::Dimension>& dimensions) {
  std::vector<std::string> parts;
  for (const auto& [name, size] : dimensions) parts.push_back(fmt::format("{}={}", name, size));
  return joined(parts, ",");
}

}  // namespace

Mesh Mesh::parse(const std::string& text) {
  Mesh mesh;
  for (const std::string& part : parts_of(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (place_of(name) == kStandardOrder.end())
      throw UsageError("--mesh {}: {}", text, unknown_choice("dimension", name, kStandardOrder));
    const auto size = equals == std::string::npos ? std::nullopt : positive_number(part.substr(equals + 1));
    if (!size) throw UsageError("--mesh {}: '{}' needs a size of at least 1, such as {}=2", text, part, name);
    if (mesh.has(name)) throw UsageError("--mesh {}: dimension '{}' is given twice", text, name);
    mesh.dimensions_.emplace_back(name, *size);
  }
  std::ranges::stable_partition(mesh.dimensions_, [](const Dimension& one) { return !is_folded(one.first); });
  return mesh;
}

std::string Mesh::text() const {
  std::vector<Dimension> shown = dimensions_;
  std::erase_if(shown, [&](const Dimension& one) {
    return one.second == 1 && (one.first != "shard" || size("context") == 1);
  });
  return text_of(shown);
}

bool Mesh::has(const std::string& dimension) const {
  return std::ranges::find(dimensions_, dimension, &Dimension::first) != dimensions_.end();
}

int Mesh::size(const std::string& dimension) const {
  const auto found = std::ranges::find(dimensions_, dimension, &Dimension::first);
  return found == dimensions_.end() ? 1 : found->second;
}

int Mesh::stride(const std::string& dimension) const {
  const auto found = std::ranges::find(dimensions_, dimension, &Dimension::first);
  return static_cast<int>(ranks_of(std::vector<Dimension>(found + 1, dimensions_.end())));
}

int Mesh::index(const std::string& dimension, int rank) const {
  return size(dimension) == 1 ? 0 : rank / stride(dimension) % size(dimension);
}

void Mesh::set(const std::string& dimension, int size) {
  auto found = std::ranges::find(dimensions_, dimension, &Dimension::first);
  if (found == dimensions_.end())
    found = dimensions_.emplace(
        std::ranges::find_if(
            dimensions_, [&](const Dimension& other) { return place_of(other.first) > place_of(dimension); }),
        dimension, 1);
  found->second = size;
}

Mesh Mesh::resolved(int ranks, const std::vector<std::string>& open) const {
  Mesh result = *this;
  const long long given = ranks_of(dimensions_);
  const auto left = std::ranges::find_if(open, [&](const std::string& name) { return !has(name); });
  if (left != open.end() && ranks % given == 0)
    result.set(*left, static_cast<int>(ranks / given));
  else if (given != ranks)
    throw UsageError("--mesh {} {} {} ranks, the world size is {}", text_of(dimensions_),
                     left == open.end() ? "is" : "needs a multiple of", given, ranks);
  const int dividing = ranks / result.size("pipeline");
  if (const long long experts = 1LL * size("expert") * size("expert_tensor"); dividing % experts != 0)
    throw UsageError(
        "--mesh {}: {} {} does not divide the {} ranks that data, shard, context and tensor multiply to",
        text_of(dimensions_), has("expert_tensor") ? "expert x expert_tensor" : "expert", experts, dividing);
  return result;
}

Mesh Mesh::in_standard_order() const {
  Mesh result = *this;
  std::ranges::sort(result.dimensions_, {}, [](const Dimension& one) { return place_of(one.first); });
  return result;
}

void arrange(Schedule& schedule, const Mesh& mesh) {
  const Mesh standard = mesh.in_standard_order();
  if (standard.text() == mesh.text()) return;
  std::vector<int> place(schedule.world_size, 0);  // by rank in standard order
  for (const auto& [name, size] : mesh.dimensions())
    for (int rank = 0; !is_folded(name) && rank < schedule.world_size; ++rank)
      place[rank] += standard.index(name, rank) * mesh.stride(name);
  const auto moved = [&](const std::vector<int>& by_rank) {
    std::vector<int> result(by_rank.size());
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) result[place[rank]] = by_rank[rank];
    return result;
  };
  schedule.program_of_rank = moved(schedule.program_of_rank);
  schedule.data_index = moved(schedule.data_index);
  for (GroupFamily& family : schedule.families) family.group_of_rank = moved(family.group_of_rank);
  for (Group& group : schedule.groups) {
    for (int& rank : group.ranks) rank = place[rank];
    // The group of all ranks is the job's own.
    if (static_cast<int>(group.ranks.size()) == schedule.world_size) std::ranges::sort(group.ranks);
  }
  if (!mesh.has("pipeline")) return;
  for (Program& program : schedule.programs)
    for (Op& op : program.ops)
      std::visit(Overloaded{
                     [&](OneOf<Send, Recv> auto& message) {
                       message.offset =
                           message.offset / standard.stride("pipeline") * mesh.stride("pipeline");
                     },
                     [](const auto&) {},
                 },
                 op.action);
}

}  // namespace stepcast

#include <cmath>
#include <set>

#include "core/error.hpp"
#include "models/chakra.hpp"
#include "models/layer.hpp"
#include "models/model_file.hpp"

namespace stepcast {

std::vector<ChakraNode> in_order(const std::vector<ChakraNode>& nodes, const std::string& name) {
  std::map<std::uint64_t, std::size_t> place;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (!place.emplace(nodes[i].id, i).second)
      throw InputError("{}: two nodes have the id {}", name, nodes[i].id);
  std::vector<std::size_t> missing(nodes.size(), 0);
  std::vector<std::vector<std::size_t>> users(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const std::uint64_t before : nodes[i].after) {
      const auto found = place.find(before);
      if (found == place.end())
        throw InputError("{}: node {} depends on node {}, which is not there", name, nodes[i].id, before);
      ++missing[i];
      users[found->second].push_back(i);
    }
  std::set<std::size_t> ready;  // in the order of the file
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (missing[i] == 0) ready.insert(i);
  std::vector<ChakraNode> ordered;
  while (!ready.empty()) {
    const std::size_t next = *ready.begin();
    ready.erase(ready.begin());
    ordered.push_back(nodes[next]);
    for (const std::size_t user : users[next])
      if (--missing[user] == 0) ready.insert(user);
  }
  if (ordered.size() < nodes.size()) throw InputError("{}: dependencies form a circle", name);
  return ordered;
}

Model chakra_model(const std::string& path) {
  Model model;
  model.name = path.substr(path.rfind('/') + 1);
  model.specification = model.path = path;
  model.input.kind = model.loss.kind = model.optimizer.kind = "none";
  const ChakraStep step = load_chakra(path);
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
    for (const ChakraNode& node : in_order(step.ranks[rank], path)) {
      if (!computes(node)) continue;
      const auto nanos = static_cast<std::int64_t>(std::llround(node.duration_s * 1e9));
      Segment segment;
      segment.name = fmt::format("rank {} node {}", rank, node.id);
      segment.fixed = FixedTimes{Seconds(node.duration_s), Seconds(0)};
      segment.layers.push_back(
          {.kind = "fixed",
           .name = segment.name,
           .sizes = {{"forward", nanos}, {"backward", 0}, {"parameter", 0}, {"output", 0}}});
      model.segments.push_back(std::move(segment));
    }
  if (model.segments.empty())
    throw InputError(
        "{}: no node has a duration; traces with operations alone need a device, which is not supported",
        path);
  if (const std::string twice = complete(model); !twice.empty())
    throw InputError("{}: two nodes of {}", path, twice);
  return model;
}

}  // namespace stepcast

#include "sim/strategies/chakra.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/chakra.hpp"

namespace stepcast {
namespace {

CollectiveKind collective_of(const ChakraNode& node) {
  constexpr std::int64_t kReduceScatterBlock = 8;  // REDUCE_SCATTER_BLOCK: the same with equal parts
  const auto type = optional_at(node.numbers, std::string("comm_type"));
  const std::int64_t known =
      type == kReduceScatterBlock ? traits(CollectiveKind::kReduceScatter).chakra : type.value_or(-1);
  const auto kind = std::ranges::find(kCollectiveKinds, known, &CollectiveTraits::chakra);
  if (known < 0 || kind == kCollectiveKinds.end())
    throw InputError("node {} ({}): comm_type {} is not replayed; 0, 2 to 8 are", node.id, node.name,
                     type ? std::to_string(*type) : "is missing and");
  return kind->value;
}

/// Programs of Chakra's traces: nodes that compute run in the order of in_order(), collectives and messages
/// start when what they wait for is done.
struct ChakraSchedule {
  const ChakraStep& step;
  const Model& model;
  Schedule& schedule;

  void add_all() {
    const std::vector<int> all = whole_numbers(0, step.ranks.size());
    schedule.groups = {{"world", all}};
    for (const auto& [name, ranks] : step.groups) add_group(name, ranks);
    schedule.program_of_rank = all;
    for (const int rank : all) add_program(rank);
    if (segment != static_cast<int>(model.segments.size()))
      throw InputError("the traces have changed since the model was read");
  }

  void add_group(const std::string& name, const std::vector<int>& ranks) {
    for (const int rank : ranks)
      if (rank < 0 || rank >= static_cast<int>(step.ranks.size()))
        throw InputError("group '{}' names rank {}, and there are {}", name, rank, step.ranks.size());
    if (ranks.empty()) throw InputError("group '{}' has no ranks", name);
    group_of[name] = static_cast<int>(schedule.groups.size());
    schedule.groups.push_back({name, ranks});
  }

  void add_program(int rank) {
    Program& program = schedule.programs.emplace_back();
    std::map<std::uint64_t, std::vector<int>> done;  ///< operations to wait for, by node
    for (const ChakraNode& node : in_order(step.ranks[static_cast<std::size_t>(rank)], model.path)) {
      Op op{.name = fmt::format("{}#{}", node.name, node.id)};
      for (const std::uint64_t before : node.after)
        op.after.insert(op.after.end(), done[before].begin(), done[before].end());
      op.after = sorted_unique(std::move(op.after));
      if (!add_action(rank, node, op)) {
        done[node.id] = op.after;
        continue;
      }
      done[node.id] = {static_cast<int>(program.ops.size())};
      program.ops.push_back(std::move(op));
    }
  }

  /// \returns false for a node that takes no time
  bool add_action(int rank, const ChakraNode& node, Op& op) {
    if (node.type <= ChakraType::kCompute) {
      if (!computes(node)) return false;
      op.action = Compute{.phase = Phase::kForward, .segment = segment++};
      return true;
    }
    op.stream = Stream::kComm;
    const Bytes size(static_cast<double>(number(node, "comm_size")));
    if (node.type == ChakraType::kCollective) {
      const auto group = node.group.empty() || node.group == "0" ? 0 : group_named(node);
      op.action =
          Collective{.kind = collective_of(node), .message = size, .group = group, .payload = BufferArray{}};
      return true;
    }
    const bool sends = node.type == ChakraType::kSend;
    const std::int64_t peer = number(node, sends ? "comm_dst" : "comm_src");
    if (peer >= static_cast<std::int64_t>(step.ranks.size()) || peer == rank)
      throw InputError("node {} ({}) of rank {}: the other rank is {}, and there are {}", node.id, node.name,
                       rank, peer, step.ranks.size());
    const auto tag = static_cast<int>(number(node, "comm_tag") & 0x7FFFFFFF);
    const int offset = static_cast<int>(peer) - rank;
    if (sends)
      op.action = Send{.offset = offset, .message = size, .tag = tag};
    else
      op.action = Recv{.offset = offset, .message = size, .tag = tag};
    return true;
  }

  [[nodiscard]] int group_named(const ChakraNode& node) const {
    const auto found = group_of.find(node.group);
    if (found == group_of.end())
      throw InputError("node {} ({}): PREFIX.groups.json does not list the ranks of group '{}'", node.id,
                       node.name, node.group);
    return found->second;
  }

  static std::int64_t number(const ChakraNode& node, const char* key) {
    const auto found = node.numbers.find(key);
    if (found == node.numbers.end() || found->second < 0)
      throw InputError("node {} ({}): attribute '{}' is missing or below 0", node.id, node.name, key);
    return found->second;
  }

  std::map<std::string, int> group_of{};
  int segment = 0;
};

}  // namespace

Schedule chakra_schedule(const Model& model, int world_size) {
  const ChakraStep step = load_chakra(model.path);
  if (world_size != static_cast<int>(step.ranks.size()))
    throw UsageError("{} and its like are traces of {} ranks; --world-size is {}", model.path,
                     step.ranks.size(), world_size);
  Schedule schedule;
  schedule.strategy = schedule.label = "chakra";
  schedule.world_size = world_size;
  schedule.data_parallel = 0;  // traces contain no batches
  try {
    ChakraSchedule{step, model, schedule}.add_all();
    validate(schedule);
  } catch (const std::logic_error& error) {
    throw InputError("{}: the traces of the ranks do not fit each other: {}", model.path, error.what());
  } catch (const InputError& error) {
    throw InputError("{}: {}", model.path, error.what());
  }
  return schedule;
}

}  // namespace stepcast

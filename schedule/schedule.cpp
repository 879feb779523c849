#include "schedule/schedule.hpp"

#include <algorithm>
#include <map>
#include <memory_resource>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "core/ranges.hpp"
#include "schedule/operations.hpp"

namespace stepcast {

namespace {

[[noreturn]] void violated(const std::string& what, const Op& op) {
  throw std::logic_error("schedule: operation '" + op.name + "' " + what);
}

/// True if hooks of this kind are allowed in an operation.
bool hosts(const Op& host, const Op& hook) {
  const auto* compute = std::get_if<Compute>(&host.action);
  if (compute == nullptr) return false;
  const bool is_call = hook.exchange >= 0 && std::holds_alternative<Collective>(hook.action);
  if (host.stream != hook.stream && !is_call) return false;
  if (hook.exchange < 0) return accumulates(compute->phase);
  return compute->phase != Phase::kZeroGrad && compute->phase != Phase::kOptimizer;
}

/// Hooks of an operation follow it directly, with nothing of its stream between.
void check_hook(const Program& program, std::size_t index) {
  const Op& op = program.ops[index];
  if (op.within >= static_cast<int>(index))
    violated("is a hook of an operation that does not come before it", op);
  if (!hosts(program.ops[op.within], op)) violated("is a hook of something that has none", op);
  for (std::size_t i = static_cast<std::size_t>(op.within) + 1; i < index; ++i)
    if (program.ops[i].stream == program.ops[op.within].stream && program.ops[i].within != op.within)
      violated("is a hook, but '" + program.ops[i].name + "' runs between", op);
}

void check_program(const Schedule& schedule, const Program& program) {
  std::pmr::monotonic_buffer_resource memory;
  std::pmr::unordered_set<std::string_view> names(&memory);
  names.reserve(program.ops.size());
  for (const auto [i, op] : enumerated(program.ops)) {
    if (!names.insert(op.name).second) violated("is twice in its program", op);
    if (const Stream stream = operation_of(op).stream; op.stream != stream)
      violated(
          std::string("is on stream ") + to_text(op.stream) + ", but its kind belongs on " + to_text(stream),
          op);
    for (const int before : op.after)
      if (before < 0 || before >= static_cast<int>(i))
        violated("comes after something that is not before it", op);
    if (op.within >= 0) check_hook(program, i);
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      const std::size_t named = schedule.groups.size() + schedule.families.size();
      if (call->group < 0 || call->group >= static_cast<int>(named))
        violated("names a group that does not exist", op);
      if (call->group >= static_cast<int>(schedule.groups.size())) continue;  // without roots
      const auto size = static_cast<int>(schedule.groups[call->group].ranks.size());
      if (call->root < 0 || call->root >= size) violated("has a root outside its group", op);
    }
  }
}

/// Copies move bytes between two different locations of existing ranks.
void check_copies(const Schedule& schedule) {
  for_each_action<Copy>(schedule, [&](int rank, const Op& op, const Copy& copy) {
    if (op.stream != Stream::kCopy || op.within >= 0) violated("is a copy outside of the copy stream", op);
    if (copy.from == copy.to && copy.from.kind != MemoryLocation::Kind::kSocket)
      violated("copies a location to itself", op);
    if (copy.message <= Bytes(0)) violated("copies nothing", op);
    for (const MemoryLocation& place : {copy.from, copy.to})
      if (!place.is_host() && (rank + place.offset < 0 || rank + place.offset >= schedule.world_size))
        violated("copies from or to the device of a rank outside the world", op);
  });
}

using CallKey = std::tuple<CollectiveKind, double, int>;

/// Calls by group.
std::map<int, std::vector<CallKey>> calls_of(const Program& program) {
  std::map<int, std::vector<CallKey>> result;
  for (const Op& op : program.ops)
    if (const auto* call = std::get_if<Collective>(&op.action))
      result[call->group].emplace_back(call->kind, call->message.count(), call->root);
  return result;
}

/// All ranks of a group issue the same calls in the same order; other ranks issue none.
void check_collectives(const Schedule& schedule) {
  const auto by_program = transformed(schedule.programs, calls_of);
  const auto named = static_cast<int>(schedule.groups.size() + schedule.families.size());
  static const std::vector<CallKey> kNone;
  for (int name = 0; name < named; ++name) {
    std::vector<const std::vector<CallKey>*> calls;
    for (const auto& program : by_program) {
      const auto found = program.find(name);
      calls.push_back(found == program.end() ? &kNone : &found->second);
    }
    std::vector<const std::vector<CallKey>*> first(schedule.groups.size(), nullptr);
    std::vector<int> group_of(schedule.world_size, -1);
    if (name < static_cast<int>(schedule.groups.size()))
      for (const int rank : schedule.groups[name].ranks) group_of[rank] = name;
    else
      group_of = schedule.families[name - schedule.groups.size()].group_of_rank;
    for (int rank = 0; rank < schedule.world_size; ++rank) {
      const std::vector<CallKey>* own = calls[schedule.program_of_rank[rank]];
      if (group_of[rank] < 0) {
        if (!own->empty())
          throw std::logic_error("schedule: rank " + std::to_string(rank) + " calls a foreign group");
        continue;
      }
      const std::vector<CallKey>*& others = first[group_of[rank]];
      if (others == nullptr) others = own;
      if (others != own && *own != *others)
        throw std::logic_error("schedule: ranks of group " + schedule.groups[group_of[rank]].name +
                               " issue different collectives (rank " + std::to_string(rank) + ")");
    }
  }
}

/// Messages of one program by the offset of the other rank: tags and sizes, sorted.
using Messages = std::map<int, std::vector<std::pair<int, double>>>;

template <class Kind>
std::vector<Messages> messages_of(const Schedule& schedule) {
  std::vector<Messages> result;
  for (const Program& program : schedule.programs) {
    Messages& messages = result.emplace_back();
    for (const Op& op : program.ops)
      if (const auto* message = std::get_if<Kind>(&op.action))
        messages[message->offset].emplace_back(message->tag, message->message.count());
    for (auto& [offset, list] : messages) std::ranges::sort(list);
  }
  return result;
}

/// Every message of `ours` meets one of `others` with the same pair of ranks, tag and size. Ranks with equal
/// programs on both sides are compared once.
void check_messages(const Schedule& schedule, const std::vector<Messages>& ours,
                    const std::vector<Messages>& others) {
  std::set<std::tuple<int, int, int>> checked;
  for (int rank = 0; rank < schedule.world_size; ++rank) {
    const int own = schedule.program_of_rank[rank];
    for (const auto& [offset, messages] : ours[own]) {
      const int peer = rank + offset;
      const bool exists = peer >= 0 && peer < schedule.world_size;
      const int other = exists ? schedule.program_of_rank[peer] : -1;
      if (exists && !checked.insert({own, other, offset}).second) continue;
      const auto found = exists ? others[other].find(-offset) : Messages::const_iterator{};
      if (!exists || found == others[other].end() || found->second != messages)
        throw std::logic_error("schedule: messages between rank " + std::to_string(rank) + " and rank " +
                               std::to_string(peer) + " do not pair up");
    }
  }
}

}  // namespace

bool computes(const Program& program, Phase phase) {
  return has_action<Compute>(program, [phase](const Compute& one) { return one.phase == phase; });
}

bool communicates(const Schedule& schedule) {
  return std::ranges::any_of(schedule.programs, [](const Program& program) {
    return std::ranges::any_of(program.ops, [](const Op& op) { return op.stream == Stream::kComm; });
  });
}

void validate(const Schedule& schedule) {
  if (schedule.world_size < 1 ||
      schedule.program_of_rank.size() != static_cast<std::size_t>(schedule.world_size))
    throw std::logic_error("schedule: program_of_rank does not cover the world");
  for (const int index : schedule.program_of_rank)
    if (index < 0 || index >= static_cast<int>(schedule.programs.size()))
      throw std::logic_error("schedule: a rank has no program");
  for (const int index : schedule.data_index)
    if (index < 0 || index >= schedule.data_parallel)
      throw std::logic_error("schedule: a rank works on a batch that does not exist");
  for (const Group& group : schedule.groups)
    for (const int rank : group.ranks)
      if (rank < 0 || rank >= schedule.world_size)
        throw std::logic_error("schedule: group " + group.name + " names a rank outside the world");
  for (const Program& program : schedule.programs) check_program(schedule, program);
  check_collectives(schedule);
  const std::vector<Messages> sends = messages_of<Send>(schedule), receives = messages_of<Recv>(schedule);
  check_messages(schedule, sends, receives);
  check_messages(schedule, receives, sends);
  check_copies(schedule);
}

}  // namespace stepcast

#include "sim/schedule/schedule.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>

#include "sim/schedule/operations.hpp"

namespace stepcast {

const char* to_text(Stream stream) {
  return std::array{"compute", "comm", "copy", "host"}[static_cast<std::size_t>(stream)];
}

const char* to_text(Phase phase) {
  return std::array{
      "forward", "recompute", "backward", "loss", "zero_grad", "optimizer"}[static_cast<std::size_t>(phase)];
}

const char* to_text(CollectiveKind kind) {
  return std::array{"all_reduce", "gather",         "scatter",   "broadcast",
                    "all_gather", "reduce_scatter", "all_to_all"}[static_cast<std::size_t>(kind)];
}

const char* to_text(MemoryCategory category) {
  return std::array{"parameters", "gradients", "optimizer_state", "activations",
                    "communication_buffers"}[static_cast<std::size_t>(category)];
}

namespace {

[[noreturn]] void violated(const std::string& what, const Op& op) {
  throw std::logic_error("schedule: operation '" + op.name + "' " + what);
}

bool is_backward(const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.action);
  return compute != nullptr && compute->phase == Phase::kBackward;
}

/// Hooks of a backward operation follow it directly, with nothing of its stream between.
void check_hook(const Program& program, std::size_t index) {
  const Op& op = program.ops[index];
  if (op.within >= static_cast<int>(index))
    violated("is a hook of an operation that does not come before it", op);
  const Op& host = program.ops[op.within];
  if (!is_backward(host) || host.stream != op.stream)
    violated("is a hook of something else than a backward", op);
  for (std::size_t i = static_cast<std::size_t>(op.within) + 1; i < index; ++i)
    if (program.ops[i].stream == op.stream && program.ops[i].within != op.within)
      violated("is a hook, but '" + program.ops[i].name + "' runs between", op);
}

void check_program(const Schedule& schedule, const Program& program) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (!names.insert(op.name).second) violated("stands twice in its program", op);
    if (op.stream != operation_of(op).stream)
      violated(std::string("stands on the stream ") + to_text(op.stream) + ", but its kind belongs on " +
                   to_text(operation_of(op).stream),
               op);
    for (const int before : op.after)
      if (before < 0 || before >= static_cast<int>(i))
        violated("comes after something that is not before it", op);
    if (op.within >= 0) check_hook(program, i);
    if (const auto* call = std::get_if<Collective>(&op.action)) {
      if (call->group < 0 || call->group >= static_cast<int>(schedule.groups.size()))
        violated("names a group that does not exist", op);
      const auto size = static_cast<int>(schedule.groups[call->group].ranks.size());
      if (call->root < 0 || call->root >= size) violated("has a root outside its group", op);
    }
  }
}

/// Copies move something from one place to another, both of ranks that exist.
void check_copies(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.world_size; ++rank) {
    for (const Op& op : schedule.program(rank).ops) {
      const auto* copy = std::get_if<Copy>(&op.action);
      if (copy == nullptr) continue;
      if (op.stream != Stream::kCopy || op.within >= 0)
        violated("copies elsewhere than on the copy stream", op);
      if (copy->from == copy->to) violated("copies from a place to itself", op);
      if (copy->message <= Bytes(0)) violated("copies nothing", op);
      for (const MemoryPlace& place : {copy->from, copy->to})
        if (place.kind == MemoryPlace::Kind::kDevice &&
            (rank + place.offset < 0 || rank + place.offset >= schedule.world_size))
          violated("copies from or to the device of a rank outside the world", op);
    }
  }
}

using CallKey = std::tuple<CollectiveKind, double, int>;

std::vector<CallKey> calls_of(const Program& program, int group) {
  std::vector<CallKey> result;
  for (const Op& op : program.ops)
    if (const auto* call = std::get_if<Collective>(&op.action); call != nullptr && call->group == group)
      result.emplace_back(call->kind, call->message.count(), call->root);
  return result;
}

/// All ranks of a group issue the same calls in the same order; other ranks issue none.
void check_collectives(const Schedule& schedule) {
  for (std::size_t g = 0; g < schedule.groups.size(); ++g) {
    std::set<int> members(schedule.groups[g].ranks.begin(), schedule.groups[g].ranks.end());
    std::map<int, std::vector<CallKey>> by_program;
    for (std::size_t p = 0; p < schedule.programs.size(); ++p)
      by_program[static_cast<int>(p)] = calls_of(schedule.programs[p], static_cast<int>(g));
    const std::vector<CallKey>* first = nullptr;
    for (int rank = 0; rank < schedule.world_size; ++rank) {
      const auto& calls = by_program[schedule.program_of_rank[rank]];
      if (!members.contains(rank)) {
        if (!calls.empty())
          throw std::logic_error("schedule: rank " + std::to_string(rank) + " calls a foreign group");
        continue;
      }
      if (first == nullptr) first = &calls;
      if (calls != *first)
        throw std::logic_error("schedule: ranks of group " + schedule.groups[g].name +
                               " issue different collectives (rank " + std::to_string(rank) + ")");
    }
  }
}

/// Every send meets a receive of the same pair, tag and size.
void check_messages(const Schedule& schedule) {
  std::map<std::tuple<int, int, int, double>, int> open;
  for (int rank = 0; rank < schedule.world_size; ++rank) {
    for (const Op& op : schedule.program(rank).ops) {
      if (const auto* send = std::get_if<Send>(&op.action))
        ++open[{rank, rank + send->offset, send->tag, send->message.count()}];
      if (const auto* recv = std::get_if<Recv>(&op.action))
        --open[{rank + recv->offset, rank, recv->tag, recv->message.count()}];
    }
  }
  for (const auto& [key, count] : open)
    if (count != 0)
      throw std::logic_error("schedule: messages from rank " + std::to_string(std::get<0>(key)) +
                             " to rank " + std::to_string(std::get<1>(key)) + " do not pair up");
}

}  // namespace

bool computes(const Program& program, Phase phase) {
  return std::any_of(program.ops.begin(), program.ops.end(), [phase](const Op& op) {
    const auto* compute = std::get_if<Compute>(&op.action);
    return compute != nullptr && compute->phase == phase;
  });
}

bool communicates(const Schedule& schedule) {
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [](const Program& program) {
    return std::any_of(program.ops.begin(), program.ops.end(),
                       [](const Op& op) { return op.stream == Stream::kComm; });
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
  check_messages(schedule);
  check_copies(schedule);
}

}  // namespace stepcast

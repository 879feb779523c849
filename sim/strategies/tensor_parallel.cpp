#include "sim/strategies/tensor_parallel.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/overloaded.hpp"
#include "core/ranges.hpp"
#include "models/hugging_face.hpp"
#include "schedule/operations.hpp"
#include "sim/strategies/local_step.hpp"

namespace stepcast {

CollectiveKind collective_kind(LayerCollectiveKind kind) {
  using enum LayerCollectiveKind;
  static const std::map<LayerCollectiveKind, CollectiveKind> kCalls{
      {kAllReduce, CollectiveKind::kAllReduce}, {kMaximum, CollectiveKind::kAllReduce},
      {kAllGather, CollectiveKind::kAllGather}, {kReduceScatter, CollectiveKind::kReduceScatter},
      {kAllToAll, CollectiveKind::kAllToAll},   {kShift, CollectiveKind::kShift}};
  return kCalls.at(kind);
}

namespace {

/// True for a collective of gradients or parameters of experts that a part of its group has.
bool is_of_experts(const Payload& payload, const Schedule& schedule, const Model& model) {
  const auto first = [&](const std::vector<int>& tensors) {
    return model.parameters[tensors.front()].expert;
  };
  return std::visit(
      Overloaded{
          [&](const GradientArray& array) { return model.parameters[array.tensor].expert; },
          [&](const BucketArray& array) { return first(schedule.buckets[array.bucket].tensors); },
          [&](const UnitParameters& array) { return first(schedule.units[array.unit].tensors); },
          // A shard is averaged over replicas, which have the same experts.
          [&](const UnitGradients& array) {
            return !array.shard && first(schedule.units[array.unit].tensors);
          },
          [](const OneOf<BufferArray, ExchangeArray> auto&) { return false; },
      },
      payload);
}

/// Inserts the model's collectives into a program.
struct SharedProgram {
  Program base;
  const Model& model;
  double samples;
  const std::map<LayerCollectiveGroup, int>& groups;
  int last;

  Program build() {
    result.segments = std::move(base.segments);
    result.resident = std::move(base.resident);
    result.host_memory = base.host_memory;
    for (const auto [i, op] : enumerated(base.ops)) {
      if (op.stream == Stream::kCompute) add_pending(op);
      add(std::move(op));
      begin_host(i);
    }
    flush();
    return std::move(result);
  }

  void add(Op op) {
    for (int& before : op.after) before = place[before];
    if (op.within >= 0) op.within = place[op.within];
    std::visit(Overloaded{
                   [&](OneOf<Send, Recv> auto& message) { message.offset *= model.parallel.tensor; },
                   [&](Copy& copy) {
                     copy.from.offset *= model.parallel.tensor;
                     copy.to.offset *= model.parallel.tensor;
                   },
                   [](const auto&) {},
               },
               op.action);
    place.push_back(static_cast<int>(result.ops.size()));
    result.ops.push_back(std::move(op));
  }

  /// Collects the collectives of an operation. Adds them right after it, or later among the hooks of its
  /// gradients if it has any.
  void begin_host(std::size_t index) {
    const auto* compute = std::get_if<Compute>(&result.ops[place[index]].action);
    if (compute == nullptr) return;
    host = place[index];
    // Of a split backward the input half has them: parameters that are summed over ranks are in no GEMM.
    const bool backward =
        is_backward(compute->phase) &&
        (compute->phase != Phase::kBackwardWeight || !model.segments[compute->segment].passes_gradient());
    if (compute->phase == Phase::kLoss) {
      for (std::size_t i = 0; i < model.collectives.size(); ++i)
        if (model.collectives[i].segment < 0) pending.push_back(static_cast<int>(i));
    } else if (backward || compute->phase == Phase::kForward || compute->phase == Phase::kRecompute) {
      for (const int exchange : model.segments[compute->segment].collectives)
        if (const LayerCollective& one = model.collectives[exchange];
            one.backward == backward && (!compute->needed || model.segments[one.segment].needs(one)) &&
            (compute->micro_batch == last || !model.sums_in_last_micro_batch(one)))
          pending.push_back(exchange);
    }
    bool hooked = false;
    for (std::size_t i = index + 1; i < base.ops.size() && !hooked; ++i) {
      hooked = base.ops[i].within == static_cast<int>(index);
      if (base.ops[i].stream == Stream::kCompute) break;
    }
    if (!hooked) flush();
  }

  /// Adds the collectives that start before an operation of the main thread.
  void add_pending(const Op& next) {
    if (next.within < 0) return flush();
    const std::vector<int>& ready = model.segments[model.parameters[next.ready_tensor].segment].parameters;
    const auto position = std::ranges::find(ready, next.ready_tensor) - ready.begin();
    while (!pending.empty() && model.collectives[pending.front()].ready <= position) add_first();
  }

  void flush() {
    while (!pending.empty()) add_first();
  }

  void add_first() {
    const int index = pending.front();
    pending.erase(pending.begin());
    const LayerCollective& exchange = model.collectives[index];
    const std::string name = exchange.name + " in " + result.ops[host].name;
    if (exchange.kind != LayerCollectiveKind::kWait) add_call(index, name);
    if (exchange.kind != LayerCollectiveKind::kShift)
      result.ops.push_back({.name = "wait/" + name,
                            .action = Synchronize{.exposed = exchange.kind == LayerCollectiveKind::kWait},
                            .after = {call},
                            .within = host,
                            .exchange = index});
  }

  void add_call(int index, const std::string& name) {
    const LayerCollective& exchange = model.collectives[index];
    const CollectiveKind kind = collective_kind(exchange.kind);
    call = append(result,
                  {.name = to_text(kind) + std::string("/") + name,
                   .action = Collective{.kind = kind,
                                        .message = exchange.fixed + samples * exchange.per_sample,
                                        .group = groups.at(exchange.group),
                                        .payload = ExchangeArray{index, exchange.kind ==
                                                                            LayerCollectiveKind::kMaximum}},
                   .within = host,
                   .exchange = index});
  }

  Program result{};
  std::vector<int> place{};    ///< by operation of the base
  std::vector<int> pending{};  ///< collectives of `host` that are not added yet
  int host = -1, call = -1;    ///< in `result`: of `pending`, and of the latest collective
};

/// Replaces groups of the base in collectives and units by those of the new Schedule. \param experts by group
/// of the base: family of the ranks with the same experts
void rename_groups(Schedule& schedule, const Model& model, int more, const std::map<int, int>& experts) {
  const auto renamed = [&](int group, bool of_experts) {
    return more + (of_experts ? experts.at(group) : group);
  };
  for (Program& program : schedule.programs)
    for (Op& op : program.ops)
      if (auto* call = std::get_if<Collective>(&op.action))
        call->group = renamed(call->group, is_of_experts(call->payload, schedule, model));
  for (FsdpUnit& unit : schedule.units)
    unit.group = renamed(unit.group, model.parameters[unit.tensors.front()].expert);
}

/// Groups of the base that exchange gradients or parameters of experts.
std::set<int> groups_of_experts(const Schedule& base, const Model& model) {
  std::set<int> result;
  for (const Program& program : base.programs)
    for (const Op& op : program.ops)
      if (const auto* call = std::get_if<Collective>(&op.action);
          call != nullptr && is_of_experts(call->payload, base, model))
        result.insert(call->group);
  for (const FsdpUnit& unit : base.units)
    if (model.parameters[unit.tensors.front()].expert) result.insert(unit.group);
  return result;
}

/// Groups of the base with equal members but for the batch.
struct BaseFamily {
  std::string name;
  std::vector<std::vector<int>> groups;
};

/// Ranks of the result with the same part of the same experts, of a group of the base or of each group of a
/// family. \param named as in a Collective
BaseFamily same_experts(const Schedule& base, int named, int t, int experts) {
  const auto count = static_cast<int>(base.groups.size());
  const bool is_group = named < count;
  std::set<int> groups{named};
  if (!is_group) {
    const std::vector<int>& of_rank = base.families[named - count].group_of_rank;
    groups = {of_rank.begin(), of_rank.end()};
    groups.erase(-1);
  }
  BaseFamily family{(is_group ? base.groups[named].name : base.families[named - count].name) + " of experts",
                    {}};
  for (const int group : groups) {
    std::map<int, std::vector<int>> parts;
    for (const int rank : base.groups[group].ranks)
      for (int share = 0; share < t; ++share) {
        const int own = rank * t + share;
        parts[own % experts].push_back(own);
      }
    for (auto& [part, ranks] : parts) family.groups.push_back(std::move(ranks));
  }
  return family;
}

/// Adds t groups for each group of a family, one per share of the layers.
void add_family(Schedule& result, const BaseFamily& family, int t) {
  GroupFamily shared{family.name, std::vector<int>(result.world_size, -1)};
  for (std::size_t number = 0; number < family.groups.size(); ++number)
    for (int share = 0; share < t; ++share) {
      Group own{family.name + (family.groups.size() > 1 ? " " + std::to_string(number) : "") +
                    (t > 1 ? ", share " + std::to_string(share) : ""),
                {}};
      for (const int rank : family.groups[number]) {
        own.ranks.push_back(rank * t + share);
        shared.group_of_rank[rank * t + share] = static_cast<int>(result.groups.size());
      }
      result.groups.push_back(std::move(own));
    }
  result.families.push_back(std::move(shared));
}

}  // namespace

std::string with_setting(const std::string& model, const std::string& setting, const std::string& value) {
  const std::size_t name = is_hugging_face(model) ? model.find(':') + 1 : 0;
  return model + (model.find(':', name) == std::string::npos ? ":" : ",") + setting + "=" + value;
}

std::string shared_by(const std::string& model, const Mesh& mesh) {
  if (model.empty()) return model;
  std::string result = model;
  const Specification given = Specification::parse("model", model);
  for (const auto& [setting, one] : ModelParallel().degrees()) {
    const std::string ranks = std::to_string(mesh.size(setting));
    const std::string* own = given.find(setting);
    if (ranks != "1" && (own == nullptr || *own != ranks)) result = with_setting(result, setting, ranks);
  }
  return result;
}

Schedule share_layers(Schedule base, const Model& model, int batch) {
  const int t = model.parallel.tensor, all_experts = model.parallel.expert_ranks();
  const std::set<int> of_experts = all_experts > 1 ? groups_of_experts(base, model) : std::set<int>();
  std::vector<Program> programs = std::exchange(base.programs, {});
  Schedule result = base;
  result.programs = std::move(programs);
  result.world_size = base.world_size * t;
  result.data_parallel = base.data_parallel / model.parallel.context;
  result.groups.clear();
  result.families.clear();
  result.program_of_rank.clear();
  result.data_index.clear();
  for (int rank = 0; rank < result.world_size; ++rank) {
    result.program_of_rank.push_back(base.program_of_rank[rank / t]);
    result.data_index.push_back(base.data_index_of(rank / t) / model.parallel.context);
  }
  for (const Group& group : base.groups) add_family(result, {group.name, {group.ranks}}, t);
  for (const GroupFamily& family : base.families) {
    BaseFamily alike{family.name, {}};
    for (const int group : std::set<int>(family.group_of_rank.begin(), family.group_of_rank.end()))
      if (group >= 0) alike.groups.push_back(base.groups[group].ranks);
    add_family(result, alike, t);
  }
  if (base.data_parallel == 1 && all_experts > 1 && all_experts < t && base.strategy != "ddp")
    throw UsageError(
        "expert {} with tensor {} and no data parallelism: ranks with the same experts would not sum "
        "their gradients; take expert {}, or ddp",
        all_experts, t, t);
  std::map<LayerCollectiveGroup, int> exchanging;
  const auto add = [&](LayerCollectiveGroup group, const char* name, int size, int stride) {
    if (size == 1) return;
    exchanging[group] = static_cast<int>(result.families.size());
    add_family(result, name, result.world_size / size,
               [&](int rank) { return rank / (size * stride) * stride + rank % stride; });
  };
  const ModelParallel& parallel = model.parallel;
  add(LayerCollectiveGroup::kContext, "context", parallel.context, t);
  add(LayerCollectiveGroup::kExpert, "expert", parallel.expert, parallel.expert_tensor);
  add(LayerCollectiveGroup::kExpertTensor, "expert_tensor", parallel.expert_tensor, 1);
  add(LayerCollectiveGroup::kTensor, "tensor", t, 1);
  std::map<int, int> experts;
  for (const int group : of_experts) {
    experts[group] = static_cast<int>(result.families.size());
    add_family(result, same_experts(base, group, t, all_experts), 1);
  }
  const auto named = static_cast<int>(result.groups.size());
  rename_groups(result, model, named, experts);
  for (auto& [group, family] : exchanging) family += named;
  const double samples = static_cast<double>(batch) / base.micro_batches;
  for (Program& program : result.programs)
    program = SharedProgram{std::move(program), model, samples, exchanging, base.micro_batches - 1}.build();
  return result;
}

}  // namespace stepcast

#include "sim/strategies/whole_parameters.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/muon.hpp"
#include "schedule/operations.hpp"

namespace stepcast {
namespace {

/// Amounts dealt to ranks: the sum of all, and the largest of one rank.
struct Dealt {
  double all = 0.0, most = 0.0;
};

/// Deals `amounts`, in their order, to ranks 0 ... n-1, n-1 ... 0, and so on.
Dealt dealt(const std::vector<double>& amounts, int ranks) {
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  Dealt result;
  for (std::size_t i = 0; i < amounts.size(); ++i) {
    const std::size_t position = i % (2 * sums.size());
    double& sum = sums[position < sums.size() ? position : 2 * sums.size() - 1 - position];
    result.all += amounts[i];
    result.most = std::max(result.most, sum += amounts[i]);
  }
  return result;
}

/// Parameters that the program's rank updates, with its copies of others' tied ones, the smallest first.
std::vector<int> updated(const Program& program, const Model& model, bool experts) {
  std::vector<int> all;
  const auto add = [&](int tensor) {
    if (model.parameters[tensor].expert == experts && !contains(all, tensor)) all.push_back(tensor);
  };
  for (const int segment : program.segments) {
    std::ranges::for_each(model.segments[segment].parameters, add);
    std::ranges::for_each(model.segments[segment].tied, add);
  }
  std::ranges::stable_sort(all, {}, [&](int tensor) { return model.parameters[tensor].numel(); });
  return all;
}

/// Adds the all-gather of parameters and the copies out of it.
void gather(Program& program, Schedule& schedule, const Model& model, const std::vector<int>& tensors,
            int group) {
  Bucket all{.tensors = tensors, .size = Bytes(0)};
  for (const int tensor : tensors) all.size += model.parameters[tensor].gathered();
  const auto index = static_cast<int>(schedule.buckets.size());
  const int call = append(
      program, {.name = "all_gather/bucket" + std::to_string(index),
                .action = Collective{CollectiveKind::kAllGather, all.size, group, 0, BucketArray{index}},
                .after = {static_cast<int>(program.ops.size()) - 1},
                .memory = {{.category = MemoryCategory::kCommunication, .size = all.size}}});
  append(program,
         {.name = "copy_out/bucket" + std::to_string(index),
          .action = CopyOut{.bucket = index},
          .after = {call},
          .memory_traffic = 2.0 * all.size,
          .memory = {{.category = MemoryCategory::kCommunication, .size = -1.0 * all.size, .at_end = true}}});
  schedule.buckets.push_back(std::move(all));
}

}  // namespace

void share_whole_parameters(Program& program, Schedule& schedule, const Model& model, const Offload& offload,
                            int group, int ranks) {
  if (offload.optimizer > 0.0)
    throw UsageError(
        "--zero whole: a host updates parts of arrays; leave --offload optimizer out, or take --zero 1");
  Dealt states, work;
  const bool by_flop = model.optimizer.muon && std::ranges::any_of(program.segments, [&](int segment) {
                         return std::ranges::any_of(model.segments[segment].parameters, [&](int tensor) {
                           return model.by_muon(model.parameters[tensor]);
                         });
                       });
  std::vector<std::vector<int>> gathered;
  for (const bool experts : {false, true}) {
    const std::vector<int> tensors = updated(program, model, experts);
    if (tensors.empty()) continue;
    const int sharers = model.replicas(model.parameters[tensors.front()], ranks);
    std::vector<double> bytes, amounts;
    for (const int tensor : tensors) {
      const Parameter& one = model.parameters[tensor];
      const auto count = static_cast<double>(one.numel());
      bytes.push_back(model.optimizer_bytes(count, model.muon_elements(one)).count());
      amounts.push_back(!by_flop             ? count
                        : model.by_muon(one) ? muon_update(model, one).forward().count()
                                             : 0.0);
    }
    for (const auto& [sum, values] : {std::pair(&states, &bytes), std::pair(&work, &amounts)}) {
      const Dealt own = dealt(*values, sharers);
      sum->all += own.all;
      sum->most += own.most;
    }
    if (sharers > 1) gathered.push_back(tensors);
  }
  for (MemoryChange& held : program.resident)
    if (held.category == MemoryCategory::kOptimizerState) held.size = Bytes(states.most);
  for (Op& op : program.ops)
    if (auto* compute = std::get_if<Compute>(&op.action); compute && compute->phase == Phase::kOptimizer) {
      const double most = work.all > 0.0 ? work.most / work.all : 1.0;
      compute->part *= most;
      op.memory_traffic = most * op.memory_traffic;
    }
  for (const std::vector<int>& tensors : gathered) gather(program, schedule, model, tensors, group);
}

}  // namespace stepcast

#include "sim/strategies/unit_operations.hpp"

#include <utility>

namespace stepcast {

std::string UnitOperations::numbered(const std::string& name) {
  const int times = ++named_[name];
  return times == 1 ? name : name + "/" + std::to_string(times);
}

int UnitOperations::add(const char* verb, std::size_t index, Action action, std::vector<int> after,
                        std::vector<MemoryChange> memory, Bytes traffic) {
  return step_.add({.name = numbered(verb + ("/" + unit(index).name)),
                    .action = std::move(action),
                    .after = std::move(after),
                    .memory_traffic = traffic,
                    .memory = std::move(memory)});
}

int UnitOperations::gather(std::size_t index, bool allocates, std::vector<int> after) {
  std::vector<MemoryChange> memory;
  if (allocates) memory = {{.category = MemoryCategory::kParameters, .size = unit(index).size()}};
  return add("all_gather", index,
             Collective{.kind = CollectiveKind::kAllGather,
                        .message = unit(index).size(),
                        .group = unit(index).group,
                        .payload = UnitParameters{static_cast<int>(index)}},
             std::move(after), std::move(memory));
}

void UnitOperations::free_parameters(std::size_t index) {
  add("reshard", index, UnitMemory{static_cast<int>(index), UnitMemory::What::kFreeParameters}, {},
      {{.category = MemoryCategory::kParameters, .size = -1.0 * unit(index).size()}});
}

void UnitOperations::zero_gradients(std::size_t index, bool allocates, std::vector<int> after) {
  std::vector<MemoryChange> memory;
  if (allocates) memory = {{.category = MemoryCategory::kGradients, .size = unit(index).gradients()}};
  add("zero_grad", index, UnitMemory{static_cast<int>(index), UnitMemory::What::kZeroGradients},
      std::move(after), std::move(memory));
}

void UnitOperations::finish(const Reduction& one, double factor, const Layout& layout, bool sends) {
  const auto index = static_cast<int>(one.unit);
  const Bytes shard = unit(one.unit).gradient_shard();
  const bool adds = one.adds && !sends;
  if (layout.all_reduces) {
    std::vector<MemoryChange> own;
    if (sends) own = {{.category = MemoryCategory::kGradients, .size = shard}};
    add("keep_shard", one.unit,
        ScaleUnit{.unit = index, .scale = factor, .shard = true, .adds = adds, .of_whole = true}, {one.call},
        std::move(own), (adds ? 3.0 : 2.0) * shard);
    factor = 1.0;
  }
  if (!layout.keeps_gradients) {
    std::vector<MemoryChange> memory;
    if (!copies())
      memory = {{.category = MemoryCategory::kGradients, .size = -1.0 * unit(one.unit).gradients()}};
    add("free_grad", one.unit, UnitMemory{index, UnitMemory::What::kFreeGradients}, {one.call},
        std::move(memory));
  } else if (!layout.all_reduces) {
    add("wait", one.unit, Synchronize{}, {one.call});
  }
  if (adds && !layout.all_reduces)  // shard += factor * incoming shard, which is freed
    add("add_shard", one.unit, ScaleUnit{.unit = index, .scale = factor, .shard = true, .adds = true}, {},
        {{.category = MemoryCategory::kGradients, .size = -1.0 * shard, .at_end = true}}, 5.0 * shard);
  else
    scale(one.unit, factor, true);
  if (sends) send_shard(one);
}

void UnitOperations::scale(std::size_t index, double factor, bool shard) {
  if (factor == 1.0 || (copies() && step_.model().precision.reduction != "fp16"))
    return;  // by the collective
  add(shard ? "divide_shard" : "divide", index,
      ScaleUnit{.unit = static_cast<int>(index), .scale = factor, .shard = shard}, {}, {},
      2.0 * (shard ? unit(index).gradient_shard() : unit(index).accumulated()));
}

int UnitOperations::reduce(std::size_t index, const std::vector<int>& after, bool all, bool incoming) {
  const bool scatters = unit(index).sharded && !all;
  incoming = incoming && scatters;
  const int call =
      step_.add_collective(numbered((scatters ? "reduce_scatter/" : "all_reduce/") + unit(index).name),
                           {.kind = scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                            .message = unit(index).message(),
                            .group = unit(index).group,
                            .payload = UnitGradients{.unit = static_cast<int>(index), .incoming = incoming}},
                           after);
  const auto change = [&](Bytes size, bool at_end, const char* term = nullptr) {
    step_.change_memory(
        call, {.category = MemoryCategory::kGradients, .size = size, .at_end = at_end, .term = term});
  };
  if (copies() && scatters) {
    constexpr const char* kInput = "copied for their reduction";
    change(unit(index).message(), false, kInput);
    change(-1.0 * unit(index).gradients(), false);
    change(-1.0 * unit(index).message(), true, kInput);
  }
  if (incoming) change(unit(index).gradient_shard(), false);
  return call;
}

int UnitOperations::reduce_shard(std::size_t index, int group, const std::vector<int>& after,
                                 const std::string& name, bool incoming) {
  return step_.add_collective(
      numbered(name),
      {.kind = CollectiveKind::kAllReduce,
       .message = unit(index).gradient_shard(),
       .group = group,
       .payload = UnitGradients{.unit = static_cast<int>(index), .shard = true, .incoming = incoming}},
      after);
}

int UnitOperations::fetch_shard(std::size_t index) {
  const std::string& master = step_.model().precision.master;
  const double element =
      master == "none" || step_.offload().computed ? unit(index).parameter : bytes_of(master);
  const Bytes shard = (1.0 / unit(index).shards) * unit(index).whole(element);
  const int copy = step_.add_copy(numbered("fetch_shard/" + unit(index).name), false, shard, {},
                                  {{.category = MemoryCategory::kParameters, .size = shard}});
  const int call = gather(index, true, {copy});
  step_.change_memory(call, {.category = MemoryCategory::kParameters, .size = -1.0 * shard, .at_end = true});
  return call;
}

void UnitOperations::send_shard(const Reduction& one) {
  const FsdpUnit& own = unit(one.unit);
  const bool on_host = step_.offload().parameters && !step_.offload().computed;
  const Bytes shard = on_host || one.last ? (1.0 / own.shards) * own.whole(step_.model().host_gradient())
                                          : own.gradient_shard();
  std::vector<int> after = step_.latest();
  if (one.adds && !on_host) {
    after.push_back(sent_.at(one.unit));
    summed_[one.unit] = own.gradient_shard();
    after = {step_.add_copy(numbered("fetch_gradients/" + own.name), false, own.gradient_shard(), after)};
  }
  int sent = step_.add_copy(
      numbered("offload_shard/" + own.name), true, shard, std::move(after),
      {{.category = MemoryCategory::kGradients, .size = -1.0 * own.gradient_shard(), .at_end = true}});
  if (one.adds && on_host)  // two shards are read and their sum is written
    sent = step_.work_on_host(numbered("host_add/" + own.name), 3.0 * shard, {sent, sent_.at(one.unit)});
  sent_[one.unit] = sent;
}

std::vector<int> UnitOperations::update(std::size_t index, std::vector<int> after) {
  const double host = step_.offload().optimizer;
  std::vector<int> ends;
  if (host > 0.0) {
    const FsdpUnit& own = unit(index);
    const double count = host * static_cast<double>(own.elements) / own.shards;
    const auto sent = sent_.find(index);
    if (sent != sent_.end()) after.push_back(sent->second);
    const HostUpdate update{count, Bytes(own.parameter * count), sent != sent_.end(), summed_[index]};
    ends = {step_.update_on_host("/" + own.name, update, after)};
  }
  if (host < 1.0)
    ends.push_back(
        add("optimizer", index, UpdateUnit{static_cast<int>(index), 1.0 - host}, std::move(after)));
  return ends;
}

}  // namespace stepcast

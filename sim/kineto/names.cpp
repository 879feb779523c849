#include "sim/kineto/names.hpp"

#include <algorithm>
#include <utility>

#include "core/text.hpp"

namespace stepcast {
namespace {

bool begins_any(const std::string& text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return text.starts_with(part); });
}

/// Kind by parts of a name without separators, in lower case. The first that fits holds.
std::string kind_in(const std::string& name) {
  static const std::vector<std::pair<const char*, const char*>> kKinds{{"allreduce", "all_reduce"},
                                                                       {"reducescatter", "reduce_scatter"},
                                                                       {"allgather", "all_gather"},
                                                                       {"alltoall", "all_to_all"},
                                                                       {"broadcast", "broadcast"},
                                                                       {"sendrecv", "send_recv"},
                                                                       {"crossdevicereduce", "all_reduce"},
                                                                       {"send", "send"},
                                                                       {"recv", "recv"},
                                                                       {"gather", "gather"},
                                                                       {"scatter", "scatter"},
                                                                       {"reduce", "reduce"}};
  std::string plain = lower(name);
  std::erase_if(plain, [](char c) { return c == '_' || c == '.' || c == ' '; });
  for (const auto& [part, kind] : kKinds)
    if (plain.find(part) != std::string::npos) return kind;
  return "";
}

}  // namespace

NameKind name_kind(const std::string& name) {
  if (name.starts_with("ProfilerStep#")) return NameKind::kStep;
  if (name.starts_with("Optimizer.step#")) return NameKind::kOptimizer;
  if (name.starts_with("Optimizer.zero_grad#")) return NameKind::kZeroGrad;
  if (name.starts_with("enumerate(DataLoader)")) return NameKind::kInput;
  if (name == "forward" || name == "DifferentiableGraph") return NameKind::kScript;
  if (name.starts_with("nn.Module: ")) return NameKind::kModule;
  if (name.starts_with("DistributedDataParallel.forward")) return NameKind::kReplica;
  if (name.starts_with("autograd::engine::evaluate_function")) return NameKind::kNode;
  if (name == "torch::autograd::AccumulateGrad") return NameKind::kAccumulate;
  if (begins_any(name, {"FSDP::pre_forward", "FullyShardedDataParallel._pre_forward"}))
    return NameKind::kUnitForward;
  if (begins_any(name, {"FSDP::post_forward", "FullyShardedDataParallel._post_forward"}))
    return NameKind::kUnitEnd;
  if (begins_any(name, {"record_param_comms", "nccl:", "gloo:", "c10d::", "c10d_functional::",
                        "_c10d_functional::", "ucc:", "mpi:", "rccl:"}))
    return NameKind::kCollective;
  if (name.starts_with("FSDP::cast_forward_inputs")) return NameKind::kOther;
  if (begins_any(name, {"FSDP::", "fsdp::", "FullyShardedDataParallel._", "torch.distributed.ddp.reducer::",
                        "torch::distributed::reducer::", "aten::flatten_dense_tensors",
                        "aten::unflatten_dense_tensors", "chunk_cat"}))
    return NameKind::kCopies;
  if (begins_any(name,
                 {"aten::cross_entropy", "aten::nll_loss", "aten::binary_cross_entropy", "aten::kl_div"}) ||
      (name.starts_with("aten::") && name.find("_loss") != std::string::npos))
    return NameKind::kLoss;
  if (name.find("Synchronize") != std::string::npos || name == "cudaMemcpy" || name == "hipMemcpy" ||
      name == "cudaEventQuery" || name == "hipMemcpyWithStream" || name == "urEventWait" ||
      name == "urQueueFinish")
    return NameKind::kBlocking;
  return NameKind::kOther;
}

std::string collective_kernel(const std::string& name) {
  if (!begins_any(name, {"nccl", "mscclKernel", "void ncclKernel", "rccl"}) &&
      !contains_any(name, {"multimem_all_reduce", "multimem_all_gather", "cross_device_reduce",
                           "one_shot_all_reduce", "two_shot_all_reduce", "allreduce_fusion", "userbuffers_"}))
    return "";
  const std::string kind = kind_in(name.substr(0, name.find('(')));
  return kind.empty() ? "collective" : kind;
}

std::string collective_kind(const std::string& call) {
  if (contains_any(call, {"barrier", "wait", "monitored"})) return "";
  return kind_in(call);
}

}  // namespace stepcast

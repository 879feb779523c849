#pragma once

#include <vector>

#include "models/execution.hpp"
#include "records/phase_costs.hpp"
#include "records/result.hpp"
#include "sim/replay/rank_run.hpp"

namespace stepcast {

/// Memory of a rank over one step, from the times of its operations: what it holds all the time, what
/// operations allocate and free (`Op::memory`), and the workspace of each, which counts as activations (of an
/// optimizer, as its state). Holds: at the end of the step exactly what is held all the time is left.
MemoryUse memory_use(int rank, const Schedule& schedule, const std::vector<OpTimes>& times,
                     const PhaseCosts& costs, double step_start);

/// Adds what surrounds the tensors of each rank, estimates that no run of ours has tested:
///
///     reserved   the peak, less what the process holds (`process=`, workspaces of GEMMs), times
///                Execution::reserved: PyTorch's allocator rounds and fragments. 105 % from
///                SimuMax's runs on 8 B200: 103 to 104 with tensor parallelism alone, 106 with pipelines and
///                experts, 107 to 109 with context parallelism
///                FSDP2 (`--gathered copied`) reserves more: the two largest gathered units, in a stream of
///                their own, and the largest input of a reduce-scatter. An array of the loss that is as large
///                leaves its memory to that input (docs/research/own-h100.md)
///     process    reserved, 0.75 GB of CUDA's context and modules, and 0.69 GB of NCCL's buffers for each
///                group of ranks that communicates (NVIDIA/nccl issue 964: 4 A100), and for each further
///                communicator of Execution
///
/// \param samples of a micro-batch \throws InputError if Execution::reserved is no percentage from 100 on
/// \param is_stated the device states what a process holds (`process=`), which is part of the peak already
void add_process_totals(const Schedule& schedule, const Model& model, double samples, bool is_stated,
                        Result& result);

/// Execution::reserved as a factor.
double reserved_factor(const Model& model);

}  // namespace stepcast

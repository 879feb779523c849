#pragma once

#include <map>
#include <string>
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

/// Part of a GPU's memory that no process gets: the driver keeps 0.3 to 0.8 % of what nvidia-smi shows, and
/// forecasts of Megatron's and torchtitan's memory are up to 2 % off in the median (docs/measured.md).
inline constexpr double kKeptMemory = 0.02;
/// Part of a GPU's memory above which a step fits barely if PyTorch's allocator reserves it.
inline constexpr double kBarelyReserved = 0.92;

/// Bytes that a process on a GPU holds outside of PyTorch's allocator, by term, estimates that no run of ours
/// has tested:
///
///     CUDA's context        0.75 GB, with its modules
///     NCCL's communicators  0.69 GB for each group of ranks that communicates (NVIDIA/nccl issue 964: 4
///                           A100), and for each further communicator of Execution
///     userbuffers           12 arrays of the gathered input of a layer's first GEMM. In 8 bit 8 of them are
///                           half as large, and the 2 of ring reduce-scatters (2 t - 1)/t times with t
///                           tensor-parallel ranks (Transformer Engine: `initialize_ub` of module/base.py)
///     dispatcher            2 arrays, of dispatch and combine, of the tokens of all ranks of an NVLink
///                           domain that share experts: registered memory cannot grow with what arrives.
///                           Assumed
///     CUDA graphs           3 GB, with several stages 10 GB, as each micro-batch under way has arrays of its
///                           own: "a few GB" and "more than 10 GB" in Megatron-Bridge's performance guide
///
/// \param samples of a micro-batch \param groups of ranks that communicate \param in_stages of a pipeline
std::map<std::string, double> outside_allocator(const Model& model, double samples, int groups,
                                                bool in_stages);

/// What PyTorch's allocator reserves for `allocated` bytes, `process` of which are not its own.
double reserved_bytes(const Model& model, double allocated, double process);

/// Adds what surrounds the tensors of each rank:
///
///     reserved   the peak, less what the process holds (`process=`, workspaces of GEMMs), times
///                Execution::reserved: PyTorch's allocator rounds and fragments. 105 % from
///                SimuMax's runs on 8 B200: 103 to 104 with tensor parallelism alone, 106 with pipelines and
///                experts, 107 to 109 with context parallelism
///                FSDP2 (`--gathered copied`) reserves more: the two largest gathered units, in a stream of
///                their own, and the largest input of a reduce-scatter. An array of the loss that is as large
///                leaves its memory to that input (docs/research/own-h100.md)
///     process    reserved, and outside_allocator()
///
/// \param samples of a micro-batch \throws InputError if Execution::reserved is no percentage from 100 on
/// \param is_stated the device states what a process holds (`process=`), which is part of the peak already
void add_process_totals(const Schedule& schedule, const Model& model, double samples, bool is_stated,
                        Result& result);

}  // namespace stepcast

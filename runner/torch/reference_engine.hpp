#pragma once

#include <string>

#include "runner/engine/torch_engine.hpp"

/// Trains with PyTorch's own parts instead of a Schedule, so that a mistake that the Schedule and its two
/// executors share (a wrong order of buckets, a forgotten copy) shows as a difference. Includes no LibTorch.
namespace stepcast {

/// \throws UsageError for a run that PyTorch's parts do not make: another strategy or backend than they are,
/// or fewer than two steps before the measured ones with `ddp` (DistributedDataParallel puts all gradients
/// into one bucket in its first step and lays out the final buckets at the start of its second)
void require_reference(const std::string& strategy, const std::string& backend, int warmup_steps);

/// Runs warm-up and measured steps of this rank; all ranks of the job call it. Parameters, samples and
/// optimizer are those of `run_schedule` with the same options.
///
/// A step runs the model's whole graph: forward, loss, one backward. `ddp` does around it what
/// DistributedDataParallel's Python does, call by call, with c10d's Reducer over a ProcessGroupGloo: rank 0's
/// buffers broadcast before the first forward of a step, all but the last micro-batch under no_sync(),
/// `compress: fp16` by the Reducer's built-in hook. Left out: the Logger, and the broadcast of parameters
/// when training starts, which are equal on all ranks already. `all_reduce` and `gather_scatter` do after the
/// backward what people write first: of one parameter tensor after the other, torch.distributed's all_reduce and
/// a division; or gather to rank 0, the mean there, and scatter. Each call is waited for.
///
/// The Result's spans are what can be told apart from outside: load_input, zero_grad, broadcast/buffers,
/// forward, loss, backward (up to the last gradient), finish_reduction (the rest of the all-reduces, and
/// copying back), optimizer; every all_reduce, gather, mean and scatter of a tensor. When the Reducer communicates is not known, so there is no breakdown. The note
/// `buckets` is the layout that the Reducer reports after the last step (bucket_layout.hpp). Bytes sent are
/// the closed form of that layout. The session's backend only compares clocks; its store connects one such run only. \throws RunError with c10d's words
/// when a rank was lost. Source: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp
/// (1.13)
Result run_reference(const Model& model, const ReferenceRun& run, RankSession& session,
                     const RunOptions& options, FinalState* final_state = nullptr);

}  // namespace stepcast

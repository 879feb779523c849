#pragma once

#include "runner/engine/torch_engine.hpp"

/// What LibTorch does, as entered into the registry of runner/engine. Includes no LibTorch.
namespace stepcast {

/// Executes a Schedule for real: LibTorch computes, a Backend communicates. Runs warm-up and measured steps of
/// this rank's program; all ranks of the job call it. How operations follow each other is said in
/// program_runner.hpp.
///
/// Returns the Result of `run_steps` with the loss averaged over the ranks that compute it, the peak memory of
/// the measured steps, and the note `buckets` where there are any (bucket_layout).
/// \param final_state filled in where it is not null
/// \throws CapabilityError for operations that are not executed yet; RunError that names a rank that was lost
Result run_schedule(const Model& model, const Schedule& schedule, RankSession& session,
                    const RunOptions& options, FinalState* final_state = nullptr);

/// to[i] = scale * from[i] by the code that copies gradients into buckets: resolved now, done when called.
/// \pre both arrays live until then
std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count);

/// Each call issues one product of two square matrices of normal numbers into a third on the device's default stream.
/// \throws CapabilityError as set_matmul_precision() and Numbers::of()
std::function<void()> prepare_product(const Precision& precision, int edge, DeviceQueue& device);

/// \throws UsageError for a run that PyTorch's parts do not make: another strategy or backend than they are,
/// or fewer than two steps before the measured ones with `ddp` (DistributedDataParallel puts all gradients
/// into one bucket in its first step and lays out the final buckets at the start of its second)
void require_reference(const std::string& strategy, const std::string& backend, int warmup_steps);

/// Trains with PyTorch's own parts instead of a Schedule, so that a mistake that the Schedule and its two
/// executors share (a wrong order of buckets, a forgotten copy) shows as a difference. Parameters, samples and
/// optimizer are those of `run_schedule` with the same options; all ranks of the job call it.
///
/// A step runs the model's whole graph: forward, loss, one backward. `ddp` does around it what
/// DistributedDataParallel's Python does, call by call, with c10d's Reducer over a ProcessGroupGloo: rank 0's
/// buffers broadcast before the first forward of a step, all but the last micro-batch under no_sync(),
/// `compress: fp16` by the Reducer's built-in hook. Left out: the Logger, and the broadcast of parameters
/// when training starts, which are equal on all ranks already. `all_reduce` and `gather_scatter` do after the
/// backward what people write first: of one parameter tensor after the other, torch.distributed's all_reduce
/// and a division; or gather to rank 0, the mean there, and scatter. Each call is waited for.
///
/// The Result's spans are what can be told apart from outside: load_input, zero_grad, broadcast/buffers,
/// forward, loss, backward (up to the last gradient), finish_reduction (the rest of the all-reduces, and
/// copying back), optimizer; every all_reduce, gather, mean and scatter of a tensor. When the Reducer
/// communicates is not known, so there is no breakdown. The note `buckets` is the layout that the Reducer
/// reports after the last step. Bytes sent are the closed form of that layout. The session's backend only
/// compares clocks; its store connects one such run only. \throws RunError with c10d's words when a rank was
/// lost. Source: torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp (1.13)
Result run_reference(const Model& model, const ReferenceRun& run, RankSession& session,
                     const RunOptions& options, FinalState* final_state = nullptr);

/// Measures what one step of a model costs on this machine, phase by phase, on one rank alone: two or three
/// entries per batch size, one per StepContext, in the precision asked for, without context and lineage, which the command adds.
///
/// Batch sizes take turns in rounds of a few steps, so that a slow spell of a shared machine does not fall on
/// one of them; a step that is not kept follows each turn. Within a round segmented steps (each segment its
/// own autograd graph, as Schedules are executed) and native ones (the whole graph at once) alternate one by
/// one; steps that wait for another thread take a turn of their own. The machine is looked at
/// between turns, ten times a second at most. Disturbed steps are set aside and repeated until each entry
/// has as many undisturbed ones as asked for or `budget_s` is over; then the least disturbed ones fill up, and an
/// entry of which fewer than two thirds were undisturbed says so. Saved bytes are observed in a pass of
/// their own, by an allocator that counts. Holds: input + zero_grad + forwards + loss + backwards + optimizer
/// + host = step, for each segmented step.
///
/// Of a stage of a pipeline only its segments are in memory. What would come from its neighbours, activations and the
/// gradients of its output, is there from the start, normally distributed (gradients as those of a mean over all elements of
/// the output), and is copied into new memory when a step begins, which counts as the step's input.
Trace measure_trace(const Model& model, const MeasureOptions& options);

/// One Trace of several launches, in order: samples of equal batch, threads, pace and segments are joined and say
/// which launch they are from; fractions are averaged. Entries are sorted by (threads, batch, pace, first segment). \pre parts
/// not empty, of one model, no two of which have some of their segments in common
Trace merge_launches(const std::vector<Trace>& parts);

/// Sets the number of compute threads of this process, and takes the work that LibTorch does at its first
/// use. \pre the environment says the same, see `require_thread_environment`
void set_compute_threads(int threads);

/// Takes the place of LibTorch's allocator for processors, for the life of the process, and enters what it
/// gives into the account of memory_account.hpp. Every array is preceded by a header that says its size and
/// category. What libraries take from the heap on their own (BLAS, kernels' mapped scratch) is not seen. Freed
/// memory stays with the process. \pre no tensor exists yet
void install_counting_allocator();

}  // namespace stepcast

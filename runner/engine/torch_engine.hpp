#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "models/model.hpp"
#include "models/precision.hpp"
#include "records/result.hpp"
#include "records/trace.hpp"
#include "runner/backend/session.hpp"
#include "runner/execute/device_stream.hpp"
#include "runner/execute/rank_report.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/strategy.hpp"

/// Entry points of LibTorch for stepcast-runner, and their options. Includes no LibTorch.
namespace stepcast {

/// Checks that the runner trains in this precision: columns of the table in models/precision.hpp as they are,
/// on a GPU all, on CPUs fp32 and bf16 (LibTorch has no float16 GEMMs there), with reduction=bf16 too.
/// \throws CapabilityError for others
void require_trained(const Precision& precision, bool on_gpu);

struct RunOptions : StepLoop {
  int batch = 32;  ///< per rank
  unsigned seed = 1;
  bool float64 = false;            ///< for tests of correctness; timings are in float32
  DeviceStream* device = nullptr;  ///< null: the CPU computes
  Precision precision{};
  std::string data_folder;  ///< CIFAR-10; "" is synthetic data
};

/// The parameters and buffers of one rank after a run, in the model's order, as float64.
struct FinalState {
  std::vector<std::vector<double>> parameters;
  std::vector<std::vector<double>> buffers;
};

struct MeasureOptions {
  std::vector<int> batches{32};
  int threads = 1;
  int steps = 30;        ///< kept per batch size: segmented, native, and waiting each
  int warmup_steps = 5;  ///< per batch size, before all others
  unsigned seed = 1;
  /// Of a stage that is measured alone, one after the other; none: the whole model.
  std::vector<int> segments{};
  bool accumulating = false;  ///< also micro-batches that follow another one: a third entry per batch size
  std::string data_folder;    ///< CIFAR-10; "" is synthetic data
  DeviceStream* device = nullptr;  ///< null: the CPU computes
  Precision precision{};
  double limit_s = 0.0;    ///< after which no further steps are taken than five per batch size; 0: none
  double budget_s = 30.0;  ///< for repeating disturbed steps, after all others
  std::function<void()> on_step = [] {};  ///< after every measured step
};

/// A TorchScript network and an input that it takes.
struct ScriptQuestion {
  std::string path;
  Shape shape;         ///< of a batch: samples first
  int vocabulary = 0;  ///< of integer inputs; 0: floating point
  std::string optimizer = "sgd";
};

/// Executes a Schedule for real: LibTorch computes, a Backend communicates. Runs warm-up and measured steps
/// of this rank's program; all ranks of the job call it. program_runner.hpp describes the order of
/// operations.
///
/// Returns the Result of `run_steps` with the loss averaged over the ranks that compute it, the peak memory
/// of the measured steps, and the note `buckets` if there are any (bucket_layout). \param final_state filled
/// unless null \throws CapabilityError for operations that are not executed; RunError that names a lost rank
Result run_schedule(const Model& model, const Schedule& schedule, RankSession& session,
                    const RunOptions& options, FinalState* final_state = nullptr);

/// Returns a function that sets to[i] = scale * from[i] with the code that copies gradients into buckets.
/// \pre both arrays outlive it
std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count);

/// Returns a function that issues one GEMM of two square matrices of normal numbers into a third on the
/// device's default stream. \throws CapabilityError as set_matmul_precision() and TrainingDtypes::of()
std::function<void()> prepare_product(const Precision& precision, int edge, DeviceStream& device);

/// \throws UsageError for another strategy or backend than those of run_reference(), for options of the
/// strategy that c10d's Reducer lacks, for recomputation, or for fewer than two warm-up steps with `ddp`
/// (DistributedDataParallel puts all gradients into one bucket in its first step and lays out the final
/// buckets in its second)
void require_reference(const std::string& strategy, const TrainingConfig& training,
                       const std::string& backend, int warmup_steps);

/// Trains with PyTorch's own components instead of a Schedule, so that an error in the Schedule that both
/// executors share (wrong order of buckets, missing copy) shows as a difference. Parameters, samples and
/// optimizer are those of `run_schedule` with the same options; all ranks of the job call it.
///
/// A step runs the whole graph of the model: forward, loss, one backward. `ddp` follows
/// DistributedDataParallel's Python call by call, with c10d's Reducer over a ProcessGroupGloo: broadcast of
/// rank 0's buffers before the first forward of a step, all but the last micro-batch under no_sync(),
/// `compress: fp16` by the Reducer's built-in hook. Left out: the Logger, and the broadcast of parameters at
/// start, which are equal on all ranks. `all_reduce` and `gather_scatter` are the loops that people write
/// first: per parameter tensor torch.distributed's all_reduce and a division, or gather to rank 0, mean and
/// scatter. Each call blocks.
///
/// Spans are the parts that can be separated from outside: load_input, zero_grad, broadcast/buffers, forward,
/// loss, backward (up to the last gradient), finish_reduction (remaining all-reduces and copies back),
/// optimizer; every all_reduce, gather, mean and scatter of a tensor. There is no breakdown, since the times
/// of the Reducer's communication are unknown. The note `buckets` is the Reducer's layout after the last
/// step. Bytes sent are the closed form of that layout. The backend of the session only compares clocks; its
/// store connects one such run only. \throws RunError with c10d's message if a rank is lost. Source:
/// torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp (1.13)
/// \param strategy `single`, `ddp`, `all_reduce` or `gather_scatter`
Result run_reference(const Model& model, const std::string& strategy, const TrainingConfig& training,
                     RankSession& session, const RunOptions& options, FinalState* final_state = nullptr);

/// Measures one step of a model on one rank, phase by phase: two or three entries per batch size, one per
/// StepContext. The command adds context and lineage.
///
/// Batch sizes take turns in rounds of a few steps, so that a slow period of a shared machine does not affect
/// one of them only. Within a round segmented steps (one autograd graph per segment, as in Schedules) and
/// native ones (the whole graph) alternate; steps that wait for another thread have their own turns. The
/// machine is sampled between turns, at most ten times a second. Steps with interference are rejected and
/// repeated until each entry has enough without or `budget_s` is over. Then those with least interference
/// fill up, and an entry with fewer than two thirds without interference is marked. Saved bytes are observed
/// in a separate pass by a counting allocator. Holds for each segmented step: input + zero_grad + forwards +
/// loss + backwards + optimizer + host = step.
///
/// For a stage of a pipeline only its segments are in memory. Inputs from other stages, activations and
/// gradients of the output, are normally distributed (gradients as those of a mean over all elements of the
/// output) and copied into new memory when a step begins, which counts as the input of the step.
Trace measure_trace(const Model& model, const MeasureOptions& options);

/// Describes a TorchScript network as a model file: parts between which one tensor passes, their parameters
/// in the order of their gradients, and their operators. Runs it once as a whole and once in parts, and
/// compares the gradients; parts that cannot run apart are joined. \pre no other tensor exists \throws
/// InputError for a network that cannot be trained here
std::string describe_script(const ScriptQuestion& question);

/// Sets the number of compute threads of this process and triggers the initialisation of LibTorch. \pre the
/// environment has the same number, see `require_thread_environment`
void set_compute_threads(int threads);

/// Replaces LibTorch's CPU allocator for the life of the process and adds its allocations to
/// memory_account(). A header before every array contains size, category and account. Memory that libraries
/// take from the heap (BLAS, mapped scratch of kernels) is not counted. Freed memory stays with the process.
/// \pre no tensor exists yet
void install_counting_allocator();

/// Entry points of runner/torch. stepcast-runner calls them through this table, because it loads the library
/// at run time.
struct TorchEngine {
  std::string version;  ///< of LibTorch
  decltype(&stepcast::set_compute_threads) set_compute_threads;
  decltype(&stepcast::run_schedule) run_schedule;
  decltype(&stepcast::require_reference) require_reference;
  decltype(&stepcast::run_reference) run_reference;
  decltype(&stepcast::measure_trace) measure_trace;
  decltype(&stepcast::describe_script) describe_script;
  decltype(&stepcast::prepare_scaled_copy) prepare_scaled_copy;
  decltype(&stepcast::prepare_product) prepare_product;
};

/// Registry that the library adds itself to when it is loaded; programs linked with it have it from the
/// start.
Registry<TorchEngine>& torch_engines();

/// Loads the library if it is not loaded: see torch_library.hpp.
const TorchEngine& torch_engine();

}  // namespace stepcast

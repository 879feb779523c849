#include "runner/torch/reference_engine.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include "runner/bucket_layout.hpp"
#include "runner/memory_account.hpp"
#include "runner/rank_report.hpp"
#include "runner/run_steps.hpp"
#include "runner/torch/compute_threads.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/final_state.hpp"
#include "runner/torch/reference_step.hpp"
#include "runner/torch/torch_model.hpp"
#include "sim/core/error.hpp"

namespace stepcast {

void require_reference(const std::string& strategy, const std::string& backend, int warmup_steps) {
  constexpr int kLayoutSteps = 2;
  if (strategy != "single" && strategy != "ddp")
    throw UsageError(
        "--engine reference runs PyTorch's own parts, which are the strategies single and ddp; '" + strategy +
        "' runs with --engine schedule");
  if (backend != "gloo")
    throw UsageError("--engine reference communicates by c10d's ProcessGroupGloo: --backend gloo, not '" +
                     backend + "'");
  if (strategy == "ddp" && warmup_steps < kLayoutSteps)
    throw UsageError("--engine reference needs --warmup 2 or more, got " + std::to_string(warmup_steps) +
                     ": DistributedDataParallel reduces one bucket in its first step and lays out the others "
                     "in its second");
}

Result run_reference(const Model& model, const ReferenceRun& run, Backend& backend, const RunOptions& options,
                     FinalState* final_state) {
  install_counting_allocator();
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  TorchModel torch_model(model, options.float64 ? torch::kFloat64 : torch::kFloat32, options.seed);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  const std::string lost = "rank " + std::to_string(run.place.rank) + ": c10d: ";
  try {
    ReferenceStep program(torch_model, data, run);
    RankLog log(program.noted(), run.place.rank, options.warmup_steps, options.steps);
    static_cast<void>(run_steps(program, log, backend, options.warmup_steps, options.steps, options.on_step));
    log.set_bytes_sent(static_cast<double>(program.bytes_sent()));
    log.set_memory(peak_memory());
    if (final_state != nullptr) *final_state = final_state_of(torch_model);
    Result result = log.report(backend);
    result.breakdown.clear();
    if (const std::vector<Bucket> buckets = program.buckets(); !buckets.empty())
      result.notes["buckets"] = bucket_layout(model, buckets);
    return result;
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw RunError(lost + error.what_without_backtrace());
  } catch (const std::runtime_error& error) {  // gloo's own
    throw RunError(lost + error.what());
  }
}

}  // namespace stepcast

#include "runner/torch/reference_engine.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "runner/execute/bucket_layout.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/execute/run_steps.hpp"
#include "runner/torch/compute_threads.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/final_state.hpp"
#include "runner/torch/reference_step.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

void require_reference(const std::string& strategy, const std::string& backend, int warmup_steps) {
  constexpr int kLayoutSteps = 2;
  static const std::vector<std::string> kKnown{"single", "ddp", "all_reduce", "gather_scatter"};
  if (std::find(kKnown.begin(), kKnown.end(), strategy) == kKnown.end())
    throw UsageError(
        "--engine reference runs PyTorch's own parts, which are the strategies single, ddp, all_reduce and "
        "gather_scatter; '" +
        strategy + "' runs with --engine schedule");
  if (backend != "gloo")
    throw UsageError("--engine reference communicates by c10d's ProcessGroupGloo: --backend gloo, not '" +
                     backend + "'");
  if (strategy == "ddp" && warmup_steps < kLayoutSteps)
    throw UsageError("--engine reference needs --warmup 2 or more, got " + std::to_string(warmup_steps) +
                     ": DistributedDataParallel reduces one bucket in its first step and lays out the others "
                     "in its second");
}

Result run_reference(const Model& model, const ReferenceRun& run, RankSession& session,
                     const RunOptions& options, FinalState* final_state) {
  install_counting_allocator();
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  TorchModel torch_model(model, options.float64 ? torch::kFloat64 : torch::kFloat32, options.seed);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  const std::string lost = "rank " + std::to_string(session.ranks.rank) + ": c10d: ";
  try {
    ReferenceStep program(torch_model, data, run, session.place);
    RankLog log(program.noted(), session.ranks.rank, options.warmup_steps, options.steps);
    static_cast<void>(run_steps(program, log, session, options.warmup_steps, options.steps, options.on_step));
    log.set_bytes_sent(static_cast<double>(program.bytes_sent()));
    log.set_memory(peak_memory());
    if (final_state != nullptr) *final_state = final_state_of(torch_model);
    Result result = log.report(session);
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

#include "runner/torch/executor.hpp"

#include <cstdint>
#include <stdexcept>

#include "runner/execute/bucket_layout.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/execute/rank_report.hpp"
#include "runner/execute/run_steps.hpp"
#include "runner/torch/compiled_program.hpp"
#include "runner/torch/compute_threads.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/final_state.hpp"
#include "runner/torch/scaled_copy.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

Result run_schedule(const Model& model, const Schedule& schedule, RankSession& session,
                    const RunOptions& options, FinalState* final_state) {
  Backend& backend = *session.backend;
  if (schedule.world_size != backend.world_size())
    throw std::logic_error("the schedule is for another number of ranks");
  install_counting_allocator();
  const torch::NoGradGuard no_grad;
  set_compute_threads(options.threads);
  const Program& own = schedule.program(backend.rank());
  TorchModel torch_model(model, options.float64 ? torch::kFloat64 : torch::kFloat32, options.seed,
                         own.segments);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  CompiledProgram program(schedule, torch_model, data, backend, options.batch);
  RankLog log(schedule, backend.rank(), options.warmup_steps, options.steps);
  const std::uint64_t sent =
      run_steps(program, log, session, options.warmup_steps, options.steps, options.on_step);
  log.set_bytes_sent(static_cast<double>(sent) / options.steps);
  log.set_memory(peak_memory());
  if (final_state != nullptr) {
    program.gather_units();
    *final_state = final_state_of(torch_model);
  }
  Result result = log.report(session);
  if (!schedule.buckets.empty()) result.notes["buckets"] = bucket_layout(model, schedule.buckets);
  return result;
}

std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return scaled_copy(torch::from_blob(to, {size}), torch::from_blob(from, {size}), scale);
}

}  // namespace stepcast

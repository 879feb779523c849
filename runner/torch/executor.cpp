#include "runner/torch/executor.hpp"

#include <chrono>
#include <stdexcept>

#include "runner/rank_report.hpp"
#include "runner/torch/compiled_program.hpp"
#include "runner/torch/compute_environment.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/scaled_copy.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {
namespace {

void copy_state(const std::vector<torch::Tensor>& tensors, std::vector<std::vector<double>>& values) {
  for (const torch::Tensor& tensor : tensors) {
    values.emplace_back();
    if (!tensor.defined()) continue;
    const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
    values.back().assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
}

}  // namespace

Result run_schedule(const Model& model, const Schedule& schedule, Backend& backend, const RunOptions& options,
                    FinalState* final_state) {
  using Clock = std::chrono::steady_clock;
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
  log.compare_clocks(backend);
  std::uint64_t sent_before = 0;
  for (int step = -options.warmup_steps; step < options.steps; ++step) {
    if (step == 0) {
      sent_before = backend.bytes_sent();
      backend.barrier();
      forget_memory_peak();
    }
    const Clock::time_point start = Clock::now();
    const std::vector<Stamp>& stamps = program.step();
    log.add(step, start, Clock::now(), stamps, program.loss());
    options.on_step(step, program.loss());
  }
  log.set_bytes_sent(static_cast<double>(backend.bytes_sent() - sent_before) / options.steps);
  log.set_memory(peak_memory());
  if (final_state != nullptr) {
    program.gather_units();
    copy_state(torch_model.parameters(), final_state->parameters);
    copy_state(torch_model.buffers(), final_state->buffers);
  }
  return log.report(backend);
}

std::function<void()> prepare_scaled_copy(float* to, float* from, float scale, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  return scaled_copy(torch::from_blob(to, {size}), torch::from_blob(from, {size}), scale);
}

}  // namespace stepcast

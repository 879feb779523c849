#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdint>

#include "runner/backend.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/executor.hpp"
#include "runner/torch/rank_report.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {

/// Runs warm-up and measured steps of one rank and notes their times; returns the bytes that `backend` sent
/// in the measured ones. Steps follow each other without a barrier, except for one before the first measured
/// step. \param program has step(), which returns the stamps of its operations, and loss()
template <class Program>
std::uint64_t run_steps(Program& program, RankLog& log, Backend& backend, const RunOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::uint64_t sent_before = 0;
  for (int step = -options.warmup_steps; step < options.steps; ++step) {
    if (step == 0) {
      sent_before = backend.bytes_sent();
      backend.barrier();
      log.leave_barrier(Clock::now());
      forget_memory_peak();
    }
    const Clock::time_point start = Clock::now();
    const std::vector<Stamp>& stamps = program.step();
    log.add(step, start, Clock::now(), stamps, program.loss());
    options.on_step(step, program.loss());
  }
  return backend.bytes_sent() - sent_before;
}

/// The parameters and buffers that this rank holds, as float64.
inline FinalState final_state_of(const TorchModel& model) {
  const auto copies = [](const std::vector<torch::Tensor>& tensors) {
    std::vector<std::vector<double>> values;
    for (const torch::Tensor& tensor : tensors) {
      values.emplace_back();
      if (!tensor.defined()) continue;
      const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
      values.back().assign(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  };
  return {copies(model.parameters()), copies(model.buffers())};
}

}  // namespace stepcast

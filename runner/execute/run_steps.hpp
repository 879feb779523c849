#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "runner/execute/memory_account.hpp"
#include "runner/execute/rank_report.hpp"

namespace stepcast {

/// Runs warm-up and measured steps of one rank and notes their times; returns the bytes that the backend sent
/// in the measured ones. All ranks call it: first their clocks are compared. Steps follow each other without
/// a barrier, except for one before the first measured step.
/// \param program has step(), which returns the stamps of its operations, and loss()
/// \param on_step called with the step (warm-up is negative) and its loss after each, outside its step time
template <class Program, class OnStep>
std::uint64_t run_steps(Program& program, RankLog& log, RankSession& session, int warmup_steps, int steps,
                        const OnStep& on_step) {
  using Clock = std::chrono::steady_clock;
  Backend& backend = *session.backend;
  log.compare_clocks(session);
  std::uint64_t sent_before = 0;
  for (int step = -warmup_steps; step < steps; ++step) {
    if (step == 0) {
      sent_before = backend.bytes_sent();
      backend.barrier();
      forget_memory_peak();
    }
    const Clock::time_point start = Clock::now();
    const std::vector<Stamp>& stamps = program.step();
    log.add(step, start, Clock::now(), stamps, program.loss());
    on_step(step, program.loss());
  }
  return backend.bytes_sent() - sent_before;
}

}  // namespace stepcast

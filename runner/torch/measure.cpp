#include "runner/torch/measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <semaphore>
#include <thread>
#include <tuple>

#include "core/statistics.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/compute_threads.hpp"
#include "runner/torch/counting_allocator.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/segmented_pass.hpp"
#include "runner/torch/torch_model.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

/// Most live bytes above those before, while `phase` ran.
template <class Phase>
double peak_of(Phase phase) {
  const double before = total(live_memory());
  forget_memory_peak();
  phase();
  return total(peak_memory()) - before;
}

/// One more step, whose memory is looked at and whose time is not: what the forward of each segment leaves
/// behind, its output among it, and what each phase needs while it runs.
void observe_memory(TorchModel& model, const Batch& batch, TraceEntry& entry) {
  const MemoryScope scope(MemoryCategory::kActivations);
  SegmentedPass pass(model);
  pass.begin(batch.input);
  for (std::size_t segment = 0; segment < model.segments(); ++segment) {
    const double before = total(live_memory());
    entry.segments[segment].forward_peak_bytes = peak_of([&] { pass.forward(segment); });
    entry.segments[segment].saved_bytes = total(live_memory()) - before;
  }
  entry.loss_peak_bytes = peak_of([&] { pass.loss(batch.target); });
  for (std::size_t segment = model.segments(); segment-- > 0;)
    entry.segments[segment].backward_peak_bytes = peak_of([&] { pass.backward(segment); });
  for (std::size_t segment = 0; segment < model.segments(); ++segment)
    entry.segments[segment].optimizer_peak_bytes = peak_of([&] { model.optimizer_step(segment); });
}

/// A second thread to wait for, as a rank waits for its communication thread.
class OtherThread {
 public:
  OtherThread() : thread_([this] { serve(); }) {}
  ~OtherThread() {
    stopping_ = true;
    asked_.release();
    thread_.join();
  }
  OtherThread(const OtherThread&) = delete;
  OtherThread& operator=(const OtherThread&) = delete;
  OtherThread(OtherThread&&) = delete;
  OtherThread& operator=(OtherThread&&) = delete;

  /// Blocks until the other thread has slept for 200 us.
  void wait() {
    asked_.release();
    answered_.acquire();
  }

 private:
  void serve() {
    constexpr std::chrono::microseconds kSleep{200};
    for (asked_.acquire(); !stopping_; asked_.acquire()) {
      std::this_thread::sleep_for(kSleep);
      answered_.release();
    }
  }

  std::binary_semaphore asked_{0};
  std::binary_semaphore answered_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// The steps of one batch size at one pace.
class BatchBench {
 public:
  BatchBench(TorchModel& model, const Dataset& data, int batch, int threads, Pace pace, OtherThread& other)
      : model_(model), data_(data), other_(other), pass_(model), ready_(model.parameters().size()) {
    entry_.batch = batch;
    entry_.threads = threads;
    entry_.pace = pace;
    for (const Segment& segment : model.model().segments) {
      entry_.segments.emplace_back();
      entry_.segments.back().name = segment.name;
      fractions_.emplace_back(segment.parameters.size());
    }
  }

  void warmup_step() {
    segmented_step(false);
    native_step(false);
  }
  /// What comes before a kept step is what will come before the next: a whole-graph step, or a step that
  /// waits.
  void first_step_of_turn() {
    if (entry_.pace == Pace::kContinuous)
      native_step(false);
    else
      segmented_step(false);
  }
  void next_step_of_turn() {
    segmented_step(true);
    if (entry_.pace == Pace::kContinuous) native_step(true);
  }
  /// The samples so far, with medians of the fractions.
  TraceEntry finish();

 private:
  void segmented_step(bool keep);
  /// Forward and backward of a micro-batch.
  void whole_pass(const Batch& batch);
  void native_step(bool keep);
  [[nodiscard]] Batch next_batch() { return data_.batch(step_++, 0, 1, entry_.batch, model_.dtype()); }
  void keep_fractions(std::size_t segment, Clock::time_point start, Clock::time_point end);

  TorchModel& model_;
  const Dataset& data_;
  OtherThread& other_;
  SegmentedPass pass_;
  std::int64_t step_ = 0;
  TraceEntry entry_;
  std::vector<Clock::time_point> ready_;                     ///< by parameter
  std::vector<std::vector<std::vector<double>>> fractions_;  ///< by segment, position in ready order, step
};

void BatchBench::whole_pass(const Batch& batch) {
  pass_.begin(batch.input);
  for (std::size_t segment = 0; segment < model_.segments(); ++segment) pass_.forward(segment);
  pass_.loss(batch.target);
  for (std::size_t segment = model_.segments(); segment-- > 0;) pass_.backward(segment);
}

void BatchBench::segmented_step(bool keep) {
  const std::size_t segments = model_.segments();
  std::vector<double> forward(segments);
  std::vector<double> backward(segments);
  std::vector<double> zero_grad(segments);
  std::vector<double> optimizer(segments);
  model_.set_gradient_hook([this](int tensor) { ready_[static_cast<std::size_t>(tensor)] = Clock::now(); });
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  const auto lap = [&last] {
    const Clock::time_point now = Clock::now();
    return seconds_between(std::exchange(last, now), now);
  };
  double input = 0.0;
  double loss = 0.0;
  double uncounted = 0.0;
  {
    Batch batch = next_batch();
    input = lap();
    for (std::size_t segment = 0; segment < segments; ++segment) {
      model_.zero_grad(segment);
      zero_grad[segment] = lap();
    }
    if (entry_.pace == Pace::kAccumulating) {
      whole_pass(batch);
      uncounted = lap();
    }
    pass_.begin(std::move(batch.input));
    for (std::size_t segment = 0; segment < segments; ++segment) {
      pass_.forward(segment);
      forward[segment] = lap();
    }
    pass_.loss(batch.target);
    loss = lap();
    for (std::size_t segment = segments; segment-- > 0;) {
      const Clock::time_point begin = last;
      pass_.backward(segment);
      backward[segment] = lap();
      if (keep) keep_fractions(segment, begin, last);
    }
    if (entry_.pace == Pace::kWaiting) {
      other_.wait();
      uncounted = lap();
    }
    for (std::size_t segment = 0; segment < segments; ++segment) {
      model_.optimizer_step(segment);
      optimizer[segment] = lap();
    }
  }
  const Clock::time_point end = Clock::now();
  model_.set_gradient_hook({});
  if (!keep) return;
  entry_.launch.push_back(0);
  entry_.input_s.push_back(input);
  entry_.loss_s.push_back(loss);
  entry_.host_s.push_back(seconds_between(last, end));
  entry_.step_s.push_back(seconds_between(start, end) - uncounted);
  for (std::size_t segment = 0; segment < segments; ++segment) {
    entry_.segments[segment].forward_s.push_back(forward[segment]);
    entry_.segments[segment].backward_s.push_back(backward[segment]);
    entry_.segments[segment].zero_grad_s.push_back(zero_grad[segment]);
    entry_.segments[segment].optimizer_s.push_back(optimizer[segment]);
  }
}

void BatchBench::keep_fractions(std::size_t segment, Clock::time_point start, Clock::time_point end) {
  const std::vector<int>& tensors = model_.model().segments[segment].parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const double until = seconds_between(start, ready_[static_cast<std::size_t>(tensors[i])]);
    fractions_[segment][i].push_back(std::clamp(until / seconds_between(start, end), 0.0, 1.0));
  }
}

void BatchBench::native_step(bool keep) {
  const Clock::time_point start = Clock::now();
  {
    const Batch batch = next_batch();
    model_.zero_grad();
    const torch::Tensor loss = model_.loss(model_.forward(batch.input), batch.target);
    loss.backward();
    model_.optimizer_step();
    static_cast<void>(loss.item<double>());
  }
  if (keep) entry_.native_step_s.push_back(seconds_between(start, Clock::now()));
}

TraceEntry BatchBench::finish() {
  for (std::size_t segment = 0; segment < fractions_.size(); ++segment)
    for (const std::vector<double>& samples : fractions_[segment])
      entry_.segments[segment].grad_ready_fraction.push_back(median(samples));
  observe_memory(model_, next_batch(), entry_);
  return std::move(entry_);
}

void append(std::vector<double>& samples, const std::vector<double>& more) {
  samples.insert(samples.end(), more.begin(), more.end());
}

/// Joins more launches, the first of which becomes the `launch`-th.
void join(TraceEntry& entry, const TraceEntry& more, int launch) {
  for (const int number : more.launch) entry.launch.push_back(launch + number);
  append(entry.input_s, more.input_s);
  append(entry.loss_s, more.loss_s);
  append(entry.host_s, more.host_s);
  append(entry.step_s, more.step_s);
  append(entry.native_step_s, more.native_step_s);
  for (std::size_t i = 0; i < entry.segments.size(); ++i) {
    SegmentTrace& segment = entry.segments[i];
    append(segment.forward_s, more.segments[i].forward_s);
    append(segment.backward_s, more.segments[i].backward_s);
    append(segment.zero_grad_s, more.segments[i].zero_grad_s);
    append(segment.optimizer_s, more.segments[i].optimizer_s);
    for (std::size_t k = 0; k < segment.grad_ready_fraction.size(); ++k) {
      double& mean = segment.grad_ready_fraction[k];
      mean += (more.segments[i].grad_ready_fraction[k] - mean) / (launch + 1);
    }
  }
}

auto order(const TraceEntry& entry) { return std::tuple(entry.threads, entry.batch, entry.pace); }

}  // namespace

Trace merge_launches(const std::vector<Trace>& parts) {
  Trace whole = parts.front();
  for (std::size_t part = 1; part < parts.size(); ++part)
    for (const TraceEntry& entry : parts[part].entries) {
      const auto same = std::find_if(whole.entries.begin(), whole.entries.end(),
                                     [&](const TraceEntry& other) { return order(other) == order(entry); });
      if (same == whole.entries.end())
        whole.entries.push_back(entry);
      else
        join(*same, entry, same->launch.back() + 1);
    }
  std::sort(whole.entries.begin(), whole.entries.end(),
            [](const TraceEntry& a, const TraceEntry& b) { return order(a) < order(b); });
  return whole;
}

Trace measure_trace(const Model& model, const MeasureOptions& options) {
  constexpr int kStepsPerTurn = 5;
  set_compute_threads(options.threads);
  install_counting_allocator();
  TorchModel torch_model(model, torch::kFloat32, options.seed);
  const Dataset data = Dataset::open(model, options.data_folder, options.seed);
  OtherThread other;
  std::vector<BatchBench> benches;
  for (const int batch : options.batches)
    for (const Pace pace : {Pace::kContinuous, Pace::kWaiting, Pace::kAccumulating})
      if (pace != Pace::kAccumulating || options.accumulating)
        benches.emplace_back(torch_model, data, batch, options.threads, pace, other);
  for (BatchBench& bench : benches)
    for (int step = 0; step < options.warmup_steps; ++step) bench.warmup_step();
  for (int done = 0; done < options.steps; done += kStepsPerTurn)
    for (BatchBench& bench : benches) {
      bench.first_step_of_turn();
      for (int step = done; step < std::min(options.steps, done + kStepsPerTurn); ++step) {
        bench.next_step_of_turn();
        options.on_step();
      }
    }
  Trace trace;
  trace.model = model.specification;
  for (BatchBench& bench : benches) trace.entries.push_back(bench.finish());
  return trace;
}

}  // namespace stepcast

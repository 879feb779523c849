#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <semaphore>
#include <thread>
#include <tuple>

#include "core/statistics.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/data.hpp"
#include "runner/torch/engine.hpp"
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
double peak_of(torch::Device device, Phase phase) {
  const double before = live_tensor_bytes(device);
  forget_tensor_peak(device);
  phase();
  return peak_tensor_bytes(device) - before;
}

/// One more step, whose memory is looked at and whose time is not: what the forward of each segment leaves
/// behind, its output among it, and what each phase needs while it runs.
void observe_memory(TorchModel& model, const Batch& batch, TraceEntry& entry) {
  const MemoryScope scope(MemoryCategory::kActivations);
  const torch::Device on = model.numbers().device;
  SegmentedPass pass(model);
  pass.begin(batch.input);
  for (std::size_t segment = 0; segment < model.segments(); ++segment) {
    const double before = live_tensor_bytes(on);
    entry.segments[segment].forward_peak_bytes = peak_of(on, [&] { pass.forward(segment); });
    entry.segments[segment].saved_bytes = live_tensor_bytes(on) - before;
  }
  entry.loss_peak_bytes = peak_of(on, [&] { pass.loss(batch.target); });
  for (std::size_t segment = model.segments(); segment-- > 0;)
    entry.segments[segment].backward_peak_bytes = peak_of(on, [&] { pass.backward(segment); });
  for (std::size_t segment = 0; segment < model.segments(); ++segment)
    entry.segments[segment].optimizer_peak_bytes = peak_of(on, [&] { model.optimizer_step(segment); });
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
///
/// Where a device computes, a kept step is three: one whose phases are issued while the device is held back and then run
/// by it without waiting for the host, so that issuing and computing are told apart; one that runs as training does, whose
/// whole time counts; and one of the whole graph.
class BatchBench {
 public:
  BatchBench(TorchModel& model, const Dataset& data, int batch, const MeasureOptions& options, Pace pace,
             OtherThread& other)
      : model_(model),
        data_(data),
        other_(other),
        device_(options.device),
        marks_(options.device),
        pass_(model),
        ready_(model.parameters().size()),
        exchanged_(model.model().exchanges.size()),
        exchange_fractions_(exchanged_.size()) {
    entry_.batch = batch;
    entry_.threads = options.threads;
    entry_.pace = pace;
    for (const Segment& segment : model.model().segments) {
      entry_.segments.emplace_back();
      entry_.segments.back().name = segment.name;
      fractions_.emplace_back(segment.parameters.size());
    }
  }

  void warmup_step() {
    segmented_step(Kept::kNothing);
    native_step(false);
  }
  /// What comes before a kept step is what will come before the next: a whole-graph step, or a step that
  /// waits.
  void first_step_of_turn() {
    if (entry_.pace == Pace::kContinuous)
      native_step(false);
    else
      segmented_step(Kept::kNothing);
  }
  void next_step_of_turn() {
    if (device_ != nullptr) segmented_step(Kept::kPhases);
    segmented_step(device_ != nullptr ? Kept::kWhole : Kept::kAll);
    if (entry_.pace == Pace::kContinuous) native_step(true);
  }

  /// The machine as it was during the steps since the last call.
  void note(const MachineState& machine) {
    while (entry_.machine.size() < entry_.steps()) entry_.machine.add(machine.probe_per_s, machine.taken);
  }
  [[nodiscard]] const MachineLog& machine() const { return entry_.machine; }

  /// The samples so far, with medians of the fractions.
  TraceEntry finish() {
    for (std::size_t segment = 0; segment < fractions_.size(); ++segment)
      for (const std::vector<double>& samples : fractions_[segment])
        entry_.segments[segment].grad_ready_fraction.push_back(median(samples));
    for (const std::vector<double>& samples : exchange_fractions_)
      entry_.exchange_fraction.push_back(median(samples));
    observe_memory(model_, next_batch(), entry_);
    return std::move(entry_);
  }

 private:
  [[nodiscard]] Batch next_batch() { return data_.batch(step_++, 0, 1, entry_.batch, model_.dtype()); }

  /// Forward and backward of a micro-batch.
  void whole_pass(const Batch& batch) {
    pass_.begin(batch.input);
    for (std::size_t segment = 0; segment < model_.segments(); ++segment) pass_.forward(segment);
    pass_.loss(batch.target);
    for (std::size_t segment = model_.segments(); segment-- > 0;) pass_.backward(segment);
  }

  enum class Kept : std::uint8_t { kNothing, kPhases, kWhole, kAll };
  /// Marks before and after a phase.
  struct Lap {
    std::size_t from = 0, to = 0;
  };

  /// Of a held device: from when it begins, behind what was issued.
  template <class Phase>
  Lap lap(bool held, Phase phase) {
    constexpr std::chrono::milliseconds kLongest{
        50};  // should issuing it take longer, or wait for the device
    if (held) {
      device_->drain();
      device_->hold(kLongest);
    }
    Lap lap{.from = held ? marks_.mark() : last_};
    phase();
    lap.to = last_ = marks_.mark();
    if (held) device_->release();
    return lap;
  }

  void segmented_step(Kept keep) {
    struct Laps {
      Lap forward, backward, zero_grad, optimizer;
    };
    const std::size_t segments = model_.segments();
    const bool held = keep == Kept::kPhases;
    std::vector<Laps> laps(segments);
    Lap input, loss, uncounted;
    torch::Tensor value;
    model_.set_gradient_hook(
        [this](int tensor) { ready_[static_cast<std::size_t>(tensor)] = marks_.mark(); });
    model_.set_exchange([this](int index, const torch::Tensor& own) {
      exchanged_[static_cast<std::size_t>(index)] = marks_.mark();
      return exchange_alone(model_.model(), index, own);
    });
    marks_.restart();
    const std::size_t start = last_ = marks_.mark();
    {
      Batch batch;
      input = lap(held, [&] { batch = next_batch(); });
      for (std::size_t segment = 0; segment < segments; ++segment)
        laps[segment].zero_grad = lap(held, [&] { model_.zero_grad(segment); });
      if (entry_.pace == Pace::kAccumulating) uncounted = lap(false, [&] { whole_pass(batch); });
      pass_.begin(std::move(batch.input));
      for (std::size_t segment = 0; segment < segments; ++segment)
        laps[segment].forward = lap(held, [&] { pass_.forward(segment); });
      loss = lap(held, [&] { value = pass_.loss(batch.target); });
      for (std::size_t segment = segments; segment-- > 0;)
        laps[segment].backward = lap(held, [&] { pass_.backward(segment); });
      if (entry_.pace == Pace::kWaiting) uncounted = lap(false, [&] { other_.wait(); });
      for (std::size_t segment = 0; segment < segments; ++segment)
        laps[segment].optimizer = lap(held, [&] { model_.optimizer_step(segment); });
      if (device_ != nullptr) static_cast<void>(value.item<double>());
    }
    const Clock::time_point end = Clock::now();
    model_.set_gradient_hook({});
    model_.set_exchange({});
    marks_.settle();
    if (keep == Kept::kWhole || keep == Kept::kAll) {
      entry_.launch.push_back(0);
      entry_.host_s.push_back(std::max(0.0, seconds_between(marks_.done(last_), end)));
      entry_.step_s.push_back(seconds_between(marks_.issued(start), end) -
                              marks_.done_s(uncounted.from, uncounted.to));
    }
    if (keep != Kept::kPhases && keep != Kept::kAll) return;
    const auto add = [this](const Lap& one, std::vector<double>& times, std::vector<double>& issue) {
      times.push_back(marks_.done_s(one.from, one.to));
      if (device_ != nullptr) issue.push_back(marks_.issued_s(one.from, one.to));
    };
    add(input, entry_.input_s, entry_.input_issue_s);
    add(loss, entry_.loss_s, entry_.loss_issue_s);
    keep_exchanges(-1, false, loss);
    for (std::size_t segment = 0; segment < segments; ++segment) {
      SegmentTrace& trace = entry_.segments[segment];
      add(laps[segment].forward, trace.forward_s, trace.forward_issue_s);
      add(laps[segment].backward, trace.backward_s, trace.backward_issue_s);
      add(laps[segment].zero_grad, trace.zero_grad_s, trace.zero_grad_issue_s);
      add(laps[segment].optimizer, trace.optimizer_s, trace.optimizer_issue_s);
      keep_exchanges(static_cast<int>(segment), false, laps[segment].forward);
      keep_exchanges(static_cast<int>(segment), true, laps[segment].backward);
      keep_fractions(segment, laps[segment].backward);
    }
  }

  /// The part of a phase that has passed at a mark.
  [[nodiscard]] double fraction(const Lap& phase, std::size_t mark) const {
    const double whole = marks_.done_s(phase.from, phase.to);
    return whole > 0.0 ? std::clamp(marks_.done_s(phase.from, mark) / whole, 0.0, 1.0) : 1.0;
  }

  void keep_fractions(std::size_t segment, const Lap& backward) {
    const std::vector<int>& tensors = model_.model().segments[segment].parameters;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      fractions_[segment][i].push_back(fraction(backward, ready_[static_cast<std::size_t>(tensors[i])]));
  }

  /// \param segment -1: the loss
  void keep_exchanges(int segment, bool backward, const Lap& phase) {
    const std::vector<LayerExchange>& exchanges = model_.model().exchanges;
    for (std::size_t i = 0; i < exchanges.size(); ++i)
      if (exchanges[i].segment == segment && exchanges[i].backward == backward)
        exchange_fractions_[i].push_back(fraction(phase, exchanged_[i]));
  }

  void native_step(bool keep) {
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

  TorchModel& model_;
  const Dataset& data_;
  OtherThread& other_;
  DeviceQueue* device_;
  StepMarks marks_;
  std::size_t last_ = 0;  ///< mark
  SegmentedPass pass_;
  std::int64_t step_ = 0;
  TraceEntry entry_;
  std::vector<std::size_t> ready_;                           ///< mark, by parameter
  std::vector<std::vector<std::vector<double>>> fractions_;  ///< by segment, position in ready order, step
  std::vector<std::size_t> exchanged_;                       ///< mark, by exchange of the model
  std::vector<std::vector<double>> exchange_fractions_;      ///< by exchange, step
};

/// Joins more launches, the first of which becomes the `launch`-th.
void join(TraceEntry& entry, const TraceEntry& more, int launch) {
  const auto append = [](auto& to, const auto& from, auto... samples) {
    (((to.*samples).insert((to.*samples).end(), (from.*samples).begin(), (from.*samples).end())), ...);
  };
  for (const int number : more.launch) entry.launch.push_back(launch + number);
  append(entry, more, &TraceEntry::input_s, &TraceEntry::loss_s, &TraceEntry::host_s, &TraceEntry::step_s,
         &TraceEntry::native_step_s, &TraceEntry::input_issue_s, &TraceEntry::loss_issue_s);
  entry.machine.append(more.machine);
  entry.disturbed = entry.disturbed || more.disturbed;
  for (std::size_t i = 0; i < entry.exchange_fraction.size(); ++i)
    entry.exchange_fraction[i] += (more.exchange_fraction[i] - entry.exchange_fraction[i]) / (launch + 1);
  for (std::size_t i = 0; i < entry.segments.size(); ++i) {
    SegmentTrace& segment = entry.segments[i];
    append(segment, more.segments[i], &SegmentTrace::forward_s, &SegmentTrace::backward_s,
           &SegmentTrace::zero_grad_s, &SegmentTrace::optimizer_s, &SegmentTrace::forward_issue_s,
           &SegmentTrace::backward_issue_s, &SegmentTrace::zero_grad_issue_s,
           &SegmentTrace::optimizer_issue_s);
    for (std::size_t k = 0; k < segment.grad_ready_fraction.size(); ++k) {
      double& mean = segment.grad_ready_fraction[k];
      mean += (more.segments[i].grad_ready_fraction[k] - mean) / (launch + 1);
    }
  }
}

double best_probe_of(const std::vector<BatchBench>& benches) {
  std::vector<double> probes;
  for (const BatchBench& bench : benches)
    probes.insert(probes.end(), bench.machine().probe_per_s.begin(), bench.machine().probe_per_s.end());
  return best_probe(std::move(probes));
}

/// How many undisturbed steps are missing to `steps`.
int lacking_steps(const BatchBench& bench, double best, int steps) {
  const std::vector<char> clean = undisturbed(bench.machine(), best);
  return steps - static_cast<int>(std::count(clean.begin(), clean.end(), 1));
}

/// Splits the steps of an entry into those that a forecast may stand on and those that were disturbed.
void add_undisturbed(const TraceEntry& all, double best, int steps, Trace& trace) {
  constexpr int kFew = 2;  // of three
  const std::vector<char> clean = undisturbed(all.machine, best);
  const std::vector<char> keep = least_disturbed(all.machine, best, static_cast<std::size_t>(steps));
  trace.entries.push_back(marked(all, keep));
  trace.entries.back().disturbed = 3 * std::count(clean.begin(), clean.end(), 1) < kFew * steps;
  if (TraceEntry aside = marked(all, keep, false); aside.steps() > 0)
    trace.set_aside.push_back(std::move(aside));
}

auto order(const TraceEntry& entry) { return std::tuple(entry.threads, entry.batch, entry.pace); }

}  // namespace

Trace merge_launches(const std::vector<Trace>& parts) {
  Trace whole = parts.front();
  for (std::size_t part = 1; part < parts.size(); ++part) {
    for (const TraceEntry& entry : parts[part].entries) {
      const auto same = std::find_if(whole.entries.begin(), whole.entries.end(),
                                     [&](const TraceEntry& other) { return order(other) == order(entry); });
      if (same == whole.entries.end())
        whole.entries.push_back(entry);
      else
        join(*same, entry, same->launch.back() + 1);
    }
    whole.set_aside.insert(whole.set_aside.end(), parts[part].set_aside.begin(), parts[part].set_aside.end());
  }
  std::sort(whole.entries.begin(), whole.entries.end(),
            [](const TraceEntry& a, const TraceEntry& b) { return order(a) < order(b); });
  return whole;
}

Trace measure_trace(const Model& model, const MeasureOptions& options) {
  constexpr int kStepsPerTurn = 5;
  set_compute_threads(options.threads);
  install_counting_allocator();
  use_numbers(options.precision, options.device);
  const Numbers numbers = Numbers::of(options.precision, options.device);
  TorchModel torch_model(model, numbers, options.seed);
  Dataset data = Dataset::open(model, options.data_folder, options.seed);
  data.to(numbers.device);
  OtherThread other;
  std::vector<BatchBench> benches;
  for (const int batch : options.batches)
    for (const Pace pace : {Pace::kContinuous, Pace::kWaiting, Pace::kAccumulating})
      if (pace == Pace::kContinuous ||
          (options.device == nullptr && (pace != Pace::kAccumulating || options.accumulating)))
        benches.emplace_back(torch_model, data, batch, options, pace, other);
  constexpr double kClocksRise = 0.5;  // of a GPU that was idle
  const Clock::time_point begin = Clock::now();
  for (BatchBench& bench : benches)
    for (int step = 0; step < options.warmup_steps; ++step) bench.warmup_step();
  while (options.device != nullptr && seconds_between(begin, Clock::now()) < kClocksRise)
    benches.front().warmup_step();
  MachineWatch watch(options.threads);
  const auto look = [&](double after_s) {
    if (watch.elapsed_s() < after_s) return;
    const MachineState machine = watch.sample();
    for (BatchBench& bench : benches) bench.note(machine);
  };
  const auto turn = [&](BatchBench& bench, int steps) {
    constexpr double kBetweenLooks = 0.1;
    bench.first_step_of_turn();
    for (int step = 0; step < steps; ++step) {
      bench.next_step_of_turn();
      look(kBetweenLooks);
    }
  };
  const auto in_time = [&] {
    return options.limit_s <= 0.0 || seconds_between(begin, Clock::now()) < options.limit_s;
  };
  for (int done = 0; done < options.steps && (done == 0 || in_time()); done += kStepsPerTurn)
    for (BatchBench& bench : benches) {
      const int steps = std::min(options.steps - done, kStepsPerTurn);
      turn(bench, steps);
      for (int step = 0; step < steps; ++step) options.on_step();
    }
  look(0.0);
  for (const Clock::time_point start = Clock::now();
       seconds_between(start, Clock::now()) < options.budget_s && in_time();) {
    const double best = best_probe_of(benches);
    bool lacks = false;
    for (BatchBench& bench : benches)
      if (const int lacking = lacking_steps(bench, best, options.steps); lacking > 0) {
        turn(bench, std::min(lacking, kStepsPerTurn));
        lacks = true;
      }
    if (!lacks) break;
    look(0.0);
  }
  Trace trace;
  trace.model = model.specification;
  trace.dtype = device_dtype(options.precision.compute);
  trace.precision = to_text(options.precision);
  const double best = best_probe_of(benches);
  for (BatchBench& bench : benches) add_undisturbed(bench.finish(), best, options.steps, trace);
  return trace;
}

}  // namespace stepcast

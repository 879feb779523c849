#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <semaphore>
#include <thread>
#include <tuple>

#include "core/program.hpp"
#include "core/statistics.hpp"
#include "records/machine_state.hpp"
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

/// Most live bytes of phases, above those before each and in all.
class PeakBytes {
 public:
  explicit PeakBytes(torch::Device device) : device_(device) {}

  template <class Phase>
  double of(Phase phase) {
    const double before = live_tensor_bytes(device_);
    forget_tensor_peak(device_);
    phase();
    const double peak = peak_tensor_bytes(device_);
    highest_ = std::max(highest_, peak);
    return peak - before;
  }
  [[nodiscard]] double highest() const { return highest_; }

 private:
  torch::Device device_;
  double highest_ = 0.0;
};

/// What a step begins with.
struct Arrival {
  torch::Tensor input, target;
  torch::Tensor gradient;  ///< of the last segment's output, where another stage has the loss
};

/// The part of a model that is measured, and what comes to it from outside.
class MeasuredPart {
 public:
  /// \param batch the largest of those that are asked for
  MeasuredPart(const Model& model, const MeasureOptions& options, const Numbers& numbers, int batch)
      : segments_(options.segments), numbers_(numbers) {
    if (segments_.empty()) {
      segments_.resize(model.segments.size());
      std::iota(segments_.begin(), segments_.end(), 0);
    }
    has_input_ = segments_.front() == 0;
    has_loss_ = segments_.back() + 1 == static_cast<int>(model.segments.size());
    if (has_input_ || has_loss_) {
      data_ = Dataset::open(model, options.data_folder, options.seed);
      data_->to(numbers.device);
    }
    const at::Generator generator = numbers.generator(options.seed);
    const auto normal = [&](const Shape& shape) {
      std::vector<std::int64_t> sizes{batch};
      sizes.insert(sizes.end(), shape.begin(), shape.end());
      return torch::empty(sizes, numbers.options()).normal_(0.0, 1.0, generator);
    };
    const auto segment = [&](int index) -> const Segment& {
      return model.segments[static_cast<std::size_t>(index)];
    };
    if (!has_input_) input_ = normal(segment(segments_.front()).input);
    if (!has_loss_) gradient_ = normal(segment(segments_.back()).output);
    if (!has_loss_) gradient_.div_(static_cast<double>(gradient_.numel()));
  }

  [[nodiscard]] const std::vector<int>& segments() const { return segments_; }
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(segments_.front()); }
  [[nodiscard]] std::size_t end() const { return static_cast<std::size_t>(segments_.back()) + 1; }
  [[nodiscard]] bool has_input() const { return has_input_; }
  [[nodiscard]] bool has_loss() const { return has_loss_; }

  [[nodiscard]] Arrival arrival(std::int64_t step, int batch) const {
    Arrival result;
    if (data_) {
      const Batch drawn = data_->batch(step, 0, 1, batch, numbers_.dtype);
      if (has_input_) result.input = drawn.input;
      if (has_loss_) result.target = drawn.target;
    }
    if (!has_input_) result.input = input_.narrow(0, 0, batch).clone();
    if (!has_loss_) result.gradient = gradient_.narrow(0, 0, batch).clone();
    return result;
  }

  /// The loss, or what takes its place: the output goes to the next stage, from where its gradient comes.
  torch::Tensor loss(SegmentedPass& pass, Arrival& arrival) const {
    if (has_loss_) return pass.loss(arrival.target);
    static_cast<void>(pass.take_output(end() - 1));
    pass.receive_gradient(end() - 1, std::move(arrival.gradient));
    return {};
  }
  void backward(SegmentedPass& pass, std::size_t segment) const {
    pass.backward(segment);
    if (segment == first() && !has_input_) static_cast<void>(pass.take_input_gradient(segment));
  }

 private:
  std::vector<int> segments_;
  Numbers numbers_;
  bool has_input_ = true, has_loss_ = true;
  std::optional<Dataset> data_;
  torch::Tensor input_, gradient_;
};

/// One more step, whose memory is looked at and whose time is not: what the forward of each segment leaves
/// behind, its output among it, and what each phase needs while it runs.
/// \param foreign live bytes that are not the model's: data sets, and what neighbours would send
void observe_memory(TorchModel& model, const MeasuredPart& part, std::int64_t step, double foreign,
                    TraceEntry& entry) {
  const MemoryScope scope(MemoryCategory::kActivations);
  const torch::Device on = model.numbers().device;
  SegmentedPass pass(model);
  Arrival arrival = part.arrival(step, entry.batch);
  pass.receive(part.first(), std::move(arrival.input));
  PeakBytes peak(on);
  std::size_t at = 0;
  const auto for_each = [&](const auto& look) {
    at = part.first();
    for (SegmentTrace& segment : entry.segments) {
      look(segment);
      ++at;
    }
  };
  for_each([&](SegmentTrace& segment) {
    const double before = live_tensor_bytes(on);
    segment.forward_peak_bytes = peak.of([&] { pass.forward(at); });
    segment.saved_bytes = live_tensor_bytes(on) - before;
  });
  entry.loss_peak_bytes = peak.of([&] { part.loss(pass, arrival); });
  for (std::size_t segment = part.end(); segment-- > part.first();)
    entry.segments[segment - part.first()].backward_peak_bytes =
        peak.of([&] { part.backward(pass, segment); });
  for_each([&](SegmentTrace& segment) {
    segment.optimizer_peak_bytes = peak.of([&] { model.optimizer_step(at); });
  });
  entry.peak_bytes = peak.highest() - foreign;
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
  BatchBench(TorchModel& model, const MeasuredPart& part, int batch, const MeasureOptions& options,
             StepContext pace, OtherThread& other)
      : model_(model),
        part_(part),
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
    entry_.first_segment = part.segments().front();
    for (const int index : part.segments()) {
      const Segment& segment = model.model().segments[static_cast<std::size_t>(index)];
      entry_.segments.emplace_back();
      entry_.segments.back().name = segment.name;
      fractions_.emplace_back(segment.parameters.size());
    }
  }

  void warmup_step() {
    segmented_step(Kept::kNothing);
    native_step(false);
    marks_.count_processor_time(device_ == nullptr && entry_.threads == 1 && shortest_s_ >= kLongStepS);
  }
  /// What comes before a kept step is what will come before the next: a whole-graph step, or a step that
  /// waits.
  void first_step_of_turn() {
    if (entry_.pace == StepContext::kContinuous)
      native_step(false);
    else
      segmented_step(Kept::kNothing);
  }
  void next_step_of_turn() {
    if (device_ != nullptr) segmented_step(Kept::kPhases);
    segmented_step(device_ != nullptr ? Kept::kWhole : Kept::kAll);
    if (entry_.pace == StepContext::kContinuous) native_step(true);
  }

  /// The machine as it was during the steps since the last call.
  void note(const MachineState& machine) {
    // What the hypervisor stole, at worst all of it from the one core that computes, is in the processor's time.
    const double stolen = machine.stolen * static_cast<double>(usable_cores().size());
    const double others = std::max(0.0, machine.taken - stolen);
    for (std::size_t step = entry_.machine.size(); step < entry_.steps(); ++step)
      entry_.machine.add(machine.probe_per_s, machine.taken, left_alone_[step] != 0 ? others : 0.0);
  }
  [[nodiscard]] const MachineLog& machine() const { return entry_.machine; }

  /// The samples so far, with medians of the fractions.
  TraceEntry finish(double foreign_bytes) {
    for (std::size_t segment = 0; segment < fractions_.size(); ++segment)
      for (const std::vector<double>& samples : fractions_[segment])
        entry_.segments[segment].grad_ready_fraction.push_back(median(samples));
    for (const std::vector<double>& samples : exchange_fractions_)
      entry_.exchange_fraction.push_back(samples.empty() ? 1.0 : median(samples));  // another stage's
    observe_memory(model_, part_, step_++, foreign_bytes, entry_);
    return std::move(entry_);
  }

 private:
  [[nodiscard]] Arrival next_arrival() { return part_.arrival(step_++, entry_.batch); }

  void update(std::optional<std::size_t> segment = std::nullopt) {
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    model_.optimizer_step(segment);
  }

  /// Forward and backward of a micro-batch.
  void whole_pass(Arrival arrival) {
    pass_.receive(part_.first(), std::move(arrival.input));
    for (std::size_t segment = part_.first(); segment < part_.end(); ++segment) pass_.forward(segment);
    part_.loss(pass_, arrival);
    for (std::size_t segment = part_.end(); segment-- > part_.first();) part_.backward(pass_, segment);
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
    const std::size_t first = part_.first(), end = part_.end();
    const bool held = keep == Kept::kPhases;
    std::vector<Laps> laps(end);
    Lap input, loss, uncounted;
    torch::Tensor value;
    model_.set_gradient_hook(
        [this](int tensor) { ready_[static_cast<std::size_t>(tensor)] = marks_.mark(); });
    model_.set_exchange([this](int index, const torch::Tensor& own) {
      exchanged_[static_cast<std::size_t>(index)] = marks_.mark();
      return exchange_alone(model_.model(), index, own);
    });
    marks_.restart();
    const double ran_before_s = process_ran_s();
    const std::size_t start = last_ = marks_.mark();
    {
      Arrival arrival;
      input = lap(held, [&] { arrival = next_arrival(); });
      for (std::size_t segment = first; segment < end; ++segment)
        laps[segment].zero_grad = lap(held, [&] { model_.zero_grad(segment); });
      if (entry_.pace == StepContext::kAccumulating) uncounted = lap(false, [&] { whole_pass(arrival); });
      pass_.receive(first, std::move(arrival.input));
      for (std::size_t segment = first; segment < end; ++segment)
        laps[segment].forward = lap(held, [&] { pass_.forward(segment); });
      loss = lap(held, [&] { value = part_.loss(pass_, arrival); });
      for (std::size_t segment = end; segment-- > first;)
        laps[segment].backward = lap(held, [&] { part_.backward(pass_, segment); });
      if (entry_.pace == StepContext::kWaiting) uncounted = lap(false, [&] { other_.wait(); });
      for (std::size_t segment = first; segment < end; ++segment)
        laps[segment].optimizer = lap(held, [&] { update(segment); });
      if (value.defined() && device_ != nullptr)
        static_cast<void>(value.item<double>());
      else if (device_ != nullptr)
        device_->drain();
    }
    const Clock::time_point over = Clock::now();
    const double ran_s = process_ran_s() - ran_before_s;
    model_.set_gradient_hook({});
    model_.set_exchange({});
    marks_.settle();
    const double whole_s = seconds_between(marks_.issued(start), over);
    shortest_s_ = std::min(shortest_s_, whole_s);
    if (keep == Kept::kWhole || keep == Kept::kAll) {
      entry_.launch.push_back(0);
      // Nobody else has anything of a step in which this process ran all the time, or is counted by how long it did.
      constexpr double kAllTheTime = 0.98;
      const double asleep_s =
          entry_.pace == StepContext::kWaiting ? marks_.issued_s(uncounted.from, uncounted.to) : 0.0;
      const bool one_thread = device_ == nullptr && entry_.threads == 1;
      left_alone_.push_back(marks_.counts_processor_time() ||
                            (one_thread && ran_s >= kAllTheTime * (whole_s - asleep_s)));
      entry_.host_s.push_back(std::max(0.0, seconds_between(marks_.done(last_), over)));
      entry_.step_s.push_back(marks_.done_s(start, last_) + entry_.host_s.back() -
                              marks_.done_s(uncounted.from, uncounted.to));
    }
    if (keep != Kept::kPhases && keep != Kept::kAll) return;
    const auto add = [this](const Lap& one, std::vector<double>& times, std::vector<double>& issue) {
      times.push_back(marks_.done_s(one.from, one.to));
      if (device_ != nullptr) issue.push_back(marks_.issued_s(one.from, one.to));
    };
    add(input, entry_.input_s, entry_.input_issue_s);
    add(loss, entry_.loss_s, entry_.loss_issue_s);
    if (part_.has_loss()) keep_exchanges(-1, false, loss);
    for (std::size_t segment = first; segment < end; ++segment) {
      SegmentTrace& trace = entry_.segments[segment - first];
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
      fractions_[segment - part_.first()][i].push_back(
          fraction(backward, ready_[static_cast<std::size_t>(tensors[i])]));
  }

  /// \param segment -1: the loss
  void keep_exchanges(int segment, bool backward, const Lap& phase) {
    const std::vector<LayerCollective>& exchanges = model_.model().exchanges;
    for (std::size_t i = 0; i < exchanges.size(); ++i)
      if (exchanges[i].segment == segment && exchanges[i].backward == backward)
        exchange_fractions_[i].push_back(fraction(phase, exchanged_[i]));
  }

  void native_step(bool keep) {
    const Clock::time_point start = Clock::now();
    const double ran_before_s = process_ran_s();
    {
      const Arrival arrival = next_arrival();
      model_.zero_grad();
      torch::Tensor value = part_.has_input() ? arrival.input : arrival.input.requires_grad_();
      for (std::size_t segment = part_.first(); segment < part_.end(); ++segment)
        value = model_.forward(segment, value);
      if (part_.has_loss()) value = model_.loss(value, arrival.target);
      value.backward(arrival.gradient);
      update();
      if (part_.has_loss())
        static_cast<void>(value.item<double>());
      else if (device_ != nullptr)
        device_->drain();
    }
    const double wall_s = seconds_between(start, Clock::now()), ran_s = process_ran_s() - ran_before_s;
    if (keep)
      entry_.native_step_s.push_back(marks_.counts_processor_time() ? std::min(wall_s, ran_s) : wall_s);
  }

  TorchModel& model_;
  const MeasuredPart& part_;
  OtherThread& other_;
  DeviceQueue* device_;
  StepMarks marks_;
  std::size_t last_ = 0;          ///< mark
  std::vector<char> left_alone_;  ///< by step: what others took is no part of it
  double shortest_s_ = std::numeric_limits<double>::infinity();  ///< step so far
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

auto order(const TraceEntry& entry) {
  return std::tuple(entry.threads, entry.batch, entry.pace, entry.first_segment);
}

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
  set_matmul_precision(options.precision, options.device);
  const Numbers numbers = Numbers::of(options.precision, options.device);
  TorchModel torch_model(model, numbers, options.seed,
                         options.segments.empty() ? std::nullopt : std::optional(options.segments));
  const double of_model = live_tensor_bytes(numbers.device);
  const MeasuredPart part(model, options, numbers,
                          *std::max_element(options.batches.begin(), options.batches.end()));
  const double foreign = live_tensor_bytes(numbers.device) - of_model;
  OtherThread other;
  std::vector<BatchBench> benches;
  for (const int batch : options.batches)
    for (const StepContext pace :
         {StepContext::kContinuous, StepContext::kWaiting, StepContext::kAccumulating})
      if (pace == StepContext::kContinuous ||
          (options.device == nullptr && (pace != StepContext::kAccumulating || options.accumulating)))
        benches.emplace_back(torch_model, part, batch, options, pace, other);
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
  trace.recompute = to_text(model.recomputed_part);
  const double best = best_probe_of(benches);
  for (BatchBench& bench : benches) add_undisturbed(bench.finish(foreign), best, options.steps, trace);
  return trace;
}

}  // namespace stepcast

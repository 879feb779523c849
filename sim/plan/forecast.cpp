#include "sim/plan/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "core/ranges.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Positions in the numbers of a replay: step time, operations, reserved memory, parts of the mean breakdown;
/// then by stage memory and the time in which a rank is not idle.
constexpr std::size_t kStep = 0, kOperations = 1, kReserved = 2, kFirstPart = 3;

/// \param stride ranks from one pipeline stage to the next
std::vector<double> numbers_of(const Result& result, std::size_t stages, int stride) {
  Breakdown mean;
  double reserved = 0.0;
  std::vector<double> memory(stages, 0.0), busy(stages, 0.0);
  for (const auto [i, rank] : enumerated(result.breakdown)) {
    const MemoryUse& use = result.memory[i];
    for (const auto& [name, part] : breakdown_parts())
      mean.*part += rank.*part / static_cast<double>(result.breakdown.size());
    const std::size_t stage = static_cast<std::size_t>(use.rank / stride) % stages;
    memory[stage] = std::max(memory[stage], use.needed_bytes());
    reserved = std::max(reserved, use.reserved_bytes);
    busy[stage] = std::max(busy[stage], rank.step_s() - rank.idle_s);
  }
  std::vector<double> numbers{result.median_step_time_s(), result.forecast.operations, reserved};
  for (const auto& [name, part] : breakdown_parts()) numbers.push_back(mean.*part);
  append(numbers, memory);
  append(numbers, busy);
  return numbers;
}

/// A step with `parts` of its micro-batches, after warm-up steps. With many micro-batches the first step is
/// like all others.
std::vector<double> replayed(PlanModels& models, const Plan& plan, int parts, int warmup_steps) {
  PredictionRequest request = request_of(models.problem(), plan);
  request.costs.batch = *request.costs.batch / request.training.micro_batches * parts;
  request.training.micro_batches = parts;
  request.replay.warmup_steps = warmup_steps;
  request.brief = true;
  request.known = &models.known();
  const Result result = predict(request);
  return numbers_of(result, static_cast<std::size_t>(plan.number("pipeline")),
                    view_of(models, plan).stage_stride);
}

}  // namespace

std::vector<double> replayed_numbers(PlanModels& models, const Plan& plan) {
  constexpr int kFew = 4, kMany = 12;
  constexpr double kExact = 1e-3;
  const int parts = plan.number("micro-batches"), round = plan.number("pipeline");
  double operations = 0.0, latest = 0.0;
  for (int few = kFew; parts > kMany * round && 2 * few * round < parts; few *= 2) {
    const std::vector<double> before = replayed(models, plan, (few - 1) * round, 0);
    std::vector<double> numbers = replayed(models, plan, few * round, 0);
    const double more = static_cast<double>(parts) / round - few;
    operations += numbers[kOperations] + before[kOperations];
    std::vector<double> added;
    std::ranges::transform(numbers, before, std::back_inserter(added), std::minus());
    const double busiest = *std::max_element(added.end() - round, added.end());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += more * added[i];
    numbers[kOperations] = operations;
    const double slower = more * (added[kStep] - busiest);  // more than the busiest rank explains
    const double error = slower < 0.0 ? -slower : std::min(slower, std::abs(numbers[kStep] - latest));
    if (error < kExact * numbers[kStep]) return numbers;
    latest = numbers[kStep];
  }
  std::vector<double> numbers = replayed(models, plan, parts, 1);
  numbers[kOperations] += operations;
  return numbers;
}

PlanForecast forecast_of(PlanModels& models, const Plan& plan, const std::vector<double>& numbers,
                         double memory_bound) {
  // Results of large worlds contain the memory of some ranks alone.
  PlanForecast forecast{.step_s = numbers[kStep],
                        .memory_bytes = memory_bound,
                        .reserved_bytes = numbers[kReserved],
                        .operations = numbers[kOperations]};
  std::size_t at = kFirstPart;
  for (const auto& [name, part] : breakdown_parts()) forecast.mean.*part = numbers[at++];
  // A rank that ends its first step early waits in the next one.
  forecast.mean.idle_s += forecast.step_s - forecast.mean.step_s();
  forecast.stage_memory_bytes.assign(numbers.begin() + at, numbers.begin() + at + plan.number("pipeline"));
  for (const double bytes : forecast.stage_memory_bytes)
    forecast.memory_bytes = std::max(forecast.memory_bytes, bytes);
  forecast.samples_per_s = models.problem().samples / forecast.step_s;
  const DeviceModel& device = models.device();
  if (!device.gpu) return forecast;
  Flop flop;
  for (const Segment& segment : models.whole().segments) flop += segment.flop.forward + segment.flop.backward;
  forecast.mfu = forecast.samples_per_s * flop.count() / plan.number("world-size") /
                 device.peak.at(device_dtype(models.problem().precision.compute)).count();
  return forecast;
}

}  // namespace stepcast

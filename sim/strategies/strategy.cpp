#include "sim/strategies/strategy.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace stepcast {

namespace {

std::string divisors(int number) {
  std::string text;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return text;
}

}  // namespace

Registry<Strategy>& strategies() {
  static Registry<Strategy> registry("strategy");
  return registry;
}

Schedule build_schedule(const std::string& strategy, const Model& model, const TrainingConfig& config) {
  const Strategy& found = strategies().find(strategy);
  const auto check = [](const char* what, int value) {
    if (value < 1)
      throw UsageError(std::string(what) + " must be at least 1, found " + std::to_string(value));
  };
  check("world size", config.world_size);
  check("batch", config.batch);
  check("micro-batches", config.micro_batches);
  if (config.batch % config.micro_batches != 0)
    throw UsageError("--micro-batches " + std::to_string(config.micro_batches) +
                     " do not divide the batch of " + std::to_string(config.batch) +
                     " samples; possible are " + divisors(config.batch));
  Schedule schedule = found.build(model, config);
  validate(schedule);
  return schedule;
}

Configuration configuration_of(const Schedule& schedule, const Model& model, const TrainingConfig& config) {
  Configuration configuration;
  configuration.model = model.specification;
  configuration.strategy = schedule.strategy;
  configuration.world_size = schedule.world_size;
  configuration.batch = config.batch;
  configuration.data_parallel = schedule.data_parallel;
  configuration.micro_batches = schedule.micro_batches;
  configuration.bucket_cap_bytes = config.bucket_cap.count();
  configuration.first_bucket_cap_bytes = config.first_bucket_cap.count();
  configuration.extra = schedule.options;
  return configuration;
}

void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end())
    throw UsageError("--" + option + ": " + unknown_name(option, value, known));
}

}  // namespace stepcast

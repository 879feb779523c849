#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "models/model.hpp"
#include "records/trace.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/replay/prediction.hpp"

/// What `stepcast plan` is asked, and what it chooses among.
namespace stepcast {

/// What is made least of: seconds of a step, device-seconds, or joules at rated power.
enum class PlanObjective : std::uint8_t { kTime, kCost, kEnergy };

struct PlanProblem {
  std::string model;  ///< with its settings: `llama3-70b:sequence=8192`
  std::string cluster, device;
  Precision precision{};
  int ranks = 1;         ///< that there are
  int samples = 1;       ///< of a step, all ranks together
  double reserve = 0.1;  ///< part of a device's memory that is left to allocators, NCCL and libraries
  PlanObjective objective = PlanObjective::kTime;
};

/// The order of ranks in which the stages of a replica are neighbours, not the replicas of a stage.
inline constexpr const char* kStagesInside = "tensor-pipeline-data";

/// One way to train: values by names of dimensions, and whatever other options of `stepcast predict` a plan of
/// somebody's own names. What is not there means nothing here, or has its default.
struct Plan {
  OptionTexts values;

  [[nodiscard]] const std::string& text(const std::string& name) const;  ///< "" where it is not there
  [[nodiscard]] int number(const std::string& name) const;               ///< 1 where it is not there
  [[nodiscard]] int micro_batch(const PlanProblem& problem) const;       ///< its samples
  /// Of what FSDP has in shards; 1 where all ranks that have batches share one.
  [[nodiscard]] int copies() const;
  /// Megatron's --use-tp-pp-dp-mapping.
  [[nodiscard]] bool stages_inside() const { return !text("rank-order").empty(); }
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// A model with one more setting: `llama3-8b` and `sequence`, `8192`.
std::string with_setting(const std::string& model, const std::string& setting, const std::string& value);

/// The same plan as options of `stepcast predict`, all of them, and as its request.
OptionTexts predict_options(const PlanProblem& problem, const Plan& plan);
PredictionRequest request_of(const PlanProblem& problem, const Plan& plan);
/// `stepcast predict --model ...`, as a shell reads it.
std::string command_of(const PlanProblem& problem, const Plan& plan);
/// `fsdp, shard 8, tensor 8, recompute full`: what tells it from others, for tables.
std::string describe(const Plan& plan);

/// The model as one rank of a plan has it, and what a micro-batch of it costs there alone: each is made once.
class PlanModels {
 public:
  explicit PlanModels(const PlanProblem& problem);

  [[nodiscard]] const PlanProblem& problem() const { return problem_; }
  [[nodiscard]] const DeviceModel& device() const { return device_; }
  /// Of the whole model, which no ranks share.
  [[nodiscard]] const Model& whole();
  /// Null where the model cannot be shared so: its heads cannot be divided by tensor, or it has no such setting.
  const Model* part(const Plan& plan);
  /// Of a model that part() returned.
  const StepEstimate& estimate(const Model& model, int samples);
  /// As `--split` has it: where the parts of a micro-batch's time are most equal.
  const std::string& balanced_split(const Model& model, int samples, int parts);

 private:
  const PlanProblem& problem_;
  const DeviceModel& device_;
  std::map<std::string, std::optional<Model>> parts_;
  std::map<std::tuple<const Model*, int>, StepEstimate> estimates_;
  std::map<std::tuple<const Model*, int, int>, std::string> balanced_splits_;
  const Model* whole_ = nullptr;
};

}  // namespace stepcast

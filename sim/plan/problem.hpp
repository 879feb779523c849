#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/enum_table.hpp"
#include "models/model.hpp"
#include "records/phase_costs.hpp"
#include "sim/replay/convention.hpp"
#include "sim/replay/memory.hpp"
#include "sim/replay/prediction.hpp"
#include "sim/train/expected.hpp"

/// The problem of `stepcast plan`, and a plan.
namespace stepcast {

/// Number to minimise: step time in seconds, wall-clock time with failures and checkpoints, device-seconds,
/// or joules at rated power.
enum class PlanObjective : std::uint8_t { kTime, kDays, kCost, kEnergy };
inline constexpr auto kPlanObjectives = enum_names<PlanObjective>("time", "days", "cost", "energy");

struct PlanProblem {
  std::string model;  ///< with its settings: `llama3-70b:sequence=8192`
  std::string cluster, device;
  Precision precision{};
  int ranks = 1;                 ///< available
  int samples = 1;               ///< per step, over all ranks
  double reserve = kKeptMemory;  ///< fraction of a device's memory that no process gets
  PlanObjective objective = PlanObjective::kTime;
  std::shared_ptr<ExpectedTraining> whole{};  ///< with failures and checkpoints; null: the steps alone
  std::string like{};                         ///< convention of all plans, see Convention; "": none
};

/// Rank order in which the stages of a replica are adjacent instead of the replicas of a stage.
inline constexpr const char* kStagesInside = "tensor-pipeline-data";

/// One way to train: values by names of dimensions, and other options of `stepcast predict` from a user's
/// plan. A missing dimension does not apply or has its default.
struct Plan {
  OptionTexts values;
  OptionTexts added{};  ///< by the problem's convention: options, settings, and `model` with these

  [[nodiscard]] const std::string& text(std::string_view name) const;  ///< "" if it is missing
  [[nodiscard]] int number(std::string_view name) const;               ///< 1 if it is missing
  [[nodiscard]] int micro_batch(const PlanProblem& problem) const;     ///< samples
  /// Replicas of FSDP's shards; 1 if all data-parallel ranks share one copy.
  [[nodiscard]] int copies() const;
  /// Ranks with all experts together.
  [[nodiscard]] int expert_ranks() const { return number("expert") * number("expert_tensor"); }
  /// Rank order kStagesInside: Megatron's --use-tp-pp-dp-mapping.
  [[nodiscard]] bool stages_inside() const { return !text("rank-order").empty(); }
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Mesh of a plan.
Mesh mesh_of(const Plan& plan);
/// The plan as options of `stepcast predict`, and as its request.
OptionTexts predict_options(const PlanProblem& problem, const Plan& plan);
PredictionRequest request_of(const PlanProblem& problem, const Plan& plan);
/// `stepcast predict --model ...`, quoted for a shell.
std::string command_of(const PlanProblem& problem, const Plan& plan);
/// `fsdp, shard 8, tensor 8, recompute full`: the plan's own values, for tables.
std::string describe(const Plan& plan);

/// First and last of consecutive segments on one rank.
using SegmentRange = std::pair<int, int>;

/// Models and estimates of the plans of one problem. Each is made once.
class PlanModels {
 public:
  explicit PlanModels(const PlanProblem& problem);

  [[nodiscard]] const PlanProblem& problem() const { return problem_; }
  /// True if the problem's convention sets this option or setting, so that plans do not.
  [[nodiscard]] bool is_set(const std::string& name) const {
    return convention_ && convention_->names().contains(name);
  }
  /// Program that runs the problem's convention; "": any.
  [[nodiscard]] std::string program() const { return convention_ ? convention_->program() : ""; }
  /// Replaces what the convention adds to a plan.
  void settle(Plan& plan) const;
  [[nodiscard]] Precision precision_of(const Plan& plan) const;
  [[nodiscard]] const DeviceModel& device() const { return device_; }
  /// Inputs of forecasts, loaded by bounds and replays.
  KnownInputs& known() { return known_; }
  /// The model without shared layers.
  [[nodiscard]] const Model& whole();
  /// Share of one rank. Null if the model cannot be shared so: tensor does not divide its heads, or it lacks
  /// the setting.
  const Model* part(const Plan& plan);
  /// Costs of one micro-batch on one rank, at the rates of the slowest. \param model that part() returned
  const PhaseCosts& estimate(const Model& model, const Plan& plan);
  /// The split, as `--split` takes it, with the most equal times of a micro-batch.
  const std::string& balanced_split(const Model& model, const Plan& plan, int parts);
  /// Parts of a split, as `--split` takes it.
  const std::vector<SegmentRange>& chunks(const std::string& split, int parts);

 private:
  const PlanProblem& problem_;
  const DeviceModel& device_;
  std::optional<Convention> convention_;
  KnownInputs known_;
  std::map<std::string, std::optional<Model>> parts_;
  /// By samples, ranks, and whether experts stay on theirs.
  std::map<std::tuple<const Model*, int, int, bool>, PhaseCosts> estimates_;
  std::map<std::tuple<const PhaseCosts*, int>, std::string> balanced_splits_;
  std::map<std::pair<std::string, int>, std::vector<SegmentRange>> chunks_;
  const Model* whole_ = nullptr;
};

}  // namespace stepcast

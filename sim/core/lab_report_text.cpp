#include <algorithm>
#include <cmath>

#include "sim/core/lab_report.hpp"
#include "sim/core/statistics.hpp"
#include "sim/core/table.hpp"
#include "sim/core/units.hpp"

namespace stepcast {
namespace {

std::vector<std::string> row_of(const std::string& compute, const std::string& distance,
                                const ErrorSummary& errors) {
  return {compute,
          distance,
          std::to_string(errors.cases),
          percent_text(errors.median),
          percent_text(errors.p90),
          percent_text(errors.worst)};
}

std::string groups_text(const std::vector<LabCase>& cases) {
  Table table({"compute", "distance from the calibration", "cases", "median", "p90", "worst"});
  const std::vector<LabGroup> groups = group_errors(cases);
  for (const LabCompute compute : kLabComputes) {
    for (const LabGroup& group : groups)
      if (group.compute == compute)
        table.add(row_of(to_text(compute), to_text(group.distance), group.errors));
    const ErrorSummary all = summarize(cases, compute);
    if (all.cases > 0) table.add(row_of(to_text(compute), "all", all));
  }
  return table.text();
}

std::string trivial_text(const LabCase& one) {
  std::string text;
  for (const auto& [name, error] : better_trivial_predictors(one))
    text += (text.empty() ? "" : ", ") + name + " " + signed_percent_text(error);
  return text;
}

std::string cases_text(std::vector<LabCase> cases) {
  std::stable_sort(cases.begin(), cases.end(), [](const LabCase& a, const LabCase& b) {
    return std::abs(a.relative_error()) > std::abs(b.relative_error());
  });
  Table table({"compute", "model", "strategy", "ranks", "batch", "cluster", "distance", "measured",
               "launches", "low", "high", "predicted", "error", "in range", "better trivial predictors"});
  for (const LabCase& one : cases)
    table.add({to_text(one.compute), one.model, one.strategy_text, std::to_string(one.world_size),
               std::to_string(one.batch), one.cluster, to_text(one.distance),
               to_text(Seconds(one.measured_step_time_s)), std::to_string(one.launches.size()),
               to_text(Seconds(one.measured_low_s)), to_text(Seconds(one.measured_high_s)),
               to_text(Seconds(one.predicted_step_time_s)), signed_percent_text(one.relative_error()),
               one.inside_launch_range() ? "yes" : "no", trivial_text(one)});
  return table.text();
}

std::string perturbations_text(const std::vector<LabPerturbation>& perturbations) {
  Table table({"perturbation", "measured change", "from", "to", "predicted change", "off by", "within"});
  for (const LabPerturbation& one : perturbations)
    table.add({one.name, signed_percent_text(one.measured_change),
               signed_percent_text(one.measured_change_low), signed_percent_text(one.measured_change_high),
               signed_percent_text(one.predicted_change), signed_percent_text(one.error()),
               one.within() ? "yes" : "no"});
  return table.text();
}

std::string order_text(const StrategyOrder& order) {
  std::string text = std::to_string(order.pairs) + (order.pairs == 1 ? " pair differs" : " pairs differ") +
                     " by more than their launches, " + std::to_string(order.wrong.size()) +
                     " predicted in the wrong order\n";
  for (const std::string& wrong : order.wrong) text += "  " + wrong + "\n";
  return text;
}

std::string machine_text(const LabMachine& machine) {
  if (machine.copy_s.empty()) return "";
  std::string text = "\nThe machine: to copy 1 MiB took " + to_text(Seconds(machine.calibrated_copy_s)) +
                     " after the calibration and " + to_text(Seconds(quantile(machine.copy_s, 0.0))) +
                     " to " + to_text(Seconds(quantile(machine.copy_s, 1.0))) + " while the cases ran\n";
  if (machine.drift() > kSteadyMachine)
    text += "  Its speed moved by " + percent_text(machine.drift()) +
            ": errors are the machine's, too. Best is one that nobody else uses.\n";
  return text;
}

}  // namespace

std::string to_text(const LabReport& report) {
  std::string text =
      "Absolute error of the step time; calibrated with " + std::to_string(report.calibration.world_size) +
      " hosts at " + link_rate_text(report.calibration.link_rate_bytes_per_s) + " only:\n\n" +
      groups_text(report.cases) + "\nEvery case, the worst first:\n\n" + cases_text(report.cases);
  if (!report.perturbations.empty())
    text += "\nWhat a change does to the step:\n\n" + perturbations_text(report.perturbations);
  text += "\nOrder of strategies: " + order_text(order_of_strategies(report.cases)) +
          machine_text(report.machine) + "\nGoals:\n";
  for (const LabGoal& goal : goals(report))
    text += (goal.met ? "  met     " : "  MISSED  ") + goal.text + "\n";
  return text;
}

}  // namespace stepcast

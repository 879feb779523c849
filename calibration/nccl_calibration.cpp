#include "calibration/nccl_calibration.hpp"

#include <algorithm>
#include <cmath>

#include "calibration/fitter.hpp"
#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr double kKnownTo = 0.2;   // standard deviation of a law's logarithm
constexpr double kMissedBy = 0.1;  // of a sample's
constexpr double kDetermined = 0.9;

/// Samples with the groups that they ran in.
class Question {
 public:
  Question(const std::string& device, const std::vector<NcclSample>& samples) : samples_(samples) {
    for (const NcclSample& sample : samples) graphs_.push_back(forecasts_.graph(device, sample));
  }

  /// ln(forecast / measured).
  [[nodiscard]] std::vector<double> logarithms(const NcclParameters& laws) {
    std::vector<double> result;
    result.reserve(samples_.size());
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      graphs_[i].laws = &laws;
      result.push_back(std::log(nccl_time(graphs_[i], samples_[i]) / samples_[i].time));
    }
    return result;
  }

 private:
  const std::vector<NcclSample>& samples_;
  CollectiveForecasts forecasts_;
  std::vector<NcclGraph> graphs_;
};

NcclParameters laws_of(const NcclCosts& costs) {
  NcclParameters laws = nccl_parameters(device_model(costs.device).compute_capability);
  laws.set(costs.parameters);
  return laws;
}

/// Soft L1: as a square near 0, linear from one standard deviation on.
double softened(double deviations) {
  return std::copysign(std::sqrt(2.0 * (std::hypot(1.0, deviations) - 1.0)), deviations);
}

}  // namespace

NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples) {
  if (samples.empty()) throw InputError("no measured collectives of NCCL to fit");
  const NcclParameters defaults = nccl_parameters(device_model(device).compute_capability);
  std::vector<std::string> names;
  for (const auto& [name, value] : defaults.values())
    if (value > 0.0 && name != "host_burst") names.push_back(name);
  const auto laws_at = [&](const std::vector<double>& deviations) {
    std::map<std::string, double> values = defaults.values();
    for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] *= std::exp(kKnownTo * deviations[i]);
    NcclParameters laws;
    laws.set(values);
    return laws;
  };
  Question question(device, samples);
  const Fit found = fit(
      [&](const std::vector<double>& deviations) {
        const NcclParameters laws = laws_at(deviations);
        std::vector<double> residuals = question.logarithms(laws);
        for (double& residual : residuals) residual = softened(residual / kMissedBy);
        return residuals;
      },
      {std::vector<double>(names.size(), 0.0)});
  const NcclParameters laws = laws_at(found.deviations);
  NcclCosts costs;
  costs.device = device_model(device).name;
  costs.parameters = laws.values();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (found.left[i] <= kDetermined) costs.determined.push_back(names[i]);
  std::vector<double> errors;
  for (const double one : question.logarithms(laws)) errors.push_back(std::abs(std::expm1(one)));
  const auto worst = std::max_element(errors.begin(), errors.end());
  costs.fit = {median(errors), *worst,
               samples[static_cast<std::size_t>(worst - errors.begin())].message.count(),
               static_cast<int>(samples.size())};
  const auto [fewest, most] = std::minmax_element(
      samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.gpus < b.gpus; });
  const auto [smallest, largest] = std::minmax_element(
      samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.message < b.message; });
  costs.least_gpus = fewest->gpus;
  costs.most_gpus = most->gpus;
  costs.smallest_bytes = smallest->message.count();
  costs.largest_bytes = largest->message.count();
  return costs;
}

Calibration nccl_calibration(const std::string& device, const std::vector<NcclSample>& samples) {
  Calibration calibration;
  calibration.job.backend = "nccl";
  calibration.nccl = fit_nccl(device, samples);
  calibration.job.world_size = calibration.job.ranks_on_machine = calibration.nccl.most_gpus;
  return calibration;
}

double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples) {
  const NcclParameters laws = laws_of(costs);
  double sum = 0.0;
  for (const double one : Question(costs.device, samples).logarithms(laws)) sum += std::abs(one);
  return std::expm1(sum / static_cast<double>(samples.size()));
}

std::string fit_text(const NcclCosts& costs, const std::vector<NcclSample>& samples) {
  const NcclParameters defaults = nccl_parameters(device_model(costs.device).compute_capability);
  Table table({"law", "default", "fitted", "unit", "told by the samples"});
  const std::map<std::string, double> before = defaults.values();
  for (std::size_t i = 0; i < NcclParameters::names().size(); ++i) {
    const std::string& name = NcclParameters::names()[i];
    const bool told =
        std::find(costs.determined.begin(), costs.determined.end(), name) != costs.determined.end();
    table.add({name, short_number(before.at(name)), short_number(costs.parameters.at(name)),
               NcclParameters::unit(static_cast<NcclLaw>(i)), told ? "yes" : "no"});
  }
  NcclCosts unfitted = costs;
  unfitted.parameters = before;
  return table.text() + "\n" + counted(samples.size(), "sample") + " of " + costs.device + " on " +
         std::to_string(costs.least_gpus) + " to " + std::to_string(costs.most_gpus) + " GPUs, " +
         to_text(Bytes(costs.smallest_bytes)) + " to " + to_text(Bytes(costs.largest_bytes)) +
         ": missed by " + percent_text(nccl_error(costs, samples)) + " (geometric mean; by the defaults " +
         percent_text(nccl_error(unfitted, samples)) + "), at worst " +
         percent_text(costs.fit.worst_absolute_relative_residual) + " at " +
         to_text(Bytes(costs.fit.worst_at_bytes)) + "\n";
}

}  // namespace stepcast

#include "calibration/nccl_calibration.hpp"

#include <algorithm>
#include <cmath>

#include "calibration/fitter.hpp"
#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr double kKnownTo = 0.2;   // standard deviation of a parameter's logarithm
constexpr double kMissedBy = 0.1;  // of a sample's logarithm
constexpr double kDetermined = 0.9;
constexpr double kPoor = 0.2;  // mean error; of the shipped rows 0.04 to 0.15
constexpr int kMostGpus = 8;

/// Shipped cluster of eight such GPUs, and what connects them. Bridges connect pairs, beside PCIe.
std::pair<std::string, const char*> host_of(const DeviceModel& device) {
  const std::string settings = ":gpus=8,device=" + device.name;
  if (device.links.nvlinks > 0 && !device.links.bridged) return {"h100x4-nvlink" + settings, "NVSwitches"};
  return {"l40s-pcie" + settings, "PCIe switches in pairs"};
}

/// ln(forecast / measured) of each sample, as a function of the parameters.
auto logarithms_of(const std::string& device, const std::vector<NcclSample>& samples) {
  CollectiveForecasts forecasts;
  auto graphs = transformed(samples, [&](const NcclSample& one) { return forecasts.graph(device, one); });
  return [&samples, forecasts = std::move(forecasts),
          graphs = std::move(graphs)](const NcclParameters& parameters) mutable {
    std::vector<double> result;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      graphs[i].gpu.parameters = &parameters;
      result.push_back(std::log(nccl_time(graphs[i], samples[i]) / samples[i].time));
    }
    return result;
  };
}

/// Soft L1: as a square near 0, linear from one standard deviation on.
double softened(double deviations) {
  return std::copysign(std::sqrt(2.0 * (std::hypot(1.0, deviations) - 1.0)), deviations);
}

}  // namespace

Seconds nccl_time(const NcclGraph& graph, const NcclSample& sample) {
  const NcclLimits limits{.nvls = sample.dtype != "int8" && sample.dtype != "uint8"};
  return nccl_cost(graph, sample.kind, sample.message, limits).time(sample.message);
}

const NcclGraph& CollectiveForecasts::graph(const std::string& device, const NcclSample& sample) {
  if (sample.hosts > 1 || sample.gpus > kMostGpus)
    throw InputError("{}: found {} GPUs on {} hosts, expected at most 8 on one", sample.where, sample.gpus,
                     sample.hosts);
  std::unique_ptr<World>& world = worlds_[device];
  if (!world) world = std::make_unique<World>(load_cluster(host_of(device_model(device)).first));
  std::vector<int> places = world->cluster.places();
  places.resize(sample.gpus);
  return world->graphs.of(places);
}

std::string assumed_connection(const std::string& device) {
  const auto [cluster, connection] = host_of(device_model(device));
  return fmt::format("GPUs of a host are connected by {}, as in cluster '{}'", connection, cluster);
}

Seconds CollectiveForecasts::of(const std::string& device, const NcclSample& sample) {
  return nccl_time(graph(device, sample), sample);
}

std::string device_of(const NcclSample& sample, const std::string& otherwise) {
  if (!otherwise.empty()) return device_model(otherwise).name;
  if (const DeviceModel* found = reported_device(sample.device)) return found->name;
  throw InputError("{}: device '{}' is none of {}; --device states what it is like", sample.where,
                   sample.device, joined(gpu_names()));
}

NcclCosts fit_nccl(const std::string& device, const std::vector<NcclSample>& samples) {
  if (samples.empty()) throw InputError("no measured collectives of NCCL to fit");
  const NcclParameters defaults = nccl_parameters(device_model(device).collectives_as());
  std::vector<std::string> names;
  for (const auto& [name, value] : defaults.values())
    if (value > 0.0 && name != "host_burst") names.push_back(name);
  const auto parameters_at = [&](const std::vector<double>& deviations) {
    std::map<std::string, double> values = defaults.values();
    for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] *= std::exp(kKnownTo * deviations[i]);
    NcclParameters parameters;
    parameters.set(values);
    return parameters;
  };
  auto logarithms = logarithms_of(device, samples);
  const Fit found = fit(
      [&](const std::vector<double>& deviations) {
        const NcclParameters parameters = parameters_at(deviations);
        std::vector<double> residuals = logarithms(parameters);
        for (double& residual : residuals) residual = softened(residual / kMissedBy);
        return residuals;
      },
      {std::vector<double>(names.size(), 0.0)});
  const NcclParameters parameters = parameters_at(found.deviations);
  NcclCosts costs;
  costs.device = device_model(device).name;
  costs.parameters = parameters.values();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (found.left[i] <= kDetermined) costs.determined.push_back(names[i]);
  const auto errors =
      transformed(logarithms(parameters), [](double logarithm) { return std::expm1(std::abs(logarithm)); });
  const auto worst = std::ranges::max_element(errors);
  costs.fit = {median(errors), *worst, samples[worst - errors.begin()].message.count(),
               static_cast<int>(samples.size())};
  const auto [fewest, most] = std::ranges::minmax(samples, {}, &NcclSample::gpus);
  const auto [smallest, largest] = std::ranges::minmax(samples, {}, &NcclSample::message);
  costs.least_gpus = fewest.gpus;
  costs.most_gpus = most.gpus;
  costs.smallest_bytes = smallest.message.count();
  costs.largest_bytes = largest.message.count();
  return costs;
}

Calibration nccl_calibration(const std::string& device, const std::vector<NcclSample>& samples) {
  Calibration calibration;
  calibration.job.backend = "nccl";
  calibration.nccl = fit_nccl(device, samples);
  calibration.job.world_size = calibration.job.ranks_on_machine = calibration.nccl.most_gpus;
  if (const double error = nccl_error(calibration.nccl, samples); error > kPoor)
    calibration.warnings.push_back(fmt::format(
        "the fitted model misses its own samples by {} (geometric mean); check the device, the number of "
        "GPUs and hosts, and the settings of NCCL",
        percent_text(error)));
  return calibration;
}

double nccl_error(const NcclCosts& costs, const std::vector<NcclSample>& samples) {
  NcclParameters parameters = nccl_parameters(device_model(costs.device).collectives_as());
  parameters.set(costs.parameters);
  const double sum = sum_of(logarithms_of(costs.device, samples)(parameters),
                            [](double logarithm) { return std::abs(logarithm); });
  return std::expm1(sum / static_cast<double>(samples.size()));
}

std::string fit_text(const NcclCosts& costs, const std::vector<NcclSample>& samples) {
  const NcclParameters defaults = nccl_parameters(device_model(costs.device).collectives_as());
  Table table({"parameter", "default", "fitted", "unit", "determined by the samples"});
  const std::map<std::string, double> before = defaults.values();
  for (std::size_t i = 0; i < NcclParameters::names().size(); ++i) {
    const std::string& name = NcclParameters::names()[i];
    const bool determined = std::ranges::find(costs.determined, name) != costs.determined.end();
    table.add({name, short_number(before.at(name)), short_number(costs.parameters.at(name)),
               NcclParameters::unit(i), determined ? "yes" : "no"});
  }
  NcclCosts unfitted = costs;
  unfitted.parameters = before;
  return fmt::format(
      "{}\n{} of {} on {} to {} GPUs, {} to {}: missed by {} (geometric mean; by the defaults {}), at worst "
      "{} at {}\n",
      table.text(), counted(samples.size(), "sample"), costs.device, costs.least_gpus, costs.most_gpus,
      to_text(Bytes(costs.smallest_bytes)), to_text(Bytes(costs.largest_bytes)),
      percent_text(nccl_error(costs, samples)), percent_text(nccl_error(unfitted, samples)),
      percent_text(costs.fit.worst_absolute_relative_residual), to_text(Bytes(costs.fit.worst_at_bytes)));
}

}  // namespace stepcast

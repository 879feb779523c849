#include "sim/evidence/measured_collectives.hpp"

#include <algorithm>
#include <cmath>

#include "calibration/fit.hpp"
#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Sets alpha + S / beta with the least sum of squared relative errors; neither is below 0.
void fit_line(const std::vector<MeasuredCollective*>& rows) {
  const std::vector<double> line =
      fit_non_negative(transformed(rows,
                                   [](const MeasuredCollective* row) {
                                     const double time = row->sample.time.count();
                                     return std::vector{1.0 / time, row->sample.message.count() / time};
                                   }),
                       std::vector<double>(rows.size(), 1.0));
  for (MeasuredCollective* row : rows) row->fitted = Seconds(line[0] + line[1] * row->sample.message.count());
}

/// The launch is that of the device's CPU thread, 20 us: with NCCL's own, the baseline would be farther off.
Seconds sheet_time(const DeviceModel& device, const NcclSample& sample) {
  // GB/s of 16 lanes by generation, before protocol.
  constexpr std::array<double, 7> kPcie{0.0, 4.0, 8.0, 15.75, 31.5, 63.0, 121.0};
  const double rate = device.links.nvlinks > 0
                          ? device.links.nvlinks * device.links.nvlink_raw.count()
                          : 1e9 * kPcie.at(std::clamp(device.links.pcie_generation, 1, 6));
  const double part =
      (sample.kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * (sample.gpus - 1.0) / sample.gpus;
  return device.launch.kernel + Seconds(part * sample.message.count() / rate);
}

}  // namespace

std::vector<MeasuredCollective> measured_collectives(const std::string& path) {
  std::vector<MeasuredCollective> rows;
  CollectiveForecasts forecasts;
  for (NcclSample& sample : read_nccl_samples({path}).samples) {
    MeasuredCollective row;
    row.device = device_of(sample);
    row.forecast = forecasts.of(row.device, sample);
    row.sheet = sheet_time(device_model(row.device), sample);
    row.sample = std::move(sample);
    rows.push_back(std::move(row));
  }
  std::map<std::tuple<std::string, CollectiveKind, int>, std::vector<MeasuredCollective*>> groups;
  for (MeasuredCollective& row : rows) groups[{row.device, row.sample.kind, row.sample.gpus}].push_back(&row);
  for (const auto& [group, members] : groups) fit_line(members);
  return rows;
}

std::vector<CollectiveErrors> collective_errors(const std::vector<MeasuredCollective>& rows) {
  const auto group_of = [](const MeasuredCollective& row) {
    return fmt::format("{} {} {}", row.device, to_text(row.sample.kind), row.sample.gpus);
  };
  std::vector<CollectiveErrors> result;
  for (const auto& [group, members] : grouped(rows, group_of)) {
    const auto errors_of = [&all = members](Seconds MeasuredCollective::*forecast) {
      return summary_of(transformed(all, [&](const MeasuredCollective* row) {
        return ForecastError{row->*forecast / row->sample.time - 1.0};
      }));
    };
    result.push_back({group, errors_of(&MeasuredCollective::forecast), errors_of(&MeasuredCollective::fitted),
                      errors_of(&MeasuredCollective::sheet)});
  }
  std::ranges::sort(result, {}, &CollectiveErrors::group);
  return result;
}

SetAccuracy accuracy_of(const std::string& set, const std::vector<MeasuredCollective>& rows) {
  SetAccuracy accuracy{.set = set,
                       .title = "NCCL collectives on 2 to 8 H100, A100, L40S and B200 of one node",
                       .rows = rows.size()};
  accuracy.add(summary_of(transformed(rows, [](const MeasuredCollective& row) {
    return ForecastError{row.forecast / row.sample.time - 1.0};
  })));
  return accuracy;
}

std::string measured_collectives_text(const std::vector<MeasuredCollective>& rows) {
  constexpr double kGoal = 0.1;
  Table table(
      {"device, collective, GPUs", "rows", "error", "worst", "alpha-beta, fitted here", "data sheet"});
  std::size_t within = 0;
  const std::vector<CollectiveErrors> groups = collective_errors(rows);
  for (const CollectiveErrors& group : groups) {
    table.add({group.group, std::to_string(group.forecast.count),
               percent_text(group.forecast.geometric_mean()),
               percent_text(std::expm1(group.forecast.log.worst)),
               percent_text(group.fitted.geometric_mean()), percent_text(group.sheet.geometric_mean())});
    within += group.forecast.geometric_mean() <= kGoal ? 1 : 0;
  }
  const double log_mean = accuracy_of("", rows).percent["log_mean"] / 100.0;
  return table.text() +
         fmt::format("{}: geometric mean of max(f/m, m/f) - 1 {}; {} of {} groups within 10 %\n",
                     counted(rows.size(), "row"), percent_text(std::expm1(log_mean)), within, groups.size());
}

}  // namespace stepcast

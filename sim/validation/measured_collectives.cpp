#include "sim/validation/measured_collectives.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/table.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// alpha + S / beta with the least sum of squared relative errors; neither below 0.
struct RelativeLine {
  double alpha = 0.0, slope = 0.0;
  [[nodiscard]] double at(double bytes) const { return alpha + slope * bytes; }
};

RelativeLine fitted_line(const std::vector<const MeasuredCollective*>& rows) {
  double w = 0.0, wx = 0.0, wy = 0.0, wxx = 0.0, wxy = 0.0;
  for (const MeasuredCollective* row : rows) {
    const double x = row->sample.message.count(), y = row->sample.time.count(), weight = 1.0 / (y * y);
    w += weight;
    wx += weight * x;
    wy += weight * y;
    wxx += weight * x * x;
    wxy += weight * x * y;
  }
  const double determinant = w * wxx - wx * wx;
  if (!(determinant > 0.0)) return {wy / w, 0.0};
  const RelativeLine line{(wy * wxx - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant};
  if (line.alpha < 0.0) return {0.0, wxy / wxx};
  if (line.slope < 0.0) return {wy / w, 0.0};
  return line;
}

Seconds sheet_time(const DeviceModel& device, const NcclSample& sample) {
  // GB/s of 16 lanes by generation, before protocol.
  constexpr std::array<double, 7> kPcie{0.0, 4.0, 8.0, 15.75, 31.5, 63.0, 121.0};
  const double rate =
      device.nvlinks > 0 ? device.nvlinks * device.nvlink_raw.count()
                         : 1e9 * kPcie.at(static_cast<std::size_t>(std::clamp(device.pcie_generation, 1, 6)));
  const double part =
      (sample.kind == CollectiveKind::kAllReduce ? 2.0 : 1.0) * (sample.gpus - 1.0) / sample.gpus;
  return device.kernel_launch + Seconds(part * sample.message.count() / rate);
}

using CollectiveGroup = std::tuple<std::string, CollectiveKind, int>;

template <class Row>
std::map<CollectiveGroup, std::vector<Row*>> grouped_collectives(std::vector<MeasuredCollective>& rows) {
  std::map<CollectiveGroup, std::vector<Row*>> groups;
  for (MeasuredCollective& row : rows) groups[{row.device, row.sample.kind, row.sample.gpus}].push_back(&row);
  return groups;
}

double away(Seconds forecast, Seconds measured) { return std::abs(std::log(forecast / measured)); }

}  // namespace

std::vector<MeasuredCollective> measured_collectives(const std::string& path) {
  std::vector<MeasuredCollective> rows;
  CollectiveForecasts forecasts;
  for (NcclSample& sample : read_nccl_samples(path)) {
    MeasuredCollective row;
    row.device = device_of(sample);
    row.forecast = forecasts.of(row.device, sample);
    row.sheet = sheet_time(device_model(row.device), sample);
    row.sample = std::move(sample);
    rows.push_back(std::move(row));
  }
  for (auto& [group, members] : grouped_collectives<MeasuredCollective>(rows)) {
    const RelativeLine line = fitted_line({members.begin(), members.end()});
    for (MeasuredCollective* row : members) row->fitted = Seconds(line.at(row->sample.message.count()));
  }
  return rows;
}

std::vector<CollectiveError> collective_errors(const std::vector<MeasuredCollective>& rows) {
  std::map<CollectiveGroup, CollectiveError> errors;
  for (const MeasuredCollective& row : rows) {
    CollectiveError& error = errors[{row.device, row.sample.kind, row.sample.gpus}];
    error.device = row.device;
    error.kind = row.sample.kind;
    error.gpus = row.sample.gpus;
    ++error.rows;
    error.forecast += away(row.forecast, row.sample.time);
    error.worst = std::max(error.worst, std::expm1(away(row.forecast, row.sample.time)));
    error.fitted += away(row.fitted, row.sample.time);
    error.sheet += away(row.sheet, row.sample.time);
  }
  std::vector<CollectiveError> result;
  for (auto& [group, error] : errors) {
    const auto count = static_cast<double>(error.rows);
    for (double* sum : {&error.forecast, &error.fitted, &error.sheet}) *sum = std::expm1(*sum / count);
    result.push_back(error);
  }
  return result;
}

std::string measured_collectives_text(const std::vector<MeasuredCollective>& rows) {
  Table table(
      {"device", "collective", "GPUs", "rows", "error", "worst", "alpha-beta, fitted here", "data sheet"});
  std::size_t within = 0;
  const std::vector<CollectiveError> errors = collective_errors(rows);
  for (const CollectiveError& error : errors) {
    table.add({error.device, to_text(error.kind), std::to_string(error.gpus), std::to_string(error.rows),
               percent_text(error.forecast), percent_text(error.worst), percent_text(error.fitted),
               percent_text(error.sheet)});
    constexpr double kGoal = 0.1;
    within += error.forecast <= kGoal ? 1 : 0;
  }
  double sum = 0.0;
  for (const MeasuredCollective& row : rows) sum += away(row.forecast, row.sample.time);
  return table.text() + counted(rows.size(), "row") + ": geometric mean of max(f/m, m/f) - 1 " +
         percent_text(rows.empty() ? 0.0 : std::expm1(sum / static_cast<double>(rows.size()))) + "; " +
         std::to_string(within) + " of " + std::to_string(errors.size()) + " within 10 %\n";
}

}  // namespace stepcast

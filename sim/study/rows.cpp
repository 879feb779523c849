#include "sim/study/rows.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_set>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/case.hpp"
#include "sim/evidence/quantities.hpp"

namespace stepcast {
namespace {

template <double Breakdown::*part>
std::optional<double> part_of(const Result& result, const PointFacts& /*facts*/) {
  return mean_part(result, part);
}

std::optional<double> efficiency(const Result& result, const PointFacts& /*facts*/ = {}) {
  const auto ideal = result.forecast.baseline_step_time_s.find("ideal_scaling");
  if (ideal == result.forecast.baseline_step_time_s.end()) return std::nullopt;
  return ideal->second / result.median_step_time_s();
}

std::optional<double> times(std::optional<double> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

std::optional<double> peak_memory(const Result& result, const PointFacts& /*facts*/) {
  const double peak = highest_peak_bytes(result);
  return peak > 0.0 ? std::optional(peak) : std::nullopt;
}

std::optional<double> samples_per_s(const Result& result, const PointFacts& /*facts*/) {
  return result.configuration.data_parallel > 0 ? std::optional(result.throughput_samples_per_s())
                                                : std::nullopt;
}

std::optional<double> known(const ColumnValues& values, std::string_view name) {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

/// Costs of work that takes `seconds`.
enum CostKind : std::uint8_t { kTime, kDeviceHours, kPrice, kEnergy };
template <CostKind kind>
std::optional<double> cost_of(std::optional<double> seconds, const ColumnValues& values,
                              const StudyCost& cost) {
  constexpr double kSecondsPerHour = 3600.0, kJoulesPerKilowattHour = 3.6e6;
  if (!seconds || kind == kTime) return seconds;
  if (kind == kEnergy) return times(known(values, "power_w"), *seconds / kJoulesPerKilowattHour);
  const auto hours = times(known(values, "ranks"), *seconds / kSecondsPerHour);
  if (kind == kDeviceHours || !hours) return hours;
  return times(cost.per_device_hour, *hours);
}

std::optional<double> seconds_for(std::optional<double> amount, std::optional<double> per_s) {
  return amount && per_s && *per_s > 0.0 ? std::optional(*amount / *per_s) : std::nullopt;
}

template <CostKind kind>
std::optional<double> per_epoch(const ColumnValues& values, const StudyCost& cost) {
  return cost_of<kind>(seconds_for(cost.epoch_samples, known(values, "throughput_samples_per_s")), values,
                       cost);
}
template <CostKind kind>
std::optional<double> per_million_tokens(const ColumnValues& values, const StudyCost& cost) {
  return cost_of<kind>(seconds_for(1e6, known(values, "tokens_per_s")), values, cost);
}

template <auto TrainingNumbers::*number>
std::optional<double> of_training(const Result& /*result*/, const PointFacts& facts) {
  return facts.training ? std::optional<double>((*facts.training).*number) : std::nullopt;
}

const std::vector<StudyColumn> kColumns{
    {"step_time_s", "step time (s)", "median over the steps of the slowest rank's step time, in seconds",
     Better::kLess, [](const Result& r, const PointFacts&) { return std::optional(r.median_step_time_s()); }},
    {"throughput_samples_per_s", "samples per second", "samples of all ranks' batches over the step time",
     Better::kMore, samples_per_s},
    {"speed_up", "speed-up over one rank", "throughput over that of one rank with the same batch",
     Better::kMore,
     [](const Result& r, const PointFacts&) { return times(efficiency(r), r.configuration.world_size); }},
    {"efficiency", "efficiency", "speed-up over the number of ranks", Better::kMore, efficiency},
    {"compute_s", "compute (s)", "forward, loss and backward, mean over the ranks", Better::kNeither,
     part_of<&Breakdown::compute_s>},
    {"exposed_communication_s", "exposed communication (s)",
     "communication during which a rank does nothing else, mean over the ranks", Better::kLess,
     part_of<&Breakdown::exposed_communication_s>},
    {"overlapped_communication_s", "overlapped communication (s)",
     "communication that overlaps with other work, mean over the ranks", Better::kNeither,
     part_of<&Breakdown::overlapped_communication_s>},
    {"input_and_host_s", "input and host (s)",
     "loading samples, and time of the launch thread in no operation, mean over the ranks", Better::kLess,
     part_of<&Breakdown::input_and_host_s>},
    {"optimizer_and_copies_s", "optimizer and copies (s)",
     "optimizer, zeroing and copies, mean over the ranks", Better::kLess,
     part_of<&Breakdown::optimizer_and_copies_s>},
    {"idle_s", "idle (s)", "time without any operation, mean over the ranks", Better::kLess,
     part_of<&Breakdown::idle_s>},
    {"bubble_fraction", "bubble, fraction of the step",
     "fraction of the step in which ranks are idle or wait for messages, mean over the ranks", Better::kLess,
     [](const Result& r, const PointFacts&) { return std::optional(r.bubble_fraction()); }},
    {"bytes_sent_per_rank", "bytes sent per rank", "bytes that the rank that sends most sends per step",
     Better::kLess, [](const Result& r, const PointFacts&) { return std::optional(r.bytes_sent_per_rank); }},
    {"peak_memory_bytes", "peak memory (bytes)", "maximum of the ranks' peak memory", Better::kLess,
     peak_memory},
    {"fits", "fits", "1 if peak_memory_bytes is within the memory of --device, else 0", Better::kMore,
     [](const Result& r, const PointFacts& facts) {
       const std::optional<double> peak = peak_memory(r, facts);
       return peak && facts.memory > Bytes(0) ? std::optional(*peak <= facts.memory.count() ? 1.0 : 0.0)
                                              : std::nullopt;
     }},
    {"ranks", "ranks", "number of ranks, each on its own device", Better::kNeither,
     [](const Result& r, const PointFacts&) { return std::optional(1.0 * r.configuration.world_size); }},
    {"compute_communication_ratio", "compute over communication",
     "compute_s over exposed_communication_s + overlapped_communication_s; empty without communication",
     Better::kMore,
     [](const Result& r, const PointFacts& facts) {
       const auto exposed = part_of<&Breakdown::exposed_communication_s>(r, facts);
       const auto hidden = part_of<&Breakdown::overlapped_communication_s>(r, facts);
       if (!exposed || *exposed + *hidden <= 0.0) return std::optional<double>();
       return times(part_of<&Breakdown::compute_s>(r, facts), 1.0 / (*exposed + *hidden));
     }},
    {"tokens_per_s", "tokens per second", "samples per second times the model's sequence length",
     Better::kMore,
     [](const Result& r, const PointFacts& facts) {
       return facts.tokens_per_sample > 0.0 ? times(samples_per_s(r, facts), facts.tokens_per_sample)
                                            : std::nullopt;
     }},
    {"power_w", "power (W)",
     "thermal design power of all ranks' devices, in watts: an upper bound of their draw; without hosts, "
     "network and cooling",
     Better::kLess,
     [](const Result& r, const PointFacts& facts) {
       return facts.power > Watts(0) ? std::optional(r.configuration.world_size * facts.power.count())
                                     : std::nullopt;
     }},
    {"answer_s", "time to answer (s)",
     "studies with 'clock: yes': time of the forecast, without the start of the program", Better::kLess,
     [](const Result&, const PointFacts& facts) {
       return facts.answered > Seconds(0) ? std::optional(facts.answered.count()) : std::nullopt;
     }},
    {"answer_per_rank_s", "time to answer per rank (s)", "answer_s over ranks", Better::kLess, nullptr,
     [](const ColumnValues& values, const StudyCost&) {
       const auto ranks = known(values, "ranks");
       return ranks ? times(known(values, "answer_s"), 1.0 / *ranks) : std::nullopt;
     }},
    {"epoch_time_s", "time per epoch (s)", "cost.epoch_samples (or --epoch-samples) over samples per second",
     Better::kLess, nullptr, per_epoch<kTime>},
    {"epoch_device_hours", "device-hours per epoch", "ranks times epoch_time_s / 3600", Better::kLess,
     nullptr, per_epoch<kDeviceHours>},
    {"epoch_cost", "cost per epoch", "epoch_device_hours times cost.per_device_hour, in its currency",
     Better::kLess, nullptr, per_epoch<kPrice>},
    {"epoch_energy_kwh", "energy per epoch (kWh)",
     "power_w times epoch_time_s: an upper bound of the devices", Better::kLess, nullptr, per_epoch<kEnergy>},
    {"million_tokens_time_s", "time per million tokens (s)", "10^6 over tokens_per_s", Better::kLess, nullptr,
     per_million_tokens<kTime>},
    {"million_tokens_device_hours", "device-hours per million tokens",
     "ranks times million_tokens_time_s / 3600", Better::kLess, nullptr, per_million_tokens<kDeviceHours>},
    {"million_tokens_cost", "cost per million tokens",
     "million_tokens_device_hours times cost.per_device_hour, in its currency", Better::kLess, nullptr,
     per_million_tokens<kPrice>},
    {"million_tokens_energy_kwh", "energy per million tokens (kWh)",
     "power_w times million_tokens_time_s: an upper bound of the devices", Better::kLess, nullptr,
     per_million_tokens<kEnergy>},
    {"train_days", "days of the training",
     "studies with options of 'train': median of the simulated trainings", Better::kLess,
     of_training<&TrainingNumbers::days>},
    {"effective_training_time", "effective training time", "useful time over all time", Better::kMore,
     of_training<&TrainingNumbers::effective>},
    {"goodput_tokens_per_s", "goodput (tokens per second)", "tokens_per_s times effective_training_time",
     Better::kMore, nullptr,
     [](const ColumnValues& values, const StudyCost&) {
       const auto effective = known(values, "effective_training_time");
       return effective ? times(known(values, "tokens_per_s"), *effective) : std::nullopt;
     }},
    {"train_failures", "failures", "of a training, mean", Better::kLess,
     of_training<&TrainingNumbers::failures>},
    {"checkpoint_interval_s", "checkpoint interval (s)", "useful time between checkpoints", Better::kNeither,
     of_training<&TrainingNumbers::interval_s>},
    {"train_device_hours", "device-hours of the training", "with spares, median", Better::kLess,
     of_training<&TrainingNumbers::device_hours>},
    {"train_cost", "cost of the training", "train_device_hours times cost.per_device_hour, in its currency",
     Better::kLess, nullptr,
     [](const ColumnValues& values, const StudyCost& cost) {
       const auto hours = known(values, "train_device_hours");
       return hours ? times(cost.per_device_hour, *hours) : std::nullopt;
     }},
    {"train_energy_kwh", "energy of the training (kWh)",
     "power_w times train_days: an upper bound of the devices", Better::kLess, nullptr,
     [](const ColumnValues& values, const StudyCost& cost) {
       return cost_of<kEnergy>(times(known(values, "train_days"), 86400.0), values, cost);
     }},
    {"measured_s", "measured step time (s)", "studies that run: median over the launches", Better::kLess},
    {"measured_low_s", "fastest launch (s)", "step time of the fastest launch", Better::kLess},
    {"measured_high_s", "slowest launch (s)", "step time of the slowest launch", Better::kLess},
    {"relative_error", "error", "step_time_s over measured_s, less 1", Better::kNeither},
    {"absolute_error", "absolute error", "relative_error without its sign", Better::kLess},
    {"error_outside_launches", "error outside the launches",
     "absolute_error; 0 if step_time_s is between the fastest and the slowest launch", Better::kLess},
    {"measured_speed_up", "measured speed-up over one rank", "speed_up times step_time_s over measured_s",
     Better::kMore},
    {"reference_slowdown", "slowdown of reference steps",
     "time of a few steps of the model on one rank, measured before each launch, over the trace's: median "
     "over the launches",
     Better::kNeither},
    {"error_at_equal_speed", "error at equal machine speed",
     "relative_error against the runs' time at the machine speed of the trace", Better::kNeither},
    {"absolute_error_at_equal_speed", "absolute error at equal machine speed",
     "error_at_equal_speed without its sign", Better::kLess},
    {"ideal_scaling_error", "error of ideal scaling", "absolute error of the step of one rank alone",
     Better::kLess},
    {"alpha_beta_error", "error of compute plus alpha-beta",
     "absolute error of one rank's step plus all communication, without overlap", Better::kLess},
    {"overlap_error", "error of uncontended overlap",
     "absolute error of uncontended collectives that overlap with compute", Better::kLess},
    {"bubble_formula_error", "error of the bubble formula",
     "absolute error of a pipeline's compute times 1 + (p - 1) / m", Better::kLess},
};

/// `"a, ""b"""` if a text contains a separator, a quote or a line break.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

const std::vector<StudyColumn>& study_columns() { return kColumns; }

std::optional<double> StudyRow::value(std::string_view column) const { return known(values, column); }

const StudyColumn& study_column(const std::string& name) {
  const auto found = std::ranges::find(kColumns, name, &StudyColumn::name);
  if (found == kColumns.end()) throw InputError(unknown_name("column", name, study_column_names()));
  return *found;
}

std::string column_text(const std::string& column, double value) {
  if (column == "efficiency" || column == "bubble_fraction" || column == "effective_training_time")
    return percent_text(value);
  if (column == "fits") return value > 0.0 ? "yes" : "no";
  if (column.ends_with("_s") && !column.ends_with("per_s")) return to_text(Seconds(value));
  return column.ends_with("_bytes") ? to_text(Bytes(value)) : short_number(value);
}

std::vector<std::string> study_column_names() {
  std::vector<std::string> names;
  for (const StudyColumn& column : kColumns) names.push_back(column.name);
  return names;
}

StudyRow row_of(const StudyPoint& point, const Result& result, const PointFacts& facts) {
  StudyRow row{.key = point.key};
  for (const StudyColumn& column : kColumns)
    if (const auto value = column.value ? column.value(result, facts) : std::nullopt)
      row.values[column.name] = *value;
  return row;
}

void derive_columns(StudyRows& rows, const StudyCost& cost) {
  for (auto& [key, row] : rows)
    for (const StudyColumn& column : kColumns)
      if (const auto value = column.derived ? column.derived(row.values, cost) : std::nullopt)
        row.values[column.name] = *value;
}

void add_measured(StudyRow& row, const Case& one, const std::vector<double>& slowdowns) {
  const auto set = [&](const std::string& column, double value) {
    row.values[study_column(column).name] = value;
  };
  const double error = one.relative_error();
  set("measured_s", one.measured->value);
  set("measured_low_s", one.measured->low);
  set("measured_high_s", one.measured->high);
  set("relative_error", error);
  set("absolute_error", std::abs(error));
  set("error_outside_launches", one.inside_launch_range() ? 0.0 : std::abs(error));
  if (const auto speed_up = row.values.find("speed_up"); speed_up != row.values.end())
    set("measured_speed_up", speed_up->second * (1.0 + error));
  for (const char* predictor : {"ideal_scaling", "alpha_beta", "overlap", "bubble_formula"})
    if (const auto found = one.trivial.find(predictor); found != one.trivial.end())
      set(std::string(predictor) + "_error", std::abs(*one.error_of(found->second)));
  if (!slowdowns.empty()) set("reference_slowdown", median(slowdowns));
  const auto at_equal_speed = one.error_at_equal_speed();
  if (!at_equal_speed) return;
  set("error_at_equal_speed", *at_equal_speed);
  set("absolute_error_at_equal_speed", std::abs(*at_equal_speed));
}

std::string line_of(const StudyRow& row) {
  nlohmann::ordered_json json;
  json["point"] = row.key;
  if (!row.error.empty()) json["error"] = row.error;
  if (row.lost) json["lost"] = true;
  for (const auto& [name, value] : row.values) json[std::string(name)] = value;
  return json.dump() + "\n";
}

std::optional<StudyRow> row_of_line(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("point")) return std::nullopt;
  static const std::set<std::string, std::less<>> kNames = [] {
    const std::vector<std::string> names = study_column_names();
    return std::set<std::string, std::less<>>(names.begin(), names.end());
  }();
  StudyRow row;
  row.values.reserve(json.size());
  for (const auto& [name, value] : json.items()) {
    if (name == "point" && value.is_string())
      row.key = value.get<std::string>();
    else if (name == "error" && value.is_string())
      row.error = value.get<std::string>();
    else if (name == "lost" && value.is_boolean())
      row.lost = value.get<bool>();
    else if (const auto known = kNames.find(name); known != kNames.end() && value.is_number())
      row.values[*known] = value.get<double>();
    else
      return std::nullopt;
  }
  return row;
}

std::string csv_of(const Study& study, const StudyRows& rows) {
  constexpr std::size_t kSample = 1000;  // lines from whose length the length of all is estimated
  std::string text;
  for (const std::string& name : study.names) text += csv_cell(name) + ",";
  for (const StudyColumn& column : kColumns) text += column.name + ",";
  text += "error\n";
  std::size_t lines = 0;
  for (const StudyPoint& point : study.points) {
    if (++lines == kSample) text.reserve(text.size() / kSample * (study.points.size() + kSample));
    const auto found = rows.find(point.key);
    if (found == rows.end()) continue;
    for (const std::string& cell : name_cells(study, point, "")) text += csv_cell(cell) + ",";
    for (const StudyColumn& column : kColumns) {
      if (const auto value = found->second.value(column.name)) text += nlohmann::json(*value).dump();
      text += ",";
    }
    text += csv_cell(found->second.error) + "\n";
  }
  return text;
}

std::vector<const StudyPoint*> fastest_points(const Study& study, const StudyRows& rows, std::size_t count) {
  using Order = std::tuple<double, double, std::size_t>;
  std::map<Order, const StudyPoint*> fastest;
  std::unordered_set<std::string_view> keys;
  for (const StudyPoint& point : study.points) {
    const auto row = rows.find(point.key);
    if (row == rows.end() || !row->second.error.empty() || !keys.insert(point.key).second) continue;
    fastest.emplace(Order(-row->second.value("throughput_samples_per_s").value_or(0.0),
                          row->second.value("step_time_s").value_or(0.0), keys.size()),
                    &point);
    if (fastest.size() > count) fastest.erase(std::prev(fastest.end()));
  }
  std::vector<const StudyPoint*> points;
  for (const auto& [order, point] : fastest) points.push_back(point);
  return points;
}

std::vector<std::string> name_cells(const Study& study, const StudyPoint& point, const std::string& missing) {
  std::vector<std::string> cells;
  for (const std::string& name : study.names) cells.push_back(point.assigned.value_or(name, missing));
  return cells;
}

}  // namespace stepcast

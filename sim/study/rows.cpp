#include "sim/study/rows.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace stepcast {
namespace {

/// Of runs, not of what is predicted.
std::optional<double> nothing(const Result& /*result*/, Bytes /*capacity*/) { return std::nullopt; }

/// Mean over the ranks.
template <double Breakdown::*part>
std::optional<double> mean_part(const Result& result, Bytes /*capacity*/) {
  if (result.breakdown.empty()) return std::nullopt;
  const double sum = std::accumulate(result.breakdown.begin(), result.breakdown.end(), 0.0,
                                     [](double before, const Breakdown& one) { return before + one.*part; });
  return sum / static_cast<double>(result.breakdown.size());
}

std::optional<double> efficiency(const Result& result, Bytes /*capacity*/ = {}) {
  const auto ideal = result.trivial_step_time_s.find("ideal_scaling");
  if (ideal == result.trivial_step_time_s.end()) return std::nullopt;
  return ideal->second / result.median_step_time_s();
}

std::optional<double> times(std::optional<double> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

std::optional<double> peak_memory(const Result& result, Bytes /*capacity*/) {
  double most = 0.0;
  for (const MemoryUse& one : result.memory) most = std::max(most, one.peak_bytes);
  return most > 0.0 ? std::optional(most) : std::nullopt;
}

std::optional<double> samples_per_s(const Result& result, Bytes /*capacity*/) {
  return result.configuration.data_parallel > 0 ? std::optional(result.throughput_samples_per_s())
                                                : std::nullopt;
}

/// `"a, ""b"""` where a text has a separator, a quote or a line break.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

const std::vector<StudyColumn>& study_columns() {
  static const std::vector<StudyColumn> kColumns{
      {"step_time_s", "step time (s)", "median over the steps of the slowest rank's step time, in seconds",
       [](const Result& r, Bytes) { return std::optional(r.median_step_time_s()); }},
      {"throughput_samples_per_s", "samples per second", "samples of all ranks' batches over the step time",
       samples_per_s},
      {"speed_up", "speed-up over one rank", "throughput over that of one rank with the same batch",
       [](const Result& r, Bytes) { return times(efficiency(r), r.configuration.world_size); }},
      {"efficiency", "efficiency", "speed-up over the number of ranks", efficiency},
      {"compute_s", "compute (s)", "forward, loss and backward, mean over the ranks",
       mean_part<&Breakdown::compute_s>},
      {"exposed_communication_s", "exposed communication (s)",
       "communication during which a rank does nothing else, mean over the ranks",
       mean_part<&Breakdown::exposed_communication_s>},
      {"overlapped_communication_s", "overlapped communication (s)",
       "communication beside something else, mean over the ranks",
       mean_part<&Breakdown::overlapped_communication_s>},
      {"input_and_host_s", "input and host (s)",
       "loading samples and what no operation accounts for, mean over the ranks",
       mean_part<&Breakdown::input_and_host_s>},
      {"optimizer_and_copies_s", "optimizer and copies (s)",
       "optimizer, zeroing and copies, mean over the ranks", mean_part<&Breakdown::optimizer_and_copies_s>},
      {"idle_s", "idle (s)", "time without any operation, mean over the ranks",
       mean_part<&Breakdown::idle_s>},
      {"bubble_fraction", "bubble, part of the step",
       "part of the step in which ranks are idle or wait for messages, mean over the ranks",
       [](const Result& r, Bytes) { return std::optional(r.bubble_fraction()); }},
      {"bytes_sent_per_rank", "bytes sent per rank", "bytes that the busiest rank sends in a step",
       [](const Result& r, Bytes) { return std::optional(r.bytes_sent_per_rank); }},
      {"peak_memory_bytes", "peak memory (bytes)", "most bytes that any rank holds", peak_memory},
      {"fits", "fits", "1 where that is within the memory of --device, 0 where it is not",
       [](const Result& r, Bytes capacity) {
         const std::optional<double> peak = peak_memory(r, capacity);
         return peak && capacity > Bytes(0) ? std::optional(*peak <= capacity.count() ? 1.0 : 0.0)
                                            : std::nullopt;
       }},
      {"measured_s", "measured step time (s)", "of studies that run: median over the launches", nothing},
      {"measured_low_s", "fastest launch (s)", "the fastest of them", nothing},
      {"measured_high_s", "slowest launch (s)", "the slowest of them", nothing},
      {"error", "error", "step_time_s over measured_s, less 1", nothing},
      {"absolute_error", "absolute error", "the same without its sign", nothing},
  };
  return kColumns;
}

std::vector<std::string> study_column_names() {
  std::vector<std::string> names;
  for (const StudyColumn& column : study_columns()) names.push_back(column.name);
  return names;
}

StudyRow row_of(const StudyPoint& point, const Result& result, Bytes capacity) {
  StudyRow row{.key = point.key};
  for (const StudyColumn& column : study_columns())
    if (const std::optional<double> value = column.value(result, capacity)) row.values[column.name] = *value;
  return row;
}

std::string line_of(const StudyRow& row) {
  nlohmann::ordered_json json;
  json["point"] = row.key;
  if (!row.error.empty()) json["error"] = row.error;
  if (row.lost) json["lost"] = true;
  for (const auto& [name, value] : row.values) json[name] = value;
  return json.dump() + "\n";
}

std::optional<StudyRow> row_of_line(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("point")) return std::nullopt;
  StudyRow row;
  for (const auto& [name, value] : json.items()) {
    if (name == "point")
      row.key = value.get<std::string>();
    else if (name == "error")
      row.error = value.get<std::string>();
    else if (name == "lost")
      row.lost = value.get<bool>();
    else
      row.values[name] = value.get<double>();
  }
  return row;
}

std::string csv_of(const Study& study, const std::map<std::string, StudyRow>& rows) {
  std::string text;
  for (const std::string& name : study.names) text += csv_cell(name) + ",";
  for (const StudyColumn& column : study_columns()) text += column.name + ",";
  text += "error\n";
  for (const StudyPoint& point : study.points) {
    const auto found = rows.find(point.key);
    if (found == rows.end()) continue;
    for (const std::string& name : study.names) {
      const std::string* value = point.assigned.find(name);
      text += (value == nullptr ? "" : csv_cell(*value)) + ",";
    }
    for (const StudyColumn& column : study_columns()) {
      const auto value = found->second.values.find(column.name);
      if (value != found->second.values.end()) text += nlohmann::json(value->second).dump();
      text += ",";
    }
    text += csv_cell(found->second.error) + "\n";
  }
  return text;
}

}  // namespace stepcast

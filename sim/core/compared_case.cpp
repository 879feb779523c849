#include "sim/core/compared_case.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace stepcast {

double ComparedCase::relative_error() const { return predicted_step_time_s / measured_step_time_s - 1.0; }
bool ComparedCase::inside_launch_range() const {
  return measured_low_s <= predicted_step_time_s && predicted_step_time_s <= measured_high_s;
}

ComparedCase compared(const Case& one, const std::vector<Case>& all) {
  const Configuration& c = one.configuration;
  ComparedCase result;
  result.model = c.model;
  result.strategy = c.strategy;
  result.world_size = c.world_size;
  result.batch = c.batch;
  result.data_parallel = c.data_parallel;
  result.micro_batches = c.micro_batches;
  result.threads = c.threads;
  result.options = c.extra;
  result.measured_step_time_s = one.measured_step_time_s();
  result.measured_low_s = one.measured_low_s();
  result.measured_high_s = one.measured_high_s();
  result.predicted_step_time_s = one.predicted_step_time_s();
  result.trivial_step_time_s = trivial_predictions(one, all);
  result.phases = phase_errors(one);
  result.memory = memory_errors(one);
  for (const ResultFile* launch : one.launches)
    result.launches.push_back({launch->path, launch->sha1, launch->result.context.date,
                               launch->result.context.load_average, launch->result.median_step_time_s()});
  result.prediction_path = one.prediction->path;
  result.prediction_sha1 = one.prediction->sha1;
  return result;
}

std::map<std::string, double> better_trivial_predictors(const ComparedCase& one) {
  std::map<std::string, double> better;
  for (const auto& [name, time] : one.trivial_step_time_s) {
    const double error = time / one.measured_step_time_s - 1.0;
    if (std::abs(error) < std::abs(one.relative_error())) better.emplace(name, error);
  }
  return better;
}

namespace {

nlohmann::json trivial_json(const ComparedCase& one) {
  const std::map<std::string, double> better = better_trivial_predictors(one);
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, time] : one.trivial_step_time_s)
    json[name] = {{"step_time_s", time},
                  {"relative_error", time / one.measured_step_time_s - 1.0},
                  {"better", better.contains(name)}};
  return json;
}

nlohmann::json phases_json(const ComparedCase& one) {
  nlohmann::json json = nlohmann::json::object();
  for (const PhaseError& phase : one.phases)
    json[phase.name] = {
        {"measured_s", phase.measured_s},
        {"predicted_s", phase.predicted_s},
        {"error_over_step", (phase.predicted_s - phase.measured_s) / one.measured_step_time_s}};
  return json;
}

nlohmann::json memory_json(const ComparedCase& one) {
  nlohmann::json json = nlohmann::json::array();
  for (const MemoryError& rank : one.memory)
    json.push_back({{"rank", rank.rank},
                    {"measured_peak_bytes", rank.measured_bytes},
                    {"predicted_peak_bytes", rank.predicted_bytes},
                    {"relative_error", rank.relative_error()}});
  return json;
}

nlohmann::json launches_json(const ComparedCase& one) {
  nlohmann::json json = nlohmann::json::array();
  for (const ComparedLaunch& launch : one.launches)
    json.push_back({{"path", launch.path},
                    {"sha1", launch.sha1},
                    {"date", launch.date},
                    {"load_average", launch.load_average},
                    {"step_time_s", launch.step_time_s}});
  return json;
}

void read_parts(const nlohmann::json& json, ComparedCase& one) {
  for (const auto& [name, trivial] : json.at("trivial").items())
    one.trivial_step_time_s[name] = trivial.at("step_time_s").get<double>();
  const nlohmann::json& phases = json.at("phases");
  for (const auto& [name, part] : breakdown_parts())
    if (phases.contains(name))
      one.phases.push_back({name, phases.at(name).at("measured_s"), phases.at(name).at("predicted_s")});
  for (const nlohmann::json& rank : json.at("memory"))
    one.memory.push_back({rank.at("rank"), rank.at("measured_peak_bytes"), rank.at("predicted_peak_bytes")});
  for (const nlohmann::json& launch : json.at("launches"))
    one.launches.push_back({launch.at("path"), launch.at("sha1"), launch.at("date"),
                            launch.at("load_average"), launch.at("step_time_s")});
}

}  // namespace

void to_json(nlohmann::json& json, const ComparedCase& one) {
  json = {{"model", one.model},
          {"strategy", one.strategy},
          {"world_size", one.world_size},
          {"batch", one.batch},
          {"data_parallel", one.data_parallel},
          {"micro_batches", one.micro_batches},
          {"options", one.options},
          {"threads", one.threads},
          {"memory", memory_json(one)},
          {"measured_step_time_s", one.measured_step_time_s},
          {"measured_low_s", one.measured_low_s},
          {"measured_high_s", one.measured_high_s},
          {"predicted_step_time_s", one.predicted_step_time_s},
          {"relative_error", one.relative_error()},
          {"inside_launch_range", one.inside_launch_range()},
          {"trivial", trivial_json(one)},
          {"phases", phases_json(one)},
          {"launches", launches_json(one)},
          {"prediction", {{"path", one.prediction_path}, {"sha1", one.prediction_sha1}}}};
}

void from_json(const nlohmann::json& json, ComparedCase& one) {
  one = {};
  json.at("model").get_to(one.model);
  json.at("strategy").get_to(one.strategy);
  json.at("world_size").get_to(one.world_size);
  json.at("batch").get_to(one.batch);
  json.at("data_parallel").get_to(one.data_parallel);
  json.at("micro_batches").get_to(one.micro_batches);
  json.at("threads").get_to(one.threads);
  json.at("options").get_to(one.options);
  json.at("measured_step_time_s").get_to(one.measured_step_time_s);
  json.at("measured_low_s").get_to(one.measured_low_s);
  json.at("measured_high_s").get_to(one.measured_high_s);
  json.at("predicted_step_time_s").get_to(one.predicted_step_time_s);
  json.at("prediction").at("path").get_to(one.prediction_path);
  json.at("prediction").at("sha1").get_to(one.prediction_sha1);
  read_parts(json, one);
}

}  // namespace stepcast

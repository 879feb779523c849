#include "sim/core/compare.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/core/file.hpp"

namespace stepcast {

ResultFile load_result_file(const std::string& path) {
  return {path, sha1(read_file(path)), load_result(path)};
}

std::string schema_of(const std::string& path) {
  const nlohmann::json json = parse_json_file(path);
  const nlohmann::json::json_pointer where("/context/schema");
  return json.is_object() && json.contains(where) && json.at(where).is_string()
             ? json.at(where).get<std::string>()
             : "";
}

std::vector<double> Case::launch_step_time_s() const {
  std::vector<double> times;
  for (const ResultFile* launch : launches) times.push_back(launch->result.median_step_time_s());
  return times;
}

double Case::measured_step_time_s() const { return median(launch_step_time_s()); }
double Case::measured_low_s() const { return quantile(launch_step_time_s(), 0.0); }
double Case::measured_high_s() const { return quantile(launch_step_time_s(), 1.0); }
double Case::predicted_step_time_s() const { return prediction->result.median_step_time_s(); }
double Case::relative_error() const { return predicted_step_time_s() / measured_step_time_s() - 1.0; }
bool Case::inside_launch_range() const {
  const double predicted = predicted_step_time_s();
  return measured_low_s() <= predicted && predicted <= measured_high_s();
}

std::string describe(const Configuration& configuration) {
  std::string text = configuration.model + " " + configuration.strategy + ", world size " +
                     std::to_string(configuration.world_size) + ", batch " +
                     std::to_string(configuration.batch) + ", " + std::to_string(configuration.threads) +
                     (configuration.threads == 1 ? " thread" : " threads");
  if (configuration.micro_batches > 1)
    text += ", " + std::to_string(configuration.micro_batches) + " micro-batches";
  if (configuration.compute != "real") text += ", " + configuration.compute + " compute";
  if (configuration.engine != "schedule") text += ", " + configuration.engine + " engine";
  for (const auto& [key, value] : configuration.extra)
    text.append(", ").append(key).append(" ").append(value);
  return text;
}

bool same_case(const Configuration& a, const Configuration& b) {
  const auto key = [](const Configuration& c) {
    const bool has_buckets = c.strategy == "ddp";
    return std::make_tuple(c.model, c.strategy, c.world_size, c.batch, c.micro_batches, c.threads, c.backend,
                           c.compute, c.engine, c.extra, has_buckets ? c.bucket_cap_bytes : 0.0,
                           has_buckets ? c.first_bucket_cap_bytes : 0.0);
  };
  return key(a) == key(b);
}

std::vector<Case> group_cases(const std::vector<ResultFile>& files) {
  std::vector<Case> cases;
  for (const ResultFile& file : files) {
    const Configuration& configuration = file.result.configuration;
    auto found = std::find_if(cases.begin(), cases.end(),
                              [&](const Case& one) { return same_case(one.configuration, configuration); });
    if (found == cases.end()) found = cases.insert(cases.end(), Case{configuration, {}, nullptr});
    if (file.result.origin == Origin::kMeasured) {
      found->launches.push_back(&file);
    } else if (found->prediction == nullptr) {
      found->prediction = &file;
    } else {
      throw InputError(found->prediction->path + " and " + file.path + ": both predict " +
                       describe(configuration) + "; give one of them");
    }
  }
  return cases;
}

void refuse_descent(const std::string& prediction, const std::vector<Ancestor>& lineage,
                    const std::string& measured, const std::string& measured_sha1) {
  const auto knows = [&](const Ancestor& ancestor) {
    const auto& all = ancestor.ancestors;
    return ancestor.sha1 == measured_sha1 || std::find(all.begin(), all.end(), measured_sha1) != all.end();
  };
  const auto found = std::find_if(lineage.begin(), lineage.end(), knows);
  if (found == lineage.end()) return;
  throw InputError(prediction + ": its " + found->role + " (" + found->path + ") " +
                   (found->sha1 == measured_sha1 ? "is " : "descends from ") + measured +
                   ", which it would be compared with; a prediction may not know what it predicts");
}

void check_lineage(const std::vector<Case>& cases) {
  std::map<std::string, std::string> measured;
  for (const Case& one : cases)
    for (const ResultFile* launch : one.launches) measured.emplace(launch->sha1, launch->path);
  for (const Case& one : cases)
    for (const auto& [sha1, path] : measured)
      if (one.prediction != nullptr)
        refuse_descent(one.prediction->path, one.prediction->result.lineage, path, sha1);
}

const std::vector<std::pair<std::string, double Breakdown::*>>& breakdown_parts() {
  static const std::vector<std::pair<std::string, double Breakdown::*>> parts = {
      {"compute", &Breakdown::compute_s},
      {"exposed_communication", &Breakdown::exposed_communication_s},
      {"overlapped_communication", &Breakdown::overlapped_communication_s},
      {"input_and_host", &Breakdown::input_and_host_s},
      {"optimizer_and_copies", &Breakdown::optimizer_and_copies_s},
      {"idle", &Breakdown::idle_s}};
  return parts;
}

Breakdown mean_breakdown(const Result& result) {
  Breakdown mean;
  for (const Breakdown& rank : result.breakdown)
    for (const auto& [name, part] : breakdown_parts())
      mean.*part += rank.*part / static_cast<double>(result.breakdown.size());
  return mean;
}

std::vector<MemoryError> memory_errors(const Case& one) {
  std::vector<MemoryError> errors;
  if (one.launches.empty() || one.prediction == nullptr) return errors;
  const std::vector<MemoryUse>& predicted = one.prediction->result.memory;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    std::vector<double> peaks;
    for (const ResultFile* launch : one.launches)
      if (i < launch->result.memory.size() && launch->result.memory[i].rank == predicted[i].rank)
        peaks.push_back(launch->result.memory[i].peak_bytes);
    if (!peaks.empty()) errors.push_back({predicted[i].rank, median(peaks), predicted[i].peak_bytes});
  }
  return errors;
}

std::vector<PhaseError> phase_errors(const Case& one) {
  std::vector<Breakdown> launches;
  for (const ResultFile* launch : one.launches)
    if (!launch->result.breakdown.empty()) launches.push_back(mean_breakdown(launch->result));
  if (launches.empty() || one.prediction == nullptr || one.prediction->result.breakdown.empty()) return {};
  const Breakdown predicted = mean_breakdown(one.prediction->result);
  std::vector<PhaseError> errors;
  for (const auto& [name, part] : breakdown_parts()) {
    std::vector<double> times;
    times.reserve(launches.size());
    for (const Breakdown& launch : launches) times.push_back(launch.*part);
    errors.push_back({name, median(times), predicted.*part});
  }
  return errors;
}

namespace {

/// The other measured case of the same model that a person would copy the time from.
const Case* nearest_case(const Case& one, const std::vector<Case>& all) {
  const Configuration& own = one.configuration;
  const bool is_single = own.strategy == "single";
  const auto rank = [&](const Case& other) {
    const Configuration& c = other.configuration;
    std::size_t differing = 0;
    for (const auto& [key, value] : own.extra) {
      const auto found = c.extra.find(key);
      if (found == c.extra.end() || found->second != value) ++differing;
    }
    return std::make_tuple((c.strategy == "single") == is_single, c.batch != own.batch, c.world_size,
                           differing, std::abs(c.micro_batches - own.micro_batches), c.strategy);
  };
  const Case* best = nullptr;
  for (const Case& other : all) {
    const Configuration& c = other.configuration;
    if (&other == &one || other.launches.empty() || c.model != own.model || c.threads != own.threads ||
        c.compute != own.compute || c.engine != own.engine)
      continue;
    if (is_single && c.strategy == "single") continue;
    if (best == nullptr || rank(other) < rank(*best)) best = &other;
  }
  return best;
}

}  // namespace

std::map<std::string, double> trivial_predictions(const Case& one, const std::vector<Case>& all) {
  std::map<std::string, double> times;
  if (one.prediction != nullptr) times = one.prediction->result.trivial_step_time_s;
  if (const Case* nearest = nearest_case(one, all))
    times["nearest_measured"] = nearest->measured_step_time_s();
  return times;
}

Accuracy summarize(const std::vector<Case>& cases) {
  std::vector<double> errors;
  std::map<std::string, std::vector<double>> trivial;
  for (const Case& one : cases) {
    errors.push_back(std::abs(one.relative_error()));
    for (const auto& [name, time] : trivial_predictions(one, cases))
      trivial[name].push_back(std::abs(time / one.measured_step_time_s() - 1.0));
  }
  Accuracy accuracy;
  accuracy.median_absolute_relative_error = median(errors);
  accuracy.worst_absolute_relative_error = quantile(errors, 1.0);
  for (const auto& [name, values] : trivial)
    accuracy.trivial_median_absolute_relative_error[name] = median(values);
  return accuracy;
}

std::vector<Speedup> speedups(const std::vector<Case>& cases) {
  std::vector<Speedup> result;
  for (const Case& scaled : cases) {
    const Configuration& c = scaled.configuration;
    if (c.world_size == 1) continue;
    for (const bool strong : {false, true}) {
      if (!strong && c.data_parallel == 1) continue;  // the ranks share one batch: strong scaling
      Configuration wanted = c;
      wanted.strategy = "single";
      wanted.world_size = 1;
      wanted.batch = strong ? c.batch * c.data_parallel : c.batch;
      wanted.micro_batches = 1;
      wanted.extra.clear();
      const auto base = std::find_if(cases.begin(), cases.end(),
                                     [&](const Case& one) { return same_case(one.configuration, wanted); });
      if (base == cases.end()) continue;
      Speedup speedup{&scaled, &*base, strong, 0.0, 0.0};
      const double factor = strong ? 1.0 : c.data_parallel;
      if (!scaled.launches.empty() && !base->launches.empty())
        speedup.measured = factor * base->measured_step_time_s() / scaled.measured_step_time_s();
      if (scaled.prediction != nullptr && base->prediction != nullptr)
        speedup.predicted = factor * base->predicted_step_time_s() / scaled.predicted_step_time_s();
      result.push_back(speedup);
    }
  }
  return result;
}

}  // namespace stepcast

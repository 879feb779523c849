#include "sim/evidence/compare.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "sim/evidence/quantities.hpp"
#include "sim/evidence/trivial.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

ResultFile load_result_file(const std::string& path) {
  return {path, sha1(read_file(path)), load_result(path)};
}

bool same_case(const Configuration& a, const Configuration& b) { return difference(a, b).empty(); }

namespace {

/// None when either side has no breakdown.
void add_phases(Case& one) {
  for (const auto& [name, part] : breakdown_parts()) {
    std::vector<double> times;
    for (const ResultFile* launch : one.launches)
      if (const auto mean = mean_part(launch->result, part)) times.push_back(*mean);
    const auto predicted = mean_part(one.prediction->result, part);
    if (!times.empty() && predicted) one.phases.push_back({name, median(times), *predicted});
  }
}

void add_memory(Case& one) {
  for (const MemoryUse& predicted : one.prediction->result.memory) {
    std::vector<double> peaks;
    for (const ResultFile* launch : one.launches) {
      const auto use = std::ranges::find(launch->result.memory, predicted.rank, &MemoryUse::rank);
      if (use != launch->result.memory.end()) peaks.push_back(use->peak_bytes);
    }
    if (!peaks.empty()) one.memory.push_back({predicted.rank, median(peaks), predicted.peak_bytes});
  }
}

/// The estimate of a time of every launch; none unless `time_of` returns one for each.
std::optional<Estimate> over_launches(const Case& one, const auto& time_of) {
  std::vector<double> times;
  for (const ResultFile* launch : one.launches)
    if (const std::optional<double> time = time_of(launch->result)) times.push_back(*time);
  const bool complete = !times.empty() && times.size() == one.launches.size();
  return complete ? std::optional(estimate_of(times)) : std::nullopt;
}

/// Normalises launches by the steps of the traced model right before them; if a launch lacks these, by the
/// speed probes of equal processors. Steps are preferred: a neighbour on the same core slows the speed probe
/// to less than half, and steps by a fifth (virtual machines, docs/lab.md).
void add_equal_speed(Case& one) {
  one.machines = one.prediction->result.forecast.input_speeds;
  if (one.launches.empty()) return;
  const MachineSpeed running =
      speed_of(transformed(one.launches, [](const ResultFile* each) { return &each->result.machine.log; }),
               one.launches.front()->result.context.cpu_model);
  if (running.known()) one.machines["running"] = running;
  one.measured_at_equal_speed = over_launches(one, [](const Result& launch) {
    const double slowdown = launch.machine.slowdown;
    return slowdown > 0.0 ? std::optional(launch.step_time_without_interference_s() / slowdown)
                          : std::nullopt;
  });
  const auto measuring = one.machines.find("measuring");
  if (one.measured_at_equal_speed || measuring == one.machines.end()) return;
  one.measured_at_equal_speed = over_launches(one, [&](const Result& launch) {
    return launch.context.cpu_model == measuring->second.cpu
               ? launch.step_time_at_speed(measuring->second.speed())
               : std::nullopt;
  });
}

void add_errors(Case& one) {
  one.measured =
      over_launches(one, [](const Result& launch) { return std::optional(launch.median_step_time_s()); });
  if (!one.prediction) return;
  one.predicted = one.prediction->result.median_step_time_s();
  one.trivial = one.prediction->result.forecast.baseline_step_time_s;
  add_phases(one);
  add_memory(one);
  add_equal_speed(one);
}

/// Forecasts of the step of `one` for other devices or clusters.
std::vector<const Case*> elsewhere(const Case& one, const std::vector<Case>& cases) {
  std::vector<const Case*> found;
  for (const Case& other : cases)
    if (&other != &one && one.prediction && other.prediction &&
        same_case(one.configuration, other.configuration))
      found.push_back(&other);
  return found;
}

/// \throws InputError if a run of the step could be held against several forecasts
void require_one_forecast(const Case& one, const std::vector<Case>& cases) {
  if (const auto others = elsewhere(one, cases); !others.empty())
    throw InputError("{} and {}: both predict {}, which was measured; give one of them", one.prediction->path,
                     others.front()->prediction->path, describe(one.configuration));
}

/// Compares a prediction with runs of the reference engine if only that has run the step.
void match_reference_runs(std::vector<Case>& cases) {
  for (Case& run : cases) {
    if (run.configuration.engine == "schedule" || run.prediction) continue;
    Configuration scheduled = run.configuration;
    scheduled.engine = "schedule";
    const auto predicted = std::ranges::find_if(cases, [&](const Case& one) {
      return one.prediction && one.launches.empty() && same_case(one.configuration, scheduled);
    });
    if (predicted == cases.end()) continue;
    require_one_forecast(*predicted, cases);
    run.prediction = predicted->prediction;
    run.name += ", " + run.configuration.engine + " engine";
    predicted->prediction = nullptr;
  }
  std::erase_if(cases, [](const Case& one) { return !one.prediction && one.launches.empty(); });
}

bool same_place(const Case& one, const Configuration& other) {
  const Configuration& known = one.prediction->result.configuration;
  return known.device == other.device && known.cluster == other.cluster;
}

/// Names devices and clusters of forecasts that differ in nothing else.
void distinguish_places(std::vector<Case>& cases) {
  for (Case& one : cases) {
    const Configuration& here = one.prediction ? one.prediction->result.configuration : one.configuration;
    bool devices = false, clusters = false;
    for (const Case* other : elsewhere(one, cases)) {
      devices = devices || here.device != other->prediction->result.configuration.device;
      clusters = clusters || here.cluster != other->prediction->result.configuration.cluster;
    }
    if (devices) one.name += ", " + (here.device.empty() ? "the measured device" : here.device);
    if (clusters) one.name += ", " + here.cluster;
  }
}

}  // namespace

void check_device(const Result& measured, const std::string& path, const Result& forecast,
                  const std::string& against) {
  const std::string& device = forecast.configuration.device;
  const auto expected =
      std::ranges::find(device_models(), device.substr(0, device.find(':')), &DeviceModel::name);
  if (measured.configuration.compute == "replayed" || expected == device_models().end()) return;
  const std::string& gpu = measured.context.gpu.name;
  const DeviceModel* known = gpu.empty() ? nullptr : reported_device(gpu);
  if (gpu.empty() ? expected->gpu : known != nullptr && known->hardware != expected->hardware)
    throw InputError("{}: was measured on {}, and {} is a forecast for {}; give one for the same device",
                     path, gpu.empty() ? "CPUs" : gpu, against, expected->name);
}

std::vector<Case> group_cases(const std::vector<ResultFile>& files) {
  std::vector<Case> cases;
  for (const ResultFile& file : files) {
    const Configuration& configuration = file.result.configuration;
    const bool measured = file.result.origin == Origin::kMeasured;
    auto found = std::ranges::find_if(cases, [&](const Case& one) {
      return same_case(one.configuration, configuration) &&
             (measured || !one.prediction || same_place(one, configuration));
    });
    if (found == cases.end())
      found = cases.insert(cases.end(), {.configuration = configuration, .name = label_of(configuration)});
    if (measured) {  // a file that is given twice is one launch
      const auto is_file = [&](const ResultFile* launch) { return launch->sha1 == file.sha1; };
      if (std::ranges::none_of(found->launches, is_file)) found->launches.push_back(&file);
    } else if (!found->prediction)
      found->prediction = &file;
    else
      throw InputError("{} and {}: both predict {}; give one of them", found->prediction->path, file.path,
                       describe(configuration));
  }
  match_reference_runs(cases);
  distinguish_places(cases);
  for (Case& one : cases) {
    if (!one.launches.empty()) require_one_forecast(one, cases);
    if (one.prediction)
      for (const ResultFile* launch : one.launches)
        check_device(launch->result, launch->path, one.prediction->result, one.prediction->path);
    add_errors(one);
  }
  add_nearest_measured(cases);
  return cases;
}

void refuse_descent(const std::string& prediction, const std::vector<Ancestor>& lineage,
                    const std::string& measured, const std::string& measured_sha1) {
  const auto knows = [&](const Ancestor& ancestor) {
    return ancestor.sha1 == measured_sha1 || std::ranges::count(ancestor.ancestors, measured_sha1) > 0;
  };
  const auto found = std::ranges::find_if(lineage, knows);
  if (found == lineage.end()) return;
  throw InputError(
      "{}: its {} ({}) {} {}, which it would be compared with; a prediction may not know what it predicts",
      prediction, found->role, found->path, found->sha1 == measured_sha1 ? "is" : "descends from", measured);
}

void check_lineage(const std::vector<Case>& cases) {
  std::map<std::string, std::string> measured;
  for (const Case& one : cases)
    for (const ResultFile* launch : one.launches) measured.emplace(launch->sha1, launch->path);
  for (const Case& one : cases)
    for (const auto& [sha1, path] : measured)
      if (one.prediction) refuse_descent(one.prediction->path, one.prediction->result.lineage, path, sha1);
}

double EnginePair::relative_difference() const {
  return schedule->measured->value / reference->measured->value - 1.0;
}

bool EnginePair::ranges_overlap() const {
  return schedule->measured->low <= reference->measured->high &&
         reference->measured->low <= schedule->measured->high;
}

std::optional<bool> EnginePair::same_buckets() const {
  std::set<std::string> layouts;
  for (const Case* engine : {schedule, reference})
    for (const ResultFile* launch : engine->launches) {
      const auto note = launch->result.notes.find("buckets");
      if (note == launch->result.notes.end()) return std::nullopt;
      layouts.insert(note->second);
    }
  return layouts.size() == 1;
}

std::vector<EnginePair> engine_pairs(const std::vector<Case>& cases) {
  std::vector<EnginePair> pairs;
  for (const Case& reference : cases) {
    if (reference.configuration.engine != "reference" || !reference.measured) continue;
    Configuration wanted = reference.configuration;
    wanted.engine = "schedule";
    const auto schedule = std::ranges::find_if(
        cases, [&](const Case& one) { return one.measured && same_case(one.configuration, wanted); });
    if (schedule != cases.end()) pairs.push_back({&*schedule, &reference});
  }
  return pairs;
}

std::vector<BenchPair> bench_pairs(const Bench& measured, const Bench& predicted) {
  if (measured.world_size != predicted.world_size)
    throw InputError("measured with world size {}, predicted for world size {}", measured.world_size,
                     predicted.world_size);
  if (measured.backend != predicted.backend)
    throw InputError("measured with backend '{}', predicted for backend '{}'", measured.backend,
                     predicted.backend);
  std::vector<BenchPair> pairs;
  for (const BenchRow& row : measured.rows) {
    const auto found = std::ranges::find_if(predicted.rows, [&](const BenchRow& other) {
      return other.collective == row.collective && other.message_bytes == row.message_bytes;
    });
    if (found == predicted.rows.end() || row.time_s.empty() || found->time_s.empty()) continue;
    if (row.wrong != 0)
      throw InputError("measured {} of {}: {} elements differed from the expected result", row.collective,
                       to_text(Bytes(row.message_bytes)), row.wrong);
    if (measured.backend != "nccl" && row.algorithm != found->algorithm)  // predictions contain NCCL's choice
      throw InputError("{}: measured with algorithm '{}', predicted for '{}'; '' is the library's own choice",
                       row.collective, row.algorithm, found->algorithm);
    const BenchPair pair{row.collective, row.message_bytes, row.median_time_s(), found->median_time_s()};
    if (pair.measured_s > 0.0 && pair.predicted_s > 0.0) pairs.push_back(pair);
  }
  if (pairs.empty())
    throw InputError(
        "the two bench files share no collective at the same size with times above 0; sizes are "
        "rounded as in nccl-tests, repeat an older file");
  return pairs;
}

std::vector<ForecastError> errors_of(const std::vector<BenchPair>& pairs) {
  return transformed(pairs, [](const BenchPair& pair) -> ForecastError {
    return {pair.predicted_s / pair.measured_s - 1.0, to_text(Bytes(pair.message_bytes)), pair.collective};
  });
}

nlohmann::json bench_comparison_json(const std::vector<BenchPair>& pairs) {
  nlohmann::json json = {{"geometric_mean_error", summary_of(errors_of(pairs)).geometric_mean()},
                         {"collectives", nlohmann::json::object()},
                         {"rows", nlohmann::json::array()}};
  for (const auto& [name, errors] : errors_by_group(errors_of(pairs)))
    json["collectives"][name] = {{"geometric_mean_error", errors.geometric_mean()},
                                 {"worst_at", errors.worst_row.name},
                                 {"worst_relative_error", errors.worst_row.relative}};
  for (const BenchPair& pair : pairs)
    json["rows"].push_back({{"collective", pair.collective},
                            {"message_bytes", pair.message_bytes},
                            {"measured_s", pair.measured_s},
                            {"predicted_s", pair.predicted_s},
                            {"relative_error", pair.predicted_s / pair.measured_s - 1.0}});
  return json;
}

}  // namespace stepcast

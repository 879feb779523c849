#include "sim/evidence/compare.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/evidence/trivial.hpp"

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

std::string describe(const Configuration& c) {
  std::string text = c.model + " " + label_of(c) + ", world size " + std::to_string(c.world_size) +
                     ", batch " + std::to_string(c.batch) + ", " +
                     counted(static_cast<std::size_t>(c.threads), "thread");
  if (c.compute != "real") text += ", " + c.compute + " compute";
  if (c.engine != "schedule") text += ", " + c.engine + " engine";
  return text;
}

bool same_case(const Configuration& a, const Configuration& b) {
  const auto key = [](const Configuration& c) {
    return std::make_tuple(c.model, c.strategy, c.world_size, c.batch, c.micro_batches, c.threads, c.backend,
                           c.compute, c.engine, c.options);
  };
  return key(a) == key(b);
}

namespace {

CaseFile case_file(const ResultFile& file) {
  const RunContext& context = file.result.context;
  return {file.path,   file.sha1, context.date, context.load_average, file.result.median_step_time_s(),
          &file.result};
}

/// Mean over the ranks of one Result.
double mean_part(const Result& result, double Breakdown::*part) {
  double sum = 0.0;
  for (const Breakdown& rank : result.breakdown) sum += rank.*part;
  return sum / static_cast<double>(result.breakdown.size());
}

/// None when either side has no breakdown.
void add_phases(Case& one) {
  const Result& predicted = *one.prediction->result;
  for (const auto& [name, part] : breakdown_parts()) {
    std::vector<double> times;
    for (const CaseFile& launch : one.launches)
      if (!launch.result->breakdown.empty()) times.push_back(mean_part(*launch.result, part));
    if (!times.empty() && !predicted.breakdown.empty())
      one.phases.push_back({name, median(times), mean_part(predicted, part)});
  }
}

void add_memory(Case& one) {
  const std::vector<MemoryUse>& predicted = one.prediction->result->memory;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    std::vector<double> peaks;
    for (const CaseFile& launch : one.launches)
      if (i < launch.result->memory.size() && launch.result->memory[i].rank == predicted[i].rank)
        peaks.push_back(launch.result->memory[i].peak_bytes);
    if (!peaks.empty()) one.memory.push_back({predicted[i].rank, median(peaks), predicted[i].peak_bytes});
  }
}

/// Where every launch knows how the traced model's own steps went right before; else where each knows its
/// machine, and the forecast that on which its trace was measured: one processor. A neighbour on the same
/// core slows the speed probe to less than half, and steps by a fifth (virtual machines, docs/lab.md), so
/// that steps say more.
void add_equal_speed(Case& one) {
  std::vector<const MachineLog*> logs;
  for (const CaseFile& launch : one.launches) logs.push_back(&launch.result->machine.log);
  one.machines = one.prediction->result->forecast.input_speeds;
  if (one.launches.empty()) return;
  const MachineSpeed running = speed_of(logs, one.launches.front().result->context.cpu_model);
  if (running.known()) one.machines["running"] = running;
  const auto measuring = one.machines.find("measuring");
  std::vector<double> times;
  for (const CaseFile& launch : one.launches)
    if (launch.result->machine.slowdown > 0.0)
      times.push_back(launch.result->step_time_without_interference_s() / launch.result->machine.slowdown);
  if (times.size() == one.launches.size()) {
    one.measured_at_equal_speed = estimate_of(times);
    return;
  }
  times.clear();
  if (measuring == one.machines.end()) return;
  for (const CaseFile& launch : one.launches)
    if (launch.result->context.cpu_model == measuring->second.cpu)
      if (const auto time = launch.result->step_time_at_speed(measuring->second.speed()))
        times.push_back(*time);
  if (!times.empty() && times.size() == one.launches.size()) one.measured_at_equal_speed = estimate_of(times);
}

void add_errors(Case& one) {
  if (!one.launches.empty()) {
    std::vector<double> times;
    for (const CaseFile& launch : one.launches) times.push_back(launch.step_time_s);
    one.measured = estimate_of(times);
  }
  if (!one.prediction) return;
  one.predicted = estimate_of({one.prediction->step_time_s});
  one.trivial = one.prediction->result->forecast.baseline_step_time_s;
  add_phases(one);
  add_memory(one);
  add_equal_speed(one);
}

/// A prediction says how long the step takes, whoever runs it: where the reference engine alone has run it,
/// that run is what it is held against.
void match_reference_runs(std::vector<Case>& cases) {
  for (Case& run : cases) {
    if (run.configuration.engine == "schedule" || run.prediction) continue;
    Configuration scheduled = run.configuration;
    scheduled.engine = "schedule";
    const auto predicted = std::find_if(cases.begin(), cases.end(), [&](const Case& one) {
      return one.prediction && one.launches.empty() && same_case(one.configuration, scheduled);
    });
    if (predicted == cases.end()) continue;
    run.prediction = predicted->prediction;
    run.name += ", " + run.configuration.engine + " engine";
    predicted->prediction.reset();
  }
  std::erase_if(cases, [](const Case& one) { return !one.prediction && one.launches.empty(); });
}

}  // namespace

std::vector<Case> group_cases(const std::vector<ResultFile>& files) {
  std::vector<Case> cases;
  for (const ResultFile& file : files) {
    const Configuration& configuration = file.result.configuration;
    auto found = std::find_if(cases.begin(), cases.end(),
                              [&](const Case& one) { return same_case(one.configuration, configuration); });
    if (found == cases.end())
      found = cases.insert(cases.end(), {.configuration = configuration, .name = label_of(configuration)});
    if (file.result.origin == Origin::kMeasured)
      found->launches.push_back(case_file(file));
    else if (!found->prediction)
      found->prediction = case_file(file);
    else
      throw InputError(found->prediction->path + " and " + file.path + ": both predict " +
                       describe(configuration) + "; give one of them");
  }
  match_reference_runs(cases);
  for (Case& one : cases) add_errors(one);
  add_nearest_measured(cases);
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
    for (const CaseFile& launch : one.launches) measured.emplace(launch.sha1, launch.path);
  for (const Case& one : cases)
    for (const auto& [sha1, path] : measured)
      if (one.prediction) refuse_descent(one.prediction->path, one.prediction->result->lineage, path, sha1);
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
    for (const CaseFile& launch : engine->launches) {
      const auto note = launch.result->notes.find("buckets");
      if (note == launch.result->notes.end()) return std::nullopt;
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
    const auto schedule = std::find_if(cases.begin(), cases.end(), [&](const Case& one) {
      return one.measured && same_case(one.configuration, wanted);
    });
    if (schedule != cases.end()) pairs.push_back({&*schedule, &reference});
  }
  return pairs;
}

}  // namespace stepcast

#include "sim/core/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/core/compare_bench.hpp"
#include "sim/core/compare_engines.hpp"
#include "sim/core/file.hpp"
#include "sim/core/units.hpp"

namespace stepcast {
namespace {

using Paths = std::vector<std::string>;

void declare(po::options_description& options) {
  // clang-format off
  options.add_options()
      ("files", po::value<Paths>(), "predicted and measured results, any number of launches per case; runs of both engines; or two bench files")
      ("baseline", po::value<Paths>()->multitoken(), "results that only serve as baselines of speed-ups")
      ("max-error", po::value<std::string>(),
       "exit with 4 when a case is further off than this, as in 10%, and outside its range of launches")
      ("output,o", po::value<std::string>(), "file for the comparison")
      ("json", po::bool_switch(), "print the whole comparison as JSON")
      ("force", po::bool_switch(), "overwrite an existing file");
  // clang-format on
}

std::string times(double factor) {
  if (factor <= 0.0) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", factor);
  return text.data();
}

std::optional<double> max_error(const po::variables_map& values) {
  return values.count("max-error") != 0 ? std::optional(percent_option(values, "max-error")) : std::nullopt;
}

std::vector<ResultFile> load_all(const po::variables_map& values, const std::string& option) {
  std::vector<ResultFile> files;
  if (values.count(option) == 0) return files;
  for (const std::string& path : values[option].as<Paths>()) files.push_back(load_result_file(path));
  return files;
}

bool is_predicted(const Case& one) { return !one.launches.empty() && one.prediction != nullptr; }

bool is_paired(const Case& one, const std::vector<EnginePair>& pairs) {
  return std::any_of(pairs.begin(), pairs.end(),
                     [&](const EnginePair& pair) { return pair.schedule == &one || pair.reference == &one; });
}

/// Every file must take part: a case without a partner would silently drop out of the tables. A run's partner
/// is a prediction, or runs of the same by the other engine.
void require_complete(const std::vector<Case>& cases, const std::vector<EnginePair>& pairs) {
  for (const Case& one : cases) {
    if (is_predicted(one) || is_paired(one, pairs)) continue;
    const bool measured = one.prediction == nullptr;
    const bool reference = one.configuration.engine != "schedule";
    throw InputError(
        (measured ? one.launches.front()->path + (reference ? ": no run of the Schedule" : ": no prediction")
                  : one.prediction->path + ": no measured run") +
        " of " + describe(one.configuration) + " was given" +
        (measured ? " (--baseline takes runs that only serve for speed-ups)" : ""));
  }
}

/// `pipeline 3-1 1f1b, 4 micro-batches`: the strategy with what else tells cases apart.
std::string strategy_text(const Configuration& configuration) {
  std::string text = configuration.strategy;
  for (const char* first : {"split", "schedule", "sharding"})
    if (const auto found = configuration.extra.find(first); found != configuration.extra.end())
      text += " " + found->second;
  if (configuration.micro_batches > 1)
    text += ", " + std::to_string(configuration.micro_batches) + " micro-batches";
  return text;
}

void print_memory(const std::vector<Case>& cases) {
  double worst = 0.0;
  std::size_t ranks = 0;
  std::string where;
  for (const Case& one : cases)
    for (const MemoryError& error : memory_errors(one)) {
      ++ranks;
      if (std::abs(error.relative_error()) < std::abs(worst)) continue;
      worst = error.relative_error();
      where = "rank " + std::to_string(error.rank) + " of " + describe(one.configuration) + " with " +
              to_text(Bytes(error.measured_bytes));
    }
  if (ranks > 0)
    std::cout << "peak memory: worst error " << signed_percent_text(worst) << " over " << ranks << " ranks ("
              << where << ")\n";
}

void print_cases(std::vector<Case> cases) {
  const std::vector<Case> all = cases;
  std::stable_sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) {
    return std::abs(a.relative_error()) > std::abs(b.relative_error());
  });
  Table table({"model", "strategy", "ranks", "batch", "threads", "measured", "launches", "low", "high",
               "predicted", "error", "in range", "better trivial predictors"});
  for (const Case& one : cases) {
    std::string better;
    for (const auto& [name, time] : trivial_predictions(one, all)) {
      const double error = time / one.measured_step_time_s() - 1.0;
      if (std::abs(error) < std::abs(one.relative_error()))
        better += (better.empty() ? "" : ", ") + name + " " + signed_percent_text(error);
    }
    const Configuration& c = one.configuration;
    table.add({c.model, strategy_text(c), std::to_string(c.world_size), std::to_string(c.batch),
               std::to_string(c.threads), to_text(Seconds(one.measured_step_time_s())),
               std::to_string(one.launches.size()), to_text(Seconds(one.measured_low_s())),
               to_text(Seconds(one.measured_high_s())), to_text(Seconds(one.predicted_step_time_s())),
               signed_percent_text(one.relative_error()), one.inside_launch_range() ? "yes" : "no", better});
  }
  const Accuracy accuracy = summarize(all);
  std::cout << table.text() << "\nmedian absolute error "
            << percent_text(accuracy.median_absolute_relative_error) << ", worst "
            << percent_text(accuracy.worst_absolute_relative_error) << ", over " << all.size()
            << (all.size() == 1 ? " case\n" : " cases\n");
  for (const auto& [name, error] : accuracy.trivial_median_absolute_relative_error)
    std::cout << "trivial predictor " << name << ": median absolute error " << percent_text(error)
              << (error < accuracy.median_absolute_relative_error ? "  (better than the prediction)\n"
                                                                  : "\n");
}

void print_phases(const std::vector<Case>& cases) {
  Table table({"model", "strategy", "ranks", "phase", "measured", "predicted", "error over step"});
  for (const Case& one : cases) {
    for (const PhaseError& phase : phase_errors(one)) {
      if (phase.measured_s == 0.0 && phase.predicted_s == 0.0) continue;
      table.add({one.configuration.model, strategy_text(one.configuration),
                 std::to_string(one.configuration.world_size), phase.name, to_text(Seconds(phase.measured_s)),
                 to_text(Seconds(phase.predicted_s)),
                 signed_percent_text((phase.predicted_s - phase.measured_s) / one.measured_step_time_s())});
    }
  }
  std::cout << "\nWhere the step goes (mean over the ranks):\n\n" << table.text();
}

void print_engines(const std::vector<EnginePair>& pairs) {
  if (pairs.empty()) return;
  Table table({"model", "strategy", "ranks", "batch", "schedule", "launches", "low", "high", "reference",
               "launches", "low", "high", "difference", "buckets"});
  for (const EnginePair& pair : pairs) {
    const Configuration& c = pair.schedule->configuration;
    std::vector<std::string> row{c.model, strategy_text(c), std::to_string(c.world_size),
                                 std::to_string(c.batch)};
    for (const Case* engine : {pair.schedule, pair.reference})
      for (const std::string& text :
           {to_text(Seconds(engine->measured_step_time_s())), std::to_string(engine->launches.size()),
            to_text(Seconds(engine->measured_low_s())), to_text(Seconds(engine->measured_high_s()))})
        row.push_back(text);
    row.push_back(signed_percent_text(pair.relative_difference()));
    const std::optional<bool> same = pair.same_buckets();
    row.emplace_back(!same ? "" : *same ? "same" : "different");
    table.add(std::move(row));
  }
  std::cout << "\nThe Schedule against PyTorch's own parts (reference engine):\n\n" << table.text();
}

void print_speedups(const std::vector<Speedup>& all) {
  if (all.empty()) return;
  Table table(
      {"model", "strategy", "ranks", "threads", "scaling", "measured", "predicted", "error", "baseline"});
  for (const Speedup& speedup : all) {
    const Configuration& c = speedup.scaled->configuration;
    const bool both = speedup.measured > 0.0 && speedup.predicted > 0.0;
    table.add({c.model, c.strategy, std::to_string(c.world_size), std::to_string(c.threads),
               speedup.strong ? "strong" : "weak", times(speedup.measured), times(speedup.predicted),
               both ? signed_percent_text(speedup.relative_error()) : "",
               describe(speedup.baseline->configuration)});
  }
  std::cout << "\nSpeed-up, throughput over throughput:\n\n" << table.text();
}

void write_output(const po::variables_map& values, const nlohmann::json& comparison) {
  nlohmann::json body = comparison;
  body["context"] = make_run_context("stepcast.compare/1", command_line());
  const std::string text = to_file_text(body);
  if (values.count("output") != 0)
    write_file(values["output"].as<std::string>(), text, values["force"].as<bool>());
  if (values["json"].as<bool>()) std::cout << text;
}

void print_comparison(const std::vector<Case>& predicted, const std::vector<EnginePair>& pairs,
                      const std::vector<Speedup>& all_speedups) {
  if (!predicted.empty()) {
    print_cases(predicted);
    print_memory(predicted);
    print_phases(predicted);
  }
  print_engines(pairs);
  print_speedups(all_speedups);
}

/// Whether a prediction, or the Schedule beside the reference engine, is off by more than `limit` and outside
/// what launches differ by.
bool is_off(const std::vector<Case>& predicted, const std::vector<EnginePair>& pairs, double limit) {
  return std::any_of(predicted.begin(), predicted.end(),
                     [&](const Case& one) {
                       return std::abs(one.relative_error()) > limit && !one.inside_launch_range();
                     }) ||
         std::any_of(pairs.begin(), pairs.end(), [&](const EnginePair& pair) {
           return std::abs(pair.relative_difference()) > limit && !pair.ranges_overlap();
         });
}

ExitCode compare_results(const po::variables_map& values) {
  const std::vector<ResultFile> files = load_all(values, "files");
  const std::vector<Case> cases = group_cases(files);
  const std::vector<EnginePair> pairs = engine_pairs(cases);
  require_complete(cases, pairs);
  check_lineage(cases);
  std::vector<ResultFile> everything = files;
  for (ResultFile& file : load_all(values, "baseline")) everything.push_back(std::move(file));
  const std::vector<Case> with_baselines = group_cases(everything);
  check_lineage(with_baselines);
  const std::vector<Speedup> all_speedups = speedups(with_baselines);
  std::vector<Case> predicted;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(predicted), is_predicted);
  if (!values["json"].as<bool>()) print_comparison(predicted, pairs, all_speedups);
  nlohmann::json comparison = comparison_json(predicted, all_speedups);
  for (const EnginePair& pair : pairs) comparison["engines"].push_back(engine_pair_json(pair));
  write_output(values, comparison);
  const auto limit = max_error(values);
  const bool missed = limit && is_off(predicted, pairs, *limit);
  if (missed)
    std::cerr << "stepcast: a case is off by more than " << values["max-error"].as<std::string>() << '\n';
  return missed ? ExitCode::kOutOfTolerance : ExitCode::kDone;
}

ExitCode compare_benches(const po::variables_map& values) {
  const Paths paths = values["files"].as<Paths>();
  if (paths.size() != 2) throw UsageError("bench files are compared in pairs: one measured, one predicted");
  std::array<Bench, 2> benches{load_bench(paths[0]), load_bench(paths[1])};
  if (benches[0].origin == benches[1].origin)
    throw InputError(paths[0] + " and " + paths[1] + ": one must be measured and the other predicted");
  const std::size_t m = benches[0].origin == Origin::kMeasured ? 0 : 1;
  refuse_descent(paths[1 - m], benches[1 - m].lineage, paths[m], sha1(read_file(paths[m])));
  const std::vector<BenchError> errors = bench_errors(benches[m], benches[1 - m]);
  if (!values["json"].as<bool>()) {
    Table table({"collective", "sizes", "geometric-mean error", "worst", "at"});
    for (const std::string& name : collectives_of(errors)) {
      const auto rows = of_collective(errors, name);
      table.add({name, std::to_string(rows.size()), percent_text(geometric_mean_error(rows)),
                 signed_percent_text(worst(rows).relative_error()),
                 to_text(Bytes(worst(rows).message_bytes))});
    }
    std::cout << table.text() << "\ngeometric-mean error " << percent_text(geometric_mean_error(errors))
              << " over " << errors.size() << " rows; worst " << worst(errors).collective << " of "
              << to_text(Bytes(worst(errors).message_bytes)) << ": "
              << signed_percent_text(worst(errors).relative_error()) << '\n';
  }
  write_output(values, bench_comparison_json(errors));
  const auto limit = max_error(values);
  return limit && geometric_mean_error(errors) > *limit ? ExitCode::kOutOfTolerance : ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("files") == 0)
    throw UsageError("name predicted and measured files; see 'stepcast help compare'");
  static_cast<void>(max_error(values));  // a wrong limit is refused before any file is read
  if (values.count("output") != 0)
    check_writable(values["output"].as<std::string>(), values["force"].as<bool>());
  return schema_of(values["files"].as<Paths>().front()) == "stepcast.bench/1" ? compare_benches(values)
                                                                              : compare_results(values);
}

const Registration<Command> kCompare{
    commands(),
    {.name = "compare",
     .description = "Holds predictions against real runs: errors, phases, speed-ups, trivial predictors.",
     .thing = {.declare = declare,
               .run = run,
               .positional = "files",
               .usage = "stepcast compare PREDICTED... MEASURED... [options]",
               .group = "Predict and compare"},
     .order = 21}};

}  // namespace
}  // namespace stepcast

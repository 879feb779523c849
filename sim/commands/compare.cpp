#include "sim/evidence/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/kineto/profile_result.hpp"

namespace stepcast::compare_command {
namespace {

using Paths = std::vector<std::string>;

std::optional<double> max_error(const po::variables_map& values) {
  return values.count("max-error") != 0 ? std::optional(percent_option(values, "max-error")) : std::nullopt;
}

std::vector<ResultFile> load_all(const po::variables_map& values, const std::string& option) {
  return transformed(texts_option(values, option), [](const std::string& path) {
    if (std::filesystem::is_regular_file(path) && is_profile_of_torch(path))
      throw InputError("{}: is a profile of PyTorch; 'stepcast explain FORECAST --against {}' compares it",
                       path, path);
    return load_result_file(path);
  });
}

bool is_paired(const Case& one, const std::vector<EnginePair>& pairs) {
  return std::ranges::any_of(
      pairs, [&](const EnginePair& pair) { return pair.schedule == &one || pair.reference == &one; });
}

/// Every file must take part: a case without a partner would silently drop out of the tables. A run's partner
/// is a prediction, or runs of the same by the other engine.
void require_complete(const std::vector<Case>& cases, const std::vector<EnginePair>& pairs) {
  for (const Case& one : cases) {
    if (one.has_error() || is_paired(one, pairs)) continue;
    const std::string of = describe(one.configuration) + ", backend " + one.configuration.backend;
    if (one.prediction) throw InputError("{}: no measured run of {} was given", one.prediction->path, of);
    throw InputError("{}: no {} of {} was given (--baseline takes runs that only serve for speed-ups)",
                     one.launches.front()->path,
                     one.configuration.engine == "schedule" ? "prediction" : "run of the Schedule", of);
  }
}

/// Whether a prediction, or the Schedule beside the reference engine, is off by more than `limit` and outside
/// what launches differ by.
bool is_off(const std::vector<Case>& predicted, const std::vector<EnginePair>& pairs, double limit) {
  const auto differs = [&](const EnginePair& pair) {
    return std::abs(pair.relative_difference()) > limit && !pair.ranges_overlap();
  };
  return std::ranges::any_of(predicted, [&](const Case& one) { return !one.within(limit); }) ||
         std::ranges::any_of(pairs, differs);
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
  std::vector<Case> predicted = cases;
  std::erase_if(predicted, [](const Case& one) { return !one.has_error(); });
  if (!flag_option(values, "json")) std::cout << comparison_text(predicted, all_speedups, pairs);
  write_json_output(values, kCompareSchema, comparison_json(predicted, all_speedups, pairs));
  const auto limit = max_error(values);
  const bool missed = limit && is_off(predicted, pairs, *limit);
  if (missed)
    std::cerr << "stepcast: a case is off by more than " << text_option(values, "max-error") << '\n';
  return missed ? ExitCode::kOutOfTolerance : ExitCode::kDone;
}

ExitCode compare_benches(const po::variables_map& values) {
  if (values.count("baseline") != 0) throw UsageError("--baseline has no effect with bench files");
  const Paths paths = texts_option(values, "files");
  if (paths.size() != 2) throw UsageError("bench files are compared in pairs: one measured, one predicted");
  std::array<Bench, 2> benches{load_bench(paths[0]), load_bench(paths[1])};
  if (benches[0].origin == benches[1].origin)
    throw InputError("{} and {}: one must be measured and the other predicted", paths[0], paths[1]);
  const std::size_t m = benches[0].origin == Origin::kMeasured ? 0 : 1;
  refuse_descent(paths[1 - m], benches[1 - m].lineage, paths[m], sha1(read_file(paths[m])));
  const std::vector<BenchPair> pairs = bench_pairs(benches[m], benches[1 - m]);
  const Errors all = summary_of(errors_of(pairs));
  if (!flag_option(values, "json")) {
    Table table({"collective", "sizes", "geometric-mean error", "worst", "at"});
    for (const auto& [name, errors] : errors_by_group(errors_of(pairs)))
      table.add({name, std::to_string(errors.count), percent_text(errors.geometric_mean()),
                 signed_percent_text(errors.worst_row.relative), errors.worst_row.name});
    std::cout << table.text() << "\ngeometric-mean error " << percent_text(all.geometric_mean()) << " over "
              << all.count << " rows; worst " << all.worst_row.group << " of " << all.worst_row.name << ": "
              << signed_percent_text(all.worst_row.relative) << '\n';
  }
  write_json_output(values, kCompareSchema, bench_comparison_json(pairs));
  const std::size_t unpaired = benches[0].rows.size() + benches[1].rows.size() - 2 * pairs.size();
  if (unpaired > 0)
    std::cerr << fmt::format("stepcast: {} of {} and {} have no partner in the other file\n",
                             counted(unpaired, "row"), paths[0], paths[1]);
  const auto limit = max_error(values);
  return limit && (unpaired > 0 || all.geometric_mean() > *limit) ? ExitCode::kOutOfTolerance
                                                                  : ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  if (values.count("files") == 0)
    throw UsageError("name predicted and measured files; see 'stepcast help compare'");
  static_cast<void>(max_error(values));  // a wrong limit is refused before any file is read
  check_output(values);
  const std::string head = file_head(texts_option(values, "files").front());
  return schema_of(head) == kBenchSchema ? compare_benches(values) : compare_results(values);
}

const Registration<Command> kCompare{commands(), "compare", {.run = run}, 21};

}  // namespace
}  // namespace stepcast::compare_command

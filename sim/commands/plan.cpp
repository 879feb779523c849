#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "core/clocks.hpp"
#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "plots/chart.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "sim/commands/train.hpp"
#include "sim/plan/launch.hpp"
#include "sim/plan/report.hpp"
#include "sim/plan/search.hpp"
#include "sim/plan/space.hpp"
#include "sim/replay/device_scaling.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "sim/train/expected.hpp"
#include "topologies/devices.hpp"

namespace stepcast::plan_command {
namespace {

void declare(po::options_description& options) {
  declare_options(options, "plan", {{"launchers", joined(resource_names("launchers", ".yaml"))}});
  declare_train_options(options, false);
}

/// `4M`, `512k`, `4194304`.
long long tokens_option(const po::variables_map& values) {
  static const std::map<std::string, double> kUnits{{"", 1.0}, {"k", kKibi}, {"M", kMebi}};
  constexpr double kMost = 1e12;
  const auto given = number_with_unit(text_option(values, "batch-tokens"));
  const double tokens = given ? given->number * value_or(kUnits, given->unit, 0.0) : 0.0;
  if (tokens < 1.0 || tokens > kMost || tokens != std::floor(tokens))
    throw UsageError("--batch-tokens: '{}' is not a number of tokens; write for example 4M, 512k or 4194304",
                     text_option(values, "batch-tokens"));
  return static_cast<long long>(tokens);
}

std::string device_of(const po::variables_map& values, const Cluster& cluster) {
  if (const std::string named = text_option(values, "device"); !named.empty()) return named;
  std::set<std::string> found;
  for (const int place : cluster.places()) found.insert(cluster.node(place).device);
  if (found.size() == 1 && !found.begin()->empty()) return *found.begin();
  throw UsageError("--device is missing; cluster '{}' {}", cluster.specification,
                   found.size() > 1 ? "has different devices" : "does not name one");
}

/// Samples per step. \throws UsageError if tokens are not a whole number of sequences; it names
/// the next valid numbers
int samples_of(const po::variables_map& values, const Model& model) {
  const bool samples = values.count("global-batch") != 0;
  if (samples == (values.count("batch-tokens") != 0))
    throw UsageError("set the size of a step with one of --batch-tokens and --global-batch");
  if (samples) return int_option(values, "global-batch", 1);
  if (model.input.kind != "tokens")
    throw UsageError("--batch-tokens does not apply to '{}', which reads {}; set --global-batch",
                     model.specification, model.input.kind);
  const long long tokens = tokens_option(values);
  const auto sequence = static_cast<long long>(model.input.shape.front());
  const long long below = tokens / sequence;
  if (below * sequence != tokens)
    throw UsageError("--batch-tokens {}: {} tokens are not a whole number of sequences of {}; set {}{}",
                     text_option(values, "batch-tokens"), tokens, sequence,
                     below > 0 ? fmt::format("{} or ", below * sequence) : "", (below + 1) * sequence);
  if (below > kMostWhole) throw UsageError("--batch-tokens: at most {} sequences", kMostWhole);
  return static_cast<int>(below);
}

/// The training that plans are compared for; none without its options.
std::shared_ptr<ExpectedTraining> whole_training(OptionTexts options, const PlanProblem& problem) {
  if (options.empty() && problem.objective != PlanObjective::kDays) return nullptr;
  if (problem.objective == PlanObjective::kTime)
    throw UsageError("--{} requires --objective days, cost or energy", options.begin()->first);
  options.emplace("checkpoints", "best");
  Result result;
  result.step_time_s = {{1.0}};
  result.configuration = {.model = problem.model,
                          .world_size = problem.ranks,
                          .batch = problem.samples,
                          .cluster = problem.cluster,
                          .options = {{"precision", to_text(problem.precision)}}};
  return std::make_shared<ExpectedTraining>(training_facts(result), training_request(options));
}

PlanProblem problem_of(const po::variables_map& values) {
  PlanProblem problem;
  for (const char* name : {"model", "cluster"})
    if (values.count(name) == 0) throw UsageError("--{} is missing; see --help", name);
  problem.model = text_option(values, "model");
  if (values.count("sequence") != 0)
    problem.model =
        with_setting(problem.model, "sequence", std::to_string(int_option(values, "sequence", 1)));
  for (const auto& [name, value] : Specification::parse("model", problem.model).overrides)
    if (const PlanDimension* searched = find_dimension(name);
        searched != nullptr && searched->kind != DimensionKind::kOption)
      throw UsageError("--model {}: plan searches '{}'; leave it out", problem.model, name);
  problem.cluster = text_option(values, "cluster");
  const Cluster cluster = load_cluster(problem.cluster);
  problem.device = device_of(values, cluster);
  check_places(cluster, device_model(problem.device), 1);
  problem.precision = precision_option(values);
  problem.like = text_option(values, "like");
  const auto places = static_cast<int>(cluster.places().size());
  problem.ranks = values.count("world-size") == 0 ? places : int_option(values, "world-size", 1);
  if (problem.ranks > places)
    throw UsageError("--world-size {}: cluster '{}' has {} places", problem.ranks, cluster.specification,
                     places);
  problem.reserve = percent_option(values, "memory-reserve");
  if (problem.reserve >= 1.0) throw UsageError("--memory-reserve must be below 100%");
  const std::string objective = text_option(values, "objective");
  require_one_of("objective", objective, {"time", "cost", "energy", "days"});
  problem.objective = value_of(kPlanObjectives, "objective", objective);
  if (problem.objective == PlanObjective::kEnergy && device_model(problem.device).power <= Watts(0))
    throw UsageError("--objective energy: the power of device '{}' is not known", problem.device);
  problem.samples = samples_of(values, load_model(problem.model));
  problem.whole = whole_training(train_texts(values), problem);
  return problem;
}

bool is_table(const std::string& path) { return path.ends_with(".csv") || path.ends_with(".jsonl"); }

/// Step time against memory of the replayed plans.
void draw_front(const PlanOutcome& outcome, const PlanProblem& problem, const std::filesystem::path& path,
                bool force) {
  constexpr double kMost = 10.0;  // times the best; slower plans are left out
  Chart sheet;
  sheet.front = Front{};
  sheet.title = fmt::format("Plans for {} on {} of {}", problem.model, problem.ranks, problem.cluster);
  sheet.x_label = "memory of a rank (GiB)";
  sheet.y_label = "step time (s)";
  for (const PlanRecord& record : outcome.plans)
    if (record.forecast && record.forecast->step_s < kMost * outcome.plans.front().forecast->step_s)
      sheet.points.push_back({.panel = "",
                              .series = record.plan.text("strategy"),
                              .label = describe(record.plan),
                              .x = record.forecast->memory_bytes / kGibi,
                              .y = record.forecast->step_s,
                              .fits = record.fits});
  try {
    render(draw_chart(sheet), path, "step time against memory of the replayed plans", force);
  } catch (const CapabilityError& error) {
    std::cerr << "no figure: " << error.what() << '\n';
  }
}

void check_output(const po::variables_map& values, const std::vector<Launcher>& programs) {
  if (values.count("output") == 0) return;
  const std::filesystem::path path = text_option(values, "output");
  const bool force = flag_option(values, "force");
  if (is_table(path.string())) return check_writable(path, force);
  std::vector<std::string> names{"plans.csv", "plans.jsonl", "plan.txt", "pareto.svg"};
  for (const Launcher& program : programs) names.push_back(program.file());
  for (const std::string& name : names)
    if (std::filesystem::exists(path / name)) check_writable(path / name, force);
}

/// The best plan as options of `predict` and of programs that train.
std::string winner_text(PlanModels& models, const Plan& best, const std::vector<LaunchText>& launches) {
  std::string text = fmt::format("\nThe best plan:\n  {}\n", command_of(models.problem(), best));
  for (const LaunchText& launch : launches)
    text += fmt::format("\nfor {}:\n{}", launch.program, launch.text());
  return text;
}

void write_files(const po::variables_map& values, PlanModels& models, const PlanOutcome& outcome,
                 const std::vector<LaunchText>& launches, const std::string& text) {
  if (values.count("output") == 0) return;
  const std::filesystem::path path = text_option(values, "output");
  const bool force = flag_option(values, "force");
  if (is_table(path.string()))
    return write_file(
        path, path.extension() == ".csv" ? plans_csv(outcome) : plans_json_lines(models.problem(), outcome),
        force);
  std::filesystem::create_directories(path);
  write_file(path / "plans.csv", plans_csv(outcome), force);
  write_file(path / "plans.jsonl", plans_json_lines(models.problem(), outcome), force);
  write_file(path / "plan.txt", text, force);
  if (outcome.ranked == 0) return;
  for (const LaunchText& launch : launches) write_file(path / launch.file, launch.text(), force);
  draw_front(outcome, models.problem(), path / "pareto.svg", force);
}

ExitCode run(const po::variables_map& values) {
  const double start_s = wall_clock_s();
  const PlanProblem problem = problem_of(values);
  PlanModels models(problem);
  const std::string only = text_option(values, "only");
  const std::vector<Launcher> programs = launchers(models, only);
  check_output(values, programs);
  PlanBounds bounds(models);
  PlanRequest request{.best = static_cast<std::size_t>(int_option(values, "top", 1)),
                      .most_replays = static_cast<std::size_t>(int_option(values, "replays", 1))};
  std::optional<Launcher> runs;
  if (const std::string program = only.empty() ? models.program() : only; !program.empty())
    request.only = &runs.emplace(program, models);
  if (values.count("time-limit") != 0) request.time_limit_s = budget_option(values, "time-limit");
  if (values.count("against") != 0)
    request.user_plans = load_user_plans(text_option(values, "against"), problem);
  const PlanOutcome outcome = search_plans(models, bounds, request);
  if (problem.whole && outcome.ranked > 0) {
    const double step_s = outcome.plans.front().forecast->step_s;
    checked_progress(step_s / problem.whole->wall_s(outcome.plans.front().plan.number("world-size"), step_s));
  }
  std::string text =
      fmt::format("{}, {} samples a step on {} ranks of {}, {} in {}\n\n{}\n{}", models.whole().specification,
                  problem.samples, problem.ranks, problem.cluster, problem.device, to_text(problem.precision),
                  ranking_text(models, outcome, request.best), counts_text(models, outcome));
  std::vector<LaunchText> launches;
  if (outcome.ranked > 0)
    for (const Launcher& program : programs)
      launches.push_back(program.text(models, outcome.plans.front().plan));
  text += outcome.ranked == 0 ? nothing_fits_text(models, bounds, outcome)
                              : winner_text(models, outcome.plans.front().plan, launches);
  std::cout << text;
  write_files(values, models, outcome, launches, text);
  const double seconds = wall_clock_s() - start_s;
  const auto rate = [](std::size_t plans, double time_s) {
    return short_number(static_cast<double>(plans) / std::max(time_s, 1e-9));
  };
  std::cerr << fmt::format("{}, {} plans per second: bounds of {} and replays of {} per second\n",
                           to_text(Seconds(seconds)), rate(outcome.counts.enumerated, seconds),
                           rate(outcome.counts.enumerated, outcome.bounds_s),
                           rate(outcome.counts.replayed, outcome.replays_s));
  return outcome.ranked == 0 ? ExitCode::kFailed : ExitCode::kDone;
}

const Registration<Command> kPlan{commands(), "plan", {.declare = declare, .run = run}, 22};

}  // namespace
}  // namespace stepcast::plan_command

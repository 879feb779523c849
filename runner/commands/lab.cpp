#include <algorithm>
#include <chrono>
#include <iostream>

#include "core/program.hpp"
#include "core/table.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/lab/namespaces.hpp"
#include "runner/lab/plan.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"

namespace stepcast::lab_command {
namespace {

using Words = std::vector<std::string>;

std::string lab_name(const po::variables_map& values) {
  auto name = text_option(values, "name");
  static_cast<void>(lab_prefix(name));
  return name;
}

LabPlan plan_of(const po::variables_map& values) {
  if (values.count("cluster") == 0)
    throw UsageError(
        "--cluster is missing: a shipped cluster or a YAML file, as star:hosts=4,bandwidth=118MB/s");
  return plan_lab(load_cluster(text_option(values, "cluster")), lab_name(values));
}

/// The lab's links model bandwidth; their only latency is that of veth pairs.
void warn_of_latency(const LabPlan& plan, const Cluster& cluster) {
  const auto slowest = std::ranges::max_element(cluster.links, {}, &Link::latency);
  constexpr Seconds kNoticed{20e-6};
  if (slowest != cluster.links.end() && slowest->latency > kNoticed)
    std::cerr << "stepcast lab: link '" << slowest->name << "' has a latency of " << to_text(slowest->latency)
              << ", which the lab '" << plan.lab << "' does not emulate\n";
}

ExitCode up(const po::variables_map& values, const Words& /*words*/) {
  const LabPlan plan = plan_of(values);
  require_lab_capabilities();
  warn_of_latency(plan, load_cluster(plan.cluster));
  build_lab(plan);
  std::cout << fmt::format("lab '{}': {} hosts, {}, {} links\n", plan.lab, plan.hosts.size(),
                           counted(plan.bridges.size(), "switch"), plan.links.size());
  return ExitCode::kDone;
}

ExitCode down(const po::variables_map& values, const Words& /*words*/) {
  const std::string name = lab_name(values);
  const int spaces = remove_lab(name);
  std::cout << "lab '" << name << "': "
            << (spaces == 0 ? "there was none" : "removed " + std::to_string(spaces) + " network namespaces")
            << '\n';
  return ExitCode::kDone;
}

ExitCode status(const po::variables_map& values, const Words& /*words*/) {
  std::cout << lab_status(lab_name(values));
  return ExitCode::kDone;
}

/// A command of stepcast, or any program, whose file is the first word.
Words program_of(const Words& words) {
  static const Words kPrograms{"run", "bench", "calibrate"};
  if (words.size() < 2)
    throw UsageError(
        "the command for the ranks is missing: stepcast lab run --cluster FILE -- run --strategy ddp ...");
  Words program(words.begin() + 1, words.end());
  if (std::ranges::find(kPrograms, words[1]) != kPrograms.end()) {
    program.insert(program.begin(), command_line().front());
    return program;
  }
  if (words[1].find('/') == std::string::npos) program.front() = find_program(words[1]);
  if (program.front().empty())
    throw UsageError("{}, or a program: none of this name is in PATH",
                     unknown_name("command", words[1], kPrograms));
  return program;
}

/// Starts `program` on the hosts.
ExitCode start_ranks(const std::vector<LabHost>& hosts, int ranks_per_host, const Words& program) {
  constexpr std::chrono::milliseconds kGrace{10'000};
  std::vector<RankStart> ranks = lab_ranks(hosts, ranks_per_host);
  if (program.front() != command_line().front())
    for (RankStart& rank : ranks) rank.program = program.front();
  return launch_ranks(ranks, program, kGrace);
}

ExitCode run_ranks(const po::variables_map& values, const Words& words) {
  const Words program = program_of(words);
  const int ranks_per_host = int_option(values, "ranks-per-host", 1);
  require_lab_capabilities();
  if (values.count("cluster") == 0) return start_ranks(lab_hosts(lab_name(values)), ranks_per_host, program);
  const LabPlan plan = plan_of(values);
  warn_of_latency(plan, load_cluster(plan.cluster));
  const LabScope lab(plan);
  return start_ranks(plan.hosts, ranks_per_host, program);
}

ExitCode run(const po::variables_map& values) {
  static const std::vector<std::pair<std::string, ExitCode (*)(const po::variables_map&, const Words&)>>
      kActions{{"up", up}, {"run", run_ranks}, {"status", status}, {"down", down}};
  const auto& [name, act] = action_option(values, "lab", kActions);
  const Words words = texts_option(values, "words");
  if (words.size() > 1 && name != "run")
    throw UsageError("'lab " + words[0] + "' takes no further words, got '" + words[1] + "'");
  if (name != "run") reject_options(values, {"ranks-per-host"}, "lab " + name);
  if (name != "run" && name != "up") reject_options(values, {"cluster"}, "lab " + name);
  return act(values, words);
}

const Registration<Command> kLab{commands(), "lab", {.run = run}, 50};

}  // namespace
}  // namespace stepcast::lab_command

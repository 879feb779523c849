#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibration/fit.hpp"
#include "core/environment.hpp"
#include "core/file.hpp"
#include "core/program.hpp"
#include "core/table.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/engine/compute_environment.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/measure/bench_collectives.hpp"
#include "runner/measure/host_survey.hpp"
#include "runner/measure/nccl_calibrate.hpp"
#include "runner/measure/probes.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster.hpp"
#include "topologies/paths.hpp"

namespace stepcast::calibrate_command {
namespace {

ProbeSettings settings_of(const po::variables_map& options) {
  constexpr double kSmallestMessage = 4.0, kSmallestArray = 256.0;
  const double largest = bytes_option(options, "max").count();
  ProbeSettings settings;
  settings.message_sizes = bench_sizes(kSmallestMessage, largest, 2.0);
  settings.array_sizes = bench_sizes(kSmallestArray, std::max(largest, kSmallestArray), 4.0);
  settings.prepare_copy = torch_engine().prepare_scaled_copy;
  settings.rounds = int_option(options, "rounds", 1, 1'000'000);
  settings.budget_s = budget_option(options);
  return settings;
}

std::string residuals(const FitQuality& fit) {
  return percent_text(fit.median_absolute_relative_residual) + ", " +
         percent_text(fit.worst_absolute_relative_residual) + " at " + to_text(Bytes(fit.worst_at_bytes));
}

void print_messages(const Calibration& calibration) {
  for (const PathCost& path : calibration.paths) {
    std::cout << "messages, " << path.path_class << " (fitted, with the spread of the samples)\n";
    Table table({"size", "latency", "p10..p90", "gap", "bandwidth each way", "cpu per end"});
    for (const SampleSet& set : calibration.samples) {
      if (set.probe != "ping_pong" || set.path_class != path.path_class) continue;
      const Bytes size(set.bytes);
      table.add(
          {to_text(size), to_text(path.latency.at(size)),
           to_text(Seconds(quantile(set.time_s, 0.1))) + " .. " + to_text(Seconds(quantile(set.time_s, 0.9))),
           to_text(path.gap.at(size)), to_text(size / (2.0 * path.gap.at(size))),
           to_text(path.cpu.at(size))});
    }
    std::cout << table.text();
    std::cout << "notice of a receive: " << to_text(Seconds(path.notice_s))
              << "\nCPU time to wake a receiver up: " << to_text(Seconds(path.wake_cpu_s))
              << "\nsamples: latency " << path.latency_fit.samples << ", gap " << path.gap_fit.samples
              << "\nresiduals, median and worst: latency " << residuals(path.latency_fit) << "; gap "
              << residuals(path.gap_fit) << "\n\n";
  }
}

/// Prints nothing for a single host.
void print_hosts(const Calibration& calibration) {
  if (calibration.job.hosts.size() < 2) return;
  Table table({"host", "ranks", "compute speed", "bandwidth", "latency", "clock", "known to", "slow"});
  for (const HostCost& host : calibration.job.hosts) {
    const std::string slow =
        std::string(host.slow_network ? "network " : "") + (host.slow_compute ? "compute" : "");
    const bool own_clock = host.clock_error_s > 0.0;
    table.add({host.name, joined(host.ranks, ","), percent_text(host.compute_speed, 0),
               to_text(BytesPerSecond(host.pair_bandwidth_bytes_per_s)),
               to_text(Seconds(host.pair_latency_s)),
               own_clock ? to_text(Seconds(host.clock_offset_s)) : "rank 0's",
               own_clock ? to_text(Seconds(host.clock_error_s)) : "", slow});
  }
  std::cout << "hosts (medians over the pairs of each)\n" << table.text();
  if (const auto all = all_at_once(calibration))
    std::cout << "all " << all->hosts << " hosts at once " << to_text(all->together)
              << ", expected from pairs " << to_text(all->promised) << '\n';
  std::cout << '\n';
}

/// Numbers of samples, and the machine meanwhile.
void print_sampling(const Calibration& calibration) {
  std::size_t kept = 0, aside = 0;
  for (const SampleSet& set : calibration.samples) kept += set.time_s.size();
  for (const SampleSet& set : calibration.rejected) aside += set.time_s.size();
  std::cout << "samples                   " << kept << " of " << calibration.sampling.sets << " costs in "
            << to_text(Seconds(calibration.sampling.spent_s)) << ", " << aside
            << " rejected for interference\n"
            << "machine                   " << describe(calibration.machine_speed()) << '\n';
}

void print_host(const Calibration& calibration) {
  Table arrays({"array", "reduce", "rate", "copy", "rate"});
  for (const SampleSet& set : calibration.samples) {
    if (set.probe != "reduce") continue;
    const Bytes size(set.bytes);
    const Seconds reduce = calibration.reduce.cost.at(size), copy = calibration.copy.cost.at(size);
    arrays.add({to_text(size), to_text(reduce), to_text(size / reduce), to_text(copy), to_text(size / copy)});
  }
  const SharingCost& sharing = calibration.sharing;
  std::cout << arrays.text() << "\ncall overhead             "
            << to_text(Seconds(calibration.call_overhead_s)) << "\nmemory, one rank / all    "
            << to_text(BytesPerSecond(sharing.memory_bandwidth_one_bytes_per_s)) << " / "
            << to_text(BytesPerSecond(sharing.memory_bandwidth_all_bytes_per_s))
            << "\nrate beside compute       " << sharing.rate_beside_compute << "\nrate beside communication "
            << sharing.rate_beside_communication << "\nnoise                     "
            << percent_text(calibration.sampling.noise) << '\n';
  print_sampling(calibration);
  for (const std::string& warning : calibration.warnings) std::cout << "! " << warning << '\n';
}

void report(const po::variables_map& options, const Calibration& calibration) {
  if (write_output(options, [&] { return to_file_text(calibration); })) return;
  print_hosts(calibration);
  print_messages(calibration);
  print_host(calibration);
}

/// Bandwidth between the two measured ranks, by path class, from the cluster; empty without one.
std::map<std::string, BytesPerSecond> wires(const std::optional<Cluster>& cluster, int world_size,
                                            const std::vector<ProbedPair>& pairs) {
  std::map<std::string, BytesPerSecond> result;
  if (!cluster) return result;
  const std::vector<int> nodes = place_ranks(*cluster, world_size);
  const Paths paths(*cluster);
  for (const ProbedPair& pair : pairs)
    for (const Hop& hop : paths.between(nodes[pair.ranks.first], nodes[pair.ranks.second])) {
      const BytesPerSecond bandwidth = cluster->links[hop.link].bandwidth;
      const auto [least, first] = result.try_emplace(pair.path_class, bandwidth);
      least->second = std::min(least->second, bandwidth);
    }
  return result;
}

/// Prints this command as a Slurm job, which starts the ranks.
ExitCode print_job_script(const po::variables_map& options) {
  std::vector<std::string> words =
      without_options(command_line(), {"--nodes", "--ntasks-per-node", "--nproc"}, {"--print-sbatch"});
  words.front() = "stepcast";
  if (options.count("output") == 0) words.insert(words.end(), {"-o", "cluster.calibration.json"});
  const char* const tasks = options.count("ntasks-per-node") != 0 ? "ntasks-per-node" : "nproc";
  const auto lines = transformed(command_page("calibrate").items("job_script"), &YamlNode::text);
  std::cout << fmt::format(fmt::runtime(joined(lines, "\n") + "\n"),
                           fmt::arg("nodes", int_option(options, "nodes", 1)),
                           fmt::arg("tasks", int_option(options, tasks, 1)),
                           fmt::arg("command", joined(transformed(words, shell_word), " ")));
  return ExitCode::kDone;
}

/// Measures on one rank; complete at rank 0.
Calibration measure(const po::variables_map& options, const std::optional<Cluster>& cluster,
                    ProbeSettings settings, RankSession& session) {
  Calibration calibration;
  calibration.context = make_rank_context(kCalibrationSchema, options, session);
  calibration.context.threads = 1;
  torch_engine().set_compute_threads(1);
  calibration.job.backend = text_option(options, "backend");
  calibration.job.world_size = session.ranks.world_size;
  calibration.job.collectives_in_flight = session.backend->collectives_in_flight();
  const ClockOffset before = compare_with_rank_0(session);
  const HostSurvey survey = survey_hosts(session, cluster);
  choose_ranks(survey, session.place.hosts, settings);
  calibration.job.ranks_on_machine = static_cast<int>(settings.sharing_ranks.size());
  const std::optional<double> lab_cores = environment_number(kLabCoresVariable);
  settings.shaped_links = lab_cores.has_value();
  OnSample progress = rank_progress(session, "calibrate", settings.rounds + 1);
  ProbedSamples samples = run_probes(session, backends().find(calibration.job.backend), settings,
                                     [&, turn = 0](const std::string& now) mutable {
                                       if (turn++ == settings.rounds + 1)  // repetitions have no known number
                                         progress = rank_progress(session, "calibrate, repeating", 0);
                                       progress(now);
                                     });
  calibration.samples = std::move(samples.sets);
  calibration.sampling = samples.sampling;
  reject_interference(calibration);
  const ClockLine clock(before, compare_with_rank_0(session));
  calibration.job.hosts = host_costs(session, survey, clock);
  if (lab_cores) calibration.cluster.shared_cores = static_cast<int>(*lab_cores);
  if (calibration.cluster.shared_cores > 0 && cluster)
    calibration.cluster.slowest_shaped_link_bytes_per_s = slowest_link(*cluster).count();
  fit_calibration(calibration, wires(cluster, calibration.job.world_size, settings.pairs));
  return calibration;
}

/// Calibrates NCCL's collectives on the GPUs of this host.
ExitCode run_nccl(const po::variables_map& options) {
  reject_options(options, {"budget", "cluster"}, "--backend nccl");
  constexpr double kSmallest = 512.0;
  BenchSettings settings;
  settings.collectives = kCalibratedCollectives;
  settings.sizes = bench_sizes(kSmallest, bytes_option(options, "max").count(), 2.0);
  settings.rounds = int_option(options, "rounds", 1, 1'000'000);
  if (planned_world_size(options) < 2)
    throw UsageError("'calibrate --backend nccl' needs at least 2 ranks: --nproc 2");
  check_output(options);
  return run_on_ranks(options, [&](RankSession& session) {
    const std::unique_ptr<DeviceStream> device = device_of_backend(options, session);
    settings.device = device.get();
    const int samples = bench_samples(settings, session.ranks.world_size);
    NcclMeasured measured = calibrate_nccl(session, settings, text_option(options, "device"),
                                           rank_progress(session, "calibrate", samples));
    if (session.ranks.rank != 0) return ExitCode::kDone;
    measured.calibration.context = make_rank_context(kCalibrationSchema, options, session);
    measured.calibration.context.libraries["device"] = device->device();
    if (!write_output(options, [&] { return to_file_text(measured.calibration); }))
      std::cout << fit_text(measured.calibration.nccl, measured.samples);
    for (const std::string& warning : measured.calibration.warnings) std::cerr << "! " << warning << '\n';
    return ExitCode::kDone;
  });
}

ExitCode run(const po::variables_map& options) {
  const bool nccl = !find_backend(text_option(options, "backend")).add;
  if (nccl && !flag_option(options, "print-sbatch")) return run_nccl(options);
  if (!nccl && !options["device"].defaulted()) throw UsageError("--device requires --backend nccl");
  const ProbeSettings settings = settings_of(options);
  std::optional<Cluster> cluster;
  if (options.count("cluster") != 0) cluster = load_cluster(text_option(options, "cluster"));
  if (flag_option(options, "print-sbatch")) return print_job_script(options);
  reject_options(options, {"nodes", "ntasks-per-node"}, "calibrate without --print-sbatch");
  planned_world_size(options);
  check_output(options);
  return run_on_ranks(options, [&](RankSession& session) {
    Calibration calibration = measure(options, cluster, settings, session);
    if (session.ranks.rank != 0) return ExitCode::kDone;
    if (cluster) calibration.lineage.push_back(make_ancestor("cluster", cluster->path));
    report(options, calibration);
    return ExitCode::kDone;
  });
}

const Registration<Command> kCalibrate{commands(), "calibrate", {.run = run}, 30};

}  // namespace
}  // namespace stepcast::calibrate_command

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "calibration/fit.hpp"
#include "runner/bench_collectives.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/probes.hpp"
#include "runner/torch/compute_environment.hpp"
#include "runner/torch/executor.hpp"
#include "sim/core/file.hpp"
#include "topologies/cluster.hpp"
#include "topologies/paths.hpp"

namespace stepcast {
namespace {

void declare(po::options_description& options) {
  options.add_options()                                                             //
      ("max", po::value<std::string>()->default_value("64MiB"), "largest message")  //
      ("cluster", po::value<std::string>(),
       "the cluster the ranks run on: what its links cost is taken out of the messages' costs")  //
      ("rounds", po::value<int>()->default_value(9), "samples per probe, interleaved")           //
      ("output,o", po::value<std::string>(), "file for the calibration")                         //
      ("json", po::bool_switch(), "print the calibration as JSON")                               //
      ("force", po::bool_switch(), "overwrite an existing file");
  declare_rank_options(options, 2);
}

ProbeSettings settings_of(const po::variables_map& options) {
  constexpr double kSmallestMessage = 4.0;
  constexpr double kSmallestArray = 256.0;
  const double largest = parse_bytes(options["max"].as<std::string>(), "--max").count();
  ProbeSettings settings;
  settings.message_sizes = bench_sizes(kSmallestMessage, largest, 2.0);
  settings.array_sizes = bench_sizes(kSmallestArray, std::max(largest, kSmallestArray), 4.0);
  settings.prepare_copy = prepare_scaled_copy;
  settings.rounds = options["rounds"].as<int>();
  if (settings.rounds < 1) throw UsageError("--rounds must be at least 1");
  return settings;
}

std::string percent(double fraction) {
  std::ostringstream text;
  text.precision(2);
  text << 100.0 * fraction << " %";
  return text.str();
}

void print_messages(const Calibration& calibration) {
  for (const PathCost& path : calibration.paths) {
    std::cout << "messages, " << path.path_class << " (fitted; the spread of the samples beside it)\n";
    Table table({"size", "latency", "p10..p90", "gap", "bandwidth each way", "cpu per end"});
    for (const SampleSet& set : calibration.samples) {
      if (set.probe != "ping_pong") continue;
      const Bytes size(set.bytes);
      table.add(
          {to_text(size), to_text(path.latency.at(size)),
           to_text(Seconds(quantile(set.time_s, 0.1))) + " .. " + to_text(Seconds(quantile(set.time_s, 0.9))),
           to_text(path.gap.at(size)), to_text(size / (2.0 * path.gap.at(size))),
           to_text(path.cpu.at(size))});
    }
    std::cout << table.text();
    std::cout << "notice of a receive: " << to_text(Seconds(path.notice_s)) << '\n';
    std::cout << "residuals, median and worst: latency "
              << percent(path.latency_fit.median_absolute_relative_residual) << ", "
              << percent(path.latency_fit.worst_absolute_relative_residual) << " at "
              << to_text(Bytes(path.latency_fit.worst_at_bytes)) << "; gap "
              << percent(path.gap_fit.median_absolute_relative_residual) << ", "
              << percent(path.gap_fit.worst_absolute_relative_residual) << " at "
              << to_text(Bytes(path.gap_fit.worst_at_bytes)) << "\n\n";
  }
}

void print_host(const Calibration& calibration) {
  Table arrays({"array", "reduce", "rate", "copy", "rate"});
  for (const SampleSet& set : calibration.samples) {
    if (set.probe != "reduce") continue;
    const Bytes size(set.bytes);
    const Seconds reduce = calibration.reduce.at(size);
    const Seconds copy = calibration.copy.at(size);
    arrays.add({to_text(size), to_text(reduce), to_text(size / reduce), to_text(copy), to_text(size / copy)});
  }
  const SharingCost& sharing = calibration.sharing;
  std::cout << arrays.text() << "\ncall overhead             " << to_text(calibration.call_overhead)
            << "\nmemory, one rank / all    "
            << to_text(BytesPerSecond(sharing.memory_bandwidth_one_bytes_per_s)) << " / "
            << to_text(BytesPerSecond(sharing.memory_bandwidth_all_bytes_per_s))
            << "\nrate beside compute       " << sharing.rate_beside_compute << "\nrate beside communication "
            << sharing.rate_beside_communication << "\nnoise                     "
            << percent(calibration.noise) << '\n';
  for (const std::string& verdict : calibration.verdicts) std::cout << "! " << verdict << '\n';
}

void report(const po::variables_map& options, const Calibration& calibration) {
  const std::string json = to_file_text(calibration);
  if (options.count("output") != 0)
    write_file(options["output"].as<std::string>(), json, options["force"].as<bool>());
  if (options["json"].as<bool>()) {
    std::cout << json;
    return;
  }
  print_messages(calibration);
  print_host(calibration);
}

/// Bandwidth between the first two ranks; 0 where it is not known, or they are on one host.
BytesPerSecond wire_of(const po::variables_map& options) {
  if (options.count("cluster") == 0) return BytesPerSecond(0);
  const Cluster cluster = load_cluster(options["cluster"].as<std::string>());
  const std::vector<int> nodes = place_ranks(cluster, planned_world_size(options));
  BytesPerSecond least(0);
  if (nodes.size() < 2 || nodes[0] == nodes[1]) return least;
  for (const Hop& hop : Paths(cluster).between(nodes[0], nodes[1])) {
    const BytesPerSecond bandwidth = cluster.links[static_cast<std::size_t>(hop.link)].bandwidth;
    if (least == BytesPerSecond(0) || bandwidth < least) least = bandwidth;
  }
  return least;
}

ExitCode run(const po::variables_map& options) {
  const ProbeSettings settings = settings_of(options);
  const BytesPerSecond wire = wire_of(options);
  if (options.count("output") != 0)
    check_writable(options["output"].as<std::string>(), options["force"].as<bool>());
  return run_on_ranks(options, [&](RankSession& session) {
    const bool first = session.ranks.rank == 0;
    Calibration calibration;
    calibration.context = make_rank_context("stepcast.calibration/1", options, session);
    calibration.context.threads = 1;
    set_compute_threads(1);
    calibration.backend = options["backend"].as<std::string>();
    calibration.world_size = session.ranks.world_size;
    calibration.collectives_in_flight = session.backend->collectives_in_flight();
    std::optional<Progress> progress;
    if (first) progress.emplace("calibrate", settings.rounds + 1);
    calibration.samples = run_probes(*session.backend, backends().find(calibration.backend), settings,
                                     [&](const std::string& now) {
                                       if (progress) progress->advance(now);
                                     });
    progress.reset();
    const std::vector<std::string> hosts = gather_text(*session.backend, calibration.context.host_name);
    if (!first) return ExitCode::kDone;
    if (const auto cores = process_environment("STEPCAST_LAB_CORES"))
      calibration.lab.cores = std::stoi(*cores);
    const bool here = calibration.world_size == 1 || (hosts[1] == hosts[0] && wire == BytesPerSecond(0));
    fit_calibration(calibration, here ? "same_host" : "remote", wire);
    report(options, calibration);
    return ExitCode::kDone;
  });
}

const Registration<Command> kCalibrate{
    commands(),
    {.name = "calibrate",
     .description =
         "Measures what messages, reductions, copies and sharing cost on this machine, and fits it.",
     .thing = {.declare = declare,
               .run = run,
               .positional = "",
               .usage = "stepcast calibrate --nproc N -o FILE [options]",
               .group = "Measure"},
     .order = 30}};

}  // namespace
}  // namespace stepcast

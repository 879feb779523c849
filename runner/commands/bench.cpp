#include "records/bench.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "runner/commands/rank_options.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/measure/bench_beside.hpp"
#include "runner/measure/copy_bench.hpp"
#include "sim/cli/option.hpp"
#include "sim/collectives/algorithm.hpp"

namespace stepcast::bench_command {
namespace {

void declare(po::options_description& options) {
  declare_options(options, "bench",
                  {{"collectives", joined(bench_names(), " ")}, {"algorithms", describe_algorithms()}});
}

/// Sizes and samples. \param largest default of --max
BenchSettings settings_of(const po::variables_map& options, const std::string& largest) {
  BenchSettings settings;
  const Bytes max = options.count("max") != 0 ? bytes_option(options, "max") : parse_bytes(largest, "--max");
  const bool large = options.count("beside-compute") != 0 && options["min"].defaulted();
  const Bytes min = large ? parse_bytes("1MiB", "--min") : bytes_option(options, "min");
  settings.sizes = bench_sizes(min.count(), max.count(), options["factor"].as<double>());
  settings.rounds = int_option(options, "rounds", 1, 1'000'000);
  if (!options["iterations"].defaulted()) settings.iterations = int_option(options, "iterations", 1);
  return settings;
}

OnSample progress_of(const RankSession& session, const BenchSettings& settings) {
  return rank_progress(session, "bench", bench_samples(settings, session.ranks.world_size));
}

/// Table of --beside-compute.
void print_beside(const Bench& bench) {
  if (bench.beside.empty()) return;
  Table table(
      {"collective", "size (B)", "alone", "slower by", bench.beside.front().compute, "slower by", "rounds"});
  for (const BesideRow& row : bench.beside)
    table.add(
        {row.collective, fmt::format("{:.0f}", row.message_bytes),
         to_text(Seconds(median(row.collective_alone_s))),
         percent_text(median(row.collective_slowdown) - 1.0), to_text(Seconds(median(row.compute_alone_s))),
         percent_text(median(row.compute_slowdown) - 1.0), std::to_string(row.compute_slowdown.size())});
  std::cout << "# slowdown while both run concurrently (medians)\n" << table.text();
}

/// The report of nccl-tests.
void print_table(const Bench& bench) {
  std::cout << "# stepcast bench: " << bench.backend << ", ";
  if (bench.context.libraries.contains("device"))
    std::cout << bench.context.libraries.at("device") << ", " << bench.context.cpu_model << '\n';
  else
    std::cout << bench.world_size << " ranks, " << bench.context.cpu_model
              << "; size is the total array, time that of the slowest rank\n";
  const long long wrong = sum_of(bench.rows, &BenchRow::wrong);
  const double bus = sum_of(bench.rows, [&](const BenchRow& row) {
    return algbw_bytes_per_s(row) * bus_factor(row.collective, bench.world_size) /
           static_cast<double>(bench.rows.size());
  });
  std::cout << bench_table(bench);
  std::cout << "# Out of bounds values : " << wrong << (wrong == 0 ? " OK" : " FAILED") << '\n';
  std::cout << "# Avg bus bandwidth    : " << fmt::format("{:.4f}", bus / kGiga) << '\n';
  print_beside(bench);
  for (const std::string& warning : bench.context.warnings) std::cout << "# Warning: " << warning << '\n';
}

ExitCode report(const po::variables_map& options, const Bench& bench) {
  if (!write_output(options, [&] { return to_file_text(bench); })) print_table(bench);
  require_right(bench.rows);
  return ExitCode::kDone;
}

/// \throws CapabilityError if this build cannot drive GPUs, or this machine has none
ExitCode run_copies(const po::variables_map& options) {
  reject_options(options, {"collectives", "nproc", "backend", "algorithm", "beside-compute"}, "--copies");
  BenchSettings settings = settings_of(options, "256MiB");
  settings.collectives = list_option(options, "copies");
  check_output(options);
  const auto& factory = find_device_library("--copies");
  const auto copies = factory.value.make_copies();
  CopyBench copy_bench(*copies, options["gpu"].as<int>(), *std::ranges::max_element(settings.sizes));
  Bench bench;
  bench.context = make_run_context(kBenchSchema, command_line());
  add_library(bench.context, factory.value.library);
  bench.context.libraries["device"] = copy_bench.device();
  bench.context.warnings = copy_bench.warnings();
  bench.backend = factory.name;
  bench.world_size = 1;
  if (settings.collectives.empty()) settings.collectives = copy_bench.kinds();
  return run_in_one_process(options, "'bench --copies'", [&](RankSession& session) {
    const auto cases = static_cast<int>(settings.collectives.size() * settings.sizes.size());
    bench.rows =
        bench_copies(session, copy_bench, settings, rank_progress(session, "bench", cases * settings.rounds));
    return report(options, bench);
  });
}

std::vector<BesideRow> measure_beside(RankSession& session, const BenchSettings& settings, int edge) {
  const Precision precision = Precision::parse("bf16");
  const Computing computing{fmt::format("multiplication of {} x {}, bf16", edge, edge),
                            torch_engine().prepare_product(precision, edge, *settings.device)};
  return bench_beside(session, settings, computing, progress_of(session, settings));
}

ExitCode run(const po::variables_map& options) {
  if (options.count("copies") != 0) return run_copies(options);
  reject_options(options, {"gpu"}, "bench without --copies");
  BenchSettings settings = settings_of(options, "64MiB");
  settings.collectives = list_option(options, "collectives");
  check_names("collective", settings.collectives, bench_names());
  const bool beside = options.count("beside-compute") != 0;
  if (beside && find_backend(text_option(options, "backend")).add)
    throw UsageError("--beside-compute requires --backend nccl; for CPUs 'stepcast calibrate' measures it");
  if (beside) static_cast<void>(int_option(options, "beside-compute", 16, 65536));
  if (settings.collectives.empty())
    settings.collectives = beside ? std::vector<std::string>{"all_reduce"} : bench_names();
  if (planned_world_size(options) < 2) throw UsageError("'bench' needs at least 2 ranks: --nproc 2");
  check_output(options);
  return run_on_ranks(options, [&](RankSession& session) {
    const std::unique_ptr<DeviceStream> device = device_of_backend(options, session);
    settings.device = device.get();
    Bench bench;
    bench.context = make_rank_context(kBenchSchema, options, session);
    bench.backend = text_option(options, "backend");
    bench.world_size = session.ranks.world_size;
    bench.rows = bench_collectives(session, settings, progress_of(session, settings));
    if (beside) bench.beside = measure_beside(session, settings, options["beside-compute"].as<int>());
    for (const auto& [kind, name] : session.place.algorithms)
      for (BenchRow& row : bench.rows)
        if (row.collective == to_text(kind)) row.algorithm = name;
    return session.ranks.rank == 0 ? report(options, bench) : ExitCode::kDone;
  });
}

const Registration<Command> kBench{commands(), "bench", {.declare = declare, .run = run}, 20};

}  // namespace
}  // namespace stepcast::bench_command

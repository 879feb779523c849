#pragma once

#include <string>
#include <vector>

#include "core/json.hpp"
#include "records/machine_state.hpp"
#include "records/result.hpp"
#include "records/run_context.hpp"

/// Times of single collectives, or of copies between a host and its GPUs, over message sizes, as nccl-tests
/// reports them; measured by `stepcast bench`, predicted by `stepcast predict --collectives`.
namespace stepcast {

inline constexpr const char* kBenchSchema = "stepcast.bench/2";

/// Names of benchmarks of communication: `send_recv`, half the round trip of a ping-pong between ranks 0 and
/// 1 whose receives are posted beforehand, and every kind of collective.
const std::vector<std::string>& bench_names();

struct BenchRow {
  std::string collective{};      ///< of `bench_names`; a copy of one process: `copy_h2d_pinned`,
                                 ///< `copy_h2d_pageable`, `copy_d2h_pinned`, `copy_d2h_pageable`, `copy_p2p`
  double message_bytes = 0.0;    ///< the total array, never the shard
  std::vector<double> time_s{};  ///< samples: back-to-back iterations, time per iteration, slowest rank
  std::vector<double> cpu_s{};   ///< CPU time per iteration and rank; empty if not measured
  long long wrong = 0;           ///< elements that differed from the expected result
  /// Algorithm chosen instead of the library's own; predictions for NCCL: its choice, `ring/Simple 12x30
  /// GB/s`; otherwise ""
  std::string algorithm{};
  MachineLog machine{};  ///< by sample, of the slowest rank; empty in predictions

  [[nodiscard]] double median_time_s() const { return median(time_s); }
};

/// A collective and computing, concurrent on the devices of its ranks. With D the duration of one of them, o
/// the time in which both ran, and T its duration alone, its slowdown refers to the time in which both ran:
///
///     slowdown = o / (T - (D - o))        1: not slowed down
struct BesideRow {
  std::string collective{};
  double message_bytes = 0.0;
  std::string compute{};  ///< the repeated computation: `multiplication of 4096 x 4096, bf16`
  /// Samples of the slowest rank: one computation and one call alone, and both slowdowns
  std::vector<double> compute_alone_s{}, collective_alone_s{}, compute_slowdown{}, collective_slowdown{};
};

struct Bench {
  RunContext context;
  Origin origin = Origin::kMeasured;
  std::vector<Ancestor> lineage;
  std::string backend = "gloo";
  int world_size = 2;
  std::vector<BenchRow> rows;
  std::vector<BesideRow> beside;  ///< of `bench --beside-compute`

  /// First key whose value is impossible; "" if all are valid.
  [[nodiscard]] std::string problem() const;
};

/// Sizes smallest, smallest * factor, ... up to largest. \param most what a run has memory for \throws
/// UsageError that names --min, --max and --factor if there are none, or too large ones
std::vector<std::size_t> bench_sizes(double smallest, double largest, double factor,
                                     Bytes most = Bytes(64.0 * kGibi));

/// Bytes of the message that a bench of `bytes` sends: whole floats. Where ranks have parts of it, parts are
/// multiples of 16 B, rounded down as in nccl-tests, or if nothing remains whole floats, rounded up.
/// \param collective a name of `bench_names`
std::size_t message_bytes(const std::string& collective, std::size_t bytes, int ranks);
/// Messages of the sizes; those that are rounded to the same are one message.
std::vector<std::size_t> message_sizes(const std::string& collective, const std::vector<std::size_t>& sizes,
                                       int ranks);

/// algbw = S / t.
double algbw_bytes_per_s(const BenchRow& row);
/// busbw / algbw of a row: as CollectiveTraits; 1 for send_recv and copies.
double bus_factor(const std::string& collective, int world_size);

/// The table of nccl-tests, with the spread of measured samples, and algorithms if they are known.
std::string bench_table(const Bench& bench);

STEPCAST_JSON(Bench)

Bench load_bench(const std::string& path);

}  // namespace stepcast

#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/json.hpp"

/// How, where and by which program a file was made. Every machine-written file starts with its context.
namespace stepcast {

/// The GPU that computed, as read from its driver during the measurement. Numbers are 0 if the driver reports
/// none.
struct GpuState {
  std::string name;                                        ///< `NVIDIA H100 80GB HBM3`; "" if no GPU computed
  std::string driver;                                      ///< version
  int readings = 0;                                        ///< five per second
  double sm_clock_mhz = 0.0;                               ///< multiprocessors, median
  double lowest_clock_mhz = 0.0, highest_clock_mhz = 0.0;  ///< lowest reading, and highest possible
  double memory_clock_mhz = 0.0;                           ///< median
  double power_w = 0.0, temperature_c = 0.0;               ///< highest readings
  std::string throttled;                                   ///< reasons: `software power cap`
};

/// The program that wrote a file.
struct StepcastVersion {
  std::string version, git_revision;
  /// `0.3.0 (4fa1781)`
  [[nodiscard]] std::string text() const { return version + " (" + git_revision + ")"; }
};

/// Placement of the threads of ranks; both "" if it does not apply.
struct ThreadPlacement {
  std::string binding;     ///< `core`: each rank has cores of its own; `none`: ranks share them
  std::string scheduling;  ///< `batch`, `normal`
};

struct RunContext {
  std::string schema;  ///< `stepcast.trace/1`
  std::string command_line;
  StepcastVersion stepcast{};
  std::string date;  ///< UTC, ISO 8601
  std::string host_name, cpu_model;
  int cores = 0;              ///< of this machine
  double load_average = 0.0;  ///< over the last minute, when the command started
  std::string blas;  ///< `OpenBLAS 0.3.21 (pthread)`, `reference BLAS 3.11.0`; "" in programs without BLAS
  int threads = 0;   ///< compute threads per rank; 0 if nothing was computed
  unsigned seed = 0;
  ThreadPlacement placement{};
  GpuState gpu{};
  std::map<std::string, std::string> libraries;  ///< name → version
  std::vector<std::string> warnings;             ///< reasons to doubt the numbers in this file
};

/// Schema of a JSON file of stepcast, from its first part: `stepcast.result/3`; "" of other files.
std::string schema_of(const std::string& head);

/// An input of a file: role, path, SHA-1 of its bytes, and its own inputs.
struct Ancestor {
  std::string role;  ///< `trace`, `calibration`, `cluster`, `model`
  std::string path, sha1;
  std::vector<std::string> ancestors;  ///< SHA-1 of all its inputs, transitively
};

/// Describes a file as an input: its hash and, if it has a lineage, all its inputs.
Ancestor make_ancestor(const std::string& role, const std::filesystem::path& path);

/// \throws InputError that names the first input of the file `path` that has changed since; missing ones pass
void check_unchanged(const std::string& path, const std::vector<Ancestor>& lineage);

/// `2026-03-01T12:00:00`, UTC.
std::string utc_text(std::time_t time);

/// Context of this machine and process. The caller adds libraries and BLAS.
RunContext make_run_context(const std::string& schema, const std::vector<std::string>& command_line);

/// Key of RunContext::libraries whose value names the processor that OpenBLAS's kernels were written for.
inline constexpr const char* kBlasKernels = "BLAS kernels";

/// The BLAS that `libblas.so.3` resolves to on this machine.
struct BlasIdentity {
  std::string description;    ///< `OpenBLAS (/usr/lib/.../openblas-pthread/libblas.so.3)`
  bool is_reference = false;  ///< the slow reference BLAS
};
BlasIdentity identify_blas();

STEPCAST_JSON(RunContext)
STEPCAST_JSON(Ancestor)

}  // namespace stepcast

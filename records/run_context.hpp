#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// The circumstances under which a file was made. Every machine-written file starts with its context.
namespace stepcast {

/// The GPU that computed, as its driver saw it meanwhile; numbers are 0 where it says nothing.
struct GpuState {
  std::string name;           ///< `NVIDIA H100 80GB HBM3`; "" where no GPU computed
  std::string driver;         ///< version
  int readings = 0;           ///< five per second
  double sm_clock_mhz = 0.0;  ///< of the multiprocessors, median
  double lowest_clock_mhz = 0.0, highest_clock_mhz = 0.0;  ///< seen, and possible
  double memory_clock_mhz = 0.0;
  double power_w = 0.0, temperature_c = 0.0;  ///< the most
  std::string throttled;                      ///< what slowed it down: `software power cap`
};

struct RunContext {
  std::string schema;  ///< `stepcast.trace/1`
  std::string command_line;
  std::string stepcast_version;
  std::string git_revision;
  std::string date;  ///< UTC, ISO 8601
  std::string host_name;
  std::string cpu_model;
  int cores = 0;              ///< of this machine
  double load_average = 0.0;  ///< of the last minute, when the command started
  std::string blas;  ///< `OpenBLAS 0.3.21 (pthread)`, `reference BLAS 3.11.0`; "" in programs without BLAS
  int threads = 0;   ///< compute threads per rank; 0 where nothing was computed
  unsigned seed = 0;
  std::string binding;     ///< `core`: each rank has cores of its own; `none`: ranks share them; "" where it
                           ///< means nothing
  std::string scheduling;  ///< of the threads: `batch`, `normal`; "" where it means nothing
  GpuState gpu{};
  std::map<std::string, std::string> libraries;  ///< name → version
  std::vector<std::string> warnings;             ///< what makes the numbers in this file doubtful
};

/// An input of a file: what it was, where it was, the SHA-1 of its bytes, and the inputs that it was made
/// from.
struct Ancestor {
  std::string role;  ///< `trace`, `calibration`, `cluster`, `model`
  std::string path;
  std::string sha1;
  std::vector<std::string> ancestors;  ///< SHA-1 of everything it descends from, transitively
};

/// Describes a file as an input: its hash and, when it is one of ours, everything it descends from.
Ancestor make_ancestor(const std::string& role, const std::filesystem::path& path);

/// Fills in what can be known about this machine and process; libraries and BLAS are added by who uses them.
RunContext make_run_context(const std::string& schema, const std::vector<std::string>& command_line);

/// The entry of RunContext::libraries that says for which processor OpenBLAS computes.
inline constexpr const char* kBlasKernels = "BLAS kernels";

/// Which BLAS `libblas.so.3` resolves to on this machine, and whether it is the slow reference BLAS.
struct BlasIdentity {
  std::string description;  ///< `OpenBLAS (/usr/lib/.../openblas-pthread/libblas.so.3)`
  bool is_reference = false;
};
BlasIdentity identify_blas();

void to_json(nlohmann::json& json, const GpuState& state);
void from_json(const nlohmann::json& json, GpuState& state);
void to_json(nlohmann::json& json, const RunContext& context);
void from_json(const nlohmann::json& json, RunContext& context);
void to_json(nlohmann::json& json, const Ancestor& ancestor);
void from_json(const nlohmann::json& json, Ancestor& ancestor);

}  // namespace stepcast

#include "runner/engine/compute_environment.hpp"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/program.hpp"
#include "core/ranges.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/launch/torch_library.hpp"

namespace stepcast {
namespace {

/// Whether something had to change.
bool set_thread_environment(int threads) {
  const std::string wanted = std::to_string(threads);
  bool changed = false;
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    if (process_environment(name) == wanted) continue;
    ::setenv(name, wanted.c_str(), 1);
    changed = true;
  }
  return changed;
}

/// A word of the line `flags` of /proc/cpuinfo; false on processors that have no such line.
bool processor_has(const std::string& feature) {
  for (const std::string& line : split(read_file("/proc/cpuinfo")))
    if (line.starts_with("flags")) return (line + ' ').find(' ' + feature + ' ') != std::string::npos;
  return false;
}

}  // namespace

BlasIdentity loaded_blas() {
  using GetVersion = void (*)(char* text, int size);
  const auto get_version = reinterpret_cast<GetVersion>(torch_symbol("MKL_Get_Version_String"));
  if (get_version == nullptr) return identify_blas();
  // `Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for ...`
  std::string text(256, '\0');
  get_version(text.data(), static_cast<int>(text.size()));
  constexpr std::string_view kMark = "Version ";
  const std::size_t start = text.find(kMark);
  if (start == std::string::npos) return {"MKL (in LibTorch)", false};
  const std::string version = text.substr(start + kMark.size());
  return {"MKL " + version.substr(0, version.find('-')) + " (in LibTorch)", false};
}

BlasKernels blas_kernels() {
  using GetName = const char* (*)();
  const auto get_name = reinterpret_cast<GetName>(torch_symbol("openblas_get_corename"));
  if (get_name == nullptr) return {};
  BlasKernels kernels{.name = get_name(), .instead = ""};
  if (kernels.name == "Prescott" && processor_has("avx2"))
    kernels.instead = processor_has("avx512f") ? "SKYLAKEX" : "HASWELL";
  return kernels;
}

void require_thread_environment(int threads, const std::vector<std::string>& arguments) {
  if (threads < 1) throw UsageError("--threads must be at least 1, got " + std::to_string(threads));
  if (set_thread_environment(threads)) become_program(kOwnProgram, arguments);
}

std::string output_of(int threads, const std::vector<std::string>& arguments) {
  set_thread_environment(threads);
  ProgramOutput launch =
      run_program({.words = arguments, .file = kOwnProgram, .captured = Captured::kOutput});
  if (launch.exit_code > 128 && launch.exit_code != static_cast<int>(ExitCode::kInterrupted))
    throw RunError("a launch was ended by signal {}", launch.exit_code - 128);
  if (launch.exit_code != 0)
    throw Error(static_cast<ExitCode>(launch.exit_code), "a launch failed; see its message above");
  return std::move(launch.standard_output);
}

void check_blas(bool allow_reference) {
  static_cast<void>(torch_engine());
  const BlasIdentity blas = loaded_blas();
  if (blas.is_reference && !allow_reference)
    throw CapabilityError(
        "LibTorch would compute with " + blas.description +
        ", which is many times slower than what training uses; install libopenblas0-pthread or "
        "give --allow-reference-blas");
}

RunContext make_compute_context(const std::string& schema, const std::vector<std::string>& command_line,
                                int threads, unsigned seed) {
  RunContext context = make_run_context(schema, command_line);
  context.threads = threads;
  context.seed = seed;
  context.libraries["LibTorch"] = torch_engine().version;
  const BlasIdentity blas = loaded_blas();
  context.blas = blas.description;
  if (blas.is_reference) context.warnings.emplace_back("computed with the slow reference BLAS");
  if (const BlasKernels kernels = blas_kernels(); !kernels.name.empty()) {
    context.libraries[kBlasKernels] = kernels.name;
    if (!kernels.instead.empty())
      context.warnings.push_back("OpenBLAS does not know this processor and computed with kernels of 2004 (" +
                                 kernels.name + "): set OPENBLAS_CORETYPE=" + kernels.instead);
  }
  if (context.load_average > 0.5)
    context.warnings.push_back("the machine was busy: load average " + std::to_string(context.load_average));
  return context;
}

}  // namespace stepcast

#include "sim/cli/examination.hpp"

#include <map>
#include <nlohmann/json.hpp>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/run_context.hpp"
#include "records/watch.hpp"

namespace stepcast {
namespace {

constexpr const char* kName = "stepcast-runner";
constexpr double kWatched_s = 0.4;
constexpr double kNoisy = 0.10;
constexpr double kTaken = 0.05;
constexpr double kBusyPerCore = 0.25;  // load average per core above which measurements share the machine

/// Path of the program that measures and trains: $STEPCAST_RUNNER (\throws InputError if it is no program),
/// else `stepcast-runner` next to this program, else in $PATH; "" if there is none.
std::string find_runner() {
  if (const auto chosen = process_environment(kRunnerVariable)) return *chosen;
  const std::string beside = program_beside(kName);
  return is_program(beside) ? beside : find_program(kName);
}

/// Adds a finding, with its remedy if it is not good.
void judge(std::vector<Finding>& findings, const std::string& what, bool good, const std::string& found,
           const std::string& remedy, Verdict otherwise = Verdict::kMisleading) {
  findings.push_back({what, good ? Verdict::kGood : otherwise, found, good ? "" : remedy});
}

void examine_processor(std::vector<Finding>& findings) {
  const RunContext context = make_run_context("", {});
  Watch watch(context.cores);
  std::vector<double> times;  // of the speed probe
  while (watch.elapsed_s() < kWatched_s) times.push_back(1.0 / probe_speed());
  const MachineState machine = watch.end();
  const double noise = (quantile(times, 0.9) - quantile(times, 0.1)) / median(times);
  findings.push_back({"processor", Verdict::kGood, context.cpu_model, ""});
  judge(findings, "cores", context.cores >= 2, fmt::format("{} usable", context.cores),
        "two ranks would share one core; measure with at least as many cores as ranks");
  judge(findings, "load", context.load_average <= kBusyPerCore * context.cores,
        fmt::format("{:.2f} over the last minute", context.load_average),
        "other processes compute here; stop them before measuring");
  judge(findings, "noise", noise <= kNoisy,
        percent_text(noise, 0) + " spread (p10 to p90) of a fixed computation",
        "timings vary; use several launches, and close other programs");
  judge(findings, "lost to others", machine.lost_fraction <= kTaken,
        fmt::format("{} of the CPU time, {} of it all stolen by the hypervisor",
                    percent_text(machine.lost_fraction, 0), percent_text(machine.stolen, 0)),
        "measured times include this; see 'stepcast doctor --watch'");
}

/// BLAS of the runner's LibTorch if the runner reports it, else of the system.
void examine_blas(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  BlasIdentity blas = identify_blas();
  if (capabilities.contains("context"))
    blas = {capabilities["context"].value("blas", ""), capabilities.value("blas_is_reference", false)};
  const bool none = blas.description.find("no lib") != std::string::npos;
  judge(findings, "BLAS", !none && !blas.is_reference, blas.description,
        "linear layers are about 16 times slower than they should be; install libopenblas0-pthread",
        none ? Verdict::kMissing : Verdict::kMisleading);
}

void examine_libraries(std::vector<Finding>& findings) {
  for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    if (const auto value = process_environment(variable))
      findings.push_back({variable, Verdict::kMisleading, *value,
                          "stepcast sets the threads per rank itself (--threads); unset it"});
  const std::string gnuplot = find_program("gnuplot");
  judge(findings, "gnuplot", !gnuplot.empty(), gnuplot.empty() ? "not in PATH" : gnuplot,
        "'stepcast plot' needs it; install gnuplot-nox", Verdict::kMissing);
}

/// Libraries and backends that the runner reports.
void add_capabilities(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  const nlohmann::json context = capabilities.value("context", nlohmann::json::object());
  for (const auto& [name, version] : context.value("libraries", std::map<std::string, std::string>{})) {
    const std::string instead = name == kBlasKernels ? capabilities.value("blas_core_type_instead", "") : "";
    judge(findings, "  " + name, instead.empty(), version,
          "OpenBLAS does not support this CPU and uses kernels of 2004: set OPENBLAS_CORETYPE=" + instead);
  }
  for (const nlohmann::json& backend : capabilities.value("backends", nlohmann::json::array()))
    findings.push_back(
        {"  backend " + backend.value("name", "?"), Verdict::kGood, backend.value("library", "?"), ""});
}

/// Capabilities that the runner reports; an empty object without a runner.
nlohmann::json examine_runner(std::vector<Finding>& findings) {
  const auto missing = [&](const std::string& found, const std::string& remedy) {
    findings.push_back({kName, Verdict::kMissing, found, remedy});
    return nlohmann::json::object();
  };
  std::string runner;
  try {
    runner = find_runner();
  } catch (const InputError& error) {
    return missing(error.what(), "unset or correct the variable");
  }
  if (runner.empty())
    return missing("neither next to stepcast nor in PATH",
                   "measure, bench, calibrate and run need it; build it with libtorch-dev and libgloo-dev");
  const ProgramOutput output = run_program_file({runner, "capabilities"});
  const nlohmann::json json = nlohmann::json::parse(output.standard_output, nullptr, false);
  if (output.exit_code != 0 || !json.is_object())
    return missing(runner + " does not start: " + output.standard_error,
                   "build it again against the installed LibTorch and Gloo");
  findings.push_back({kName, Verdict::kGood, runner, ""});
  add_capabilities(json, findings);
  return json;
}

}  // namespace

std::string require_runner(const std::string& purpose) {
  std::string program = find_runner();
  if (!program.empty()) return program;
  throw CapabilityError(
      "{} needs stepcast-runner, which is neither next to stepcast nor in PATH; build it (it needs "
      "libtorch-dev and libgloo-dev), or name it in STEPCAST_RUNNER",
      purpose);
}

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings;
  examine_processor(findings);
  examine_libraries(findings);
  examine_blas(examine_runner(findings), findings);
  return findings;
}

}  // namespace stepcast

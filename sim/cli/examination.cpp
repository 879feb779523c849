#include "sim/cli/examination.hpp"

#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/watch.hpp"
#include "records/run_context.hpp"

namespace stepcast {
namespace {

constexpr const char* kName = "stepcast-runner";
constexpr double kNoisy = 0.10;
constexpr double kTaken = 0.05;
constexpr double kBusyPerCore = 0.25;  // load average per core above which measurements share the machine

/// A finding, with its remedy if it is not good.
Finding judged(const std::string& what, bool good, Verdict else_verdict, const std::string& found,
               const std::string& remedy) {
  return {what, good ? Verdict::kGood : else_verdict, found, good ? "" : remedy};
}

/// Effects of other processes, the clock and the hypervisor on timings.
struct ShortSample {
  double noise = 0.0;  ///< relative spread (p90 - p10) / p50 of the speed probe's time
  MachineState machine;
};

ShortSample look_shortly(int cores) {
  constexpr double kLong = 0.4;
  Watch watch(cores);
  std::vector<double> times;
  while (watch.elapsed_s() < kLong) times.push_back(1.0 / probe_speed());
  return {(quantile(times, 0.9) - quantile(times, 0.1)) / median(times), watch.end()};
}

void examine_processor(std::vector<Finding>& findings) {
  const RunContext context = make_run_context("", {});
  const auto [noise, machine] = look_shortly(context.cores);
  findings.push_back({"processor", Verdict::kGood, context.cpu_model, ""});
  findings.push_back(judged("cores", context.cores >= 2, Verdict::kMisleading,
                            std::to_string(context.cores) + " usable",
                            "two ranks would share one core; measure with at least as many cores as ranks"));
  findings.push_back(judged("load", context.load_average <= kBusyPerCore * context.cores,
                            Verdict::kMisleading,
                            formatted("%.2f over the last minute", context.load_average),
                            "other processes compute here; stop them before measuring"));
  findings.push_back(judged("noise", noise <= kNoisy, Verdict::kMisleading,
                            percent_text(noise, 0) + " spread (p10 to p90) of a fixed computation",
                            "timings vary; use several launches, and close other programs"));
  findings.push_back(judged("lost to others", machine.lost_fraction <= kTaken, Verdict::kMisleading,
                            percent_text(machine.lost_fraction, 0) + " of the CPU time, " +
                                percent_text(machine.stolen, 0) + " of it all stolen by the hypervisor",
                            "measured times include this; see 'stepcast doctor --watch'"));
}

/// BLAS of the runner's LibTorch if the runner reports it, else of the system.
void examine_blas(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  BlasIdentity blas = identify_blas();
  if (capabilities.contains("context"))
    blas = {capabilities["context"].value("blas", ""), capabilities.value("blas_is_reference", false)};
  const bool none = blas.description.find("no lib") != std::string::npos;
  findings.push_back(judged(
      "BLAS", !none && !blas.is_reference, none ? Verdict::kMissing : Verdict::kMisleading, blas.description,
      "linear layers are about 16 times slower than they should be; install libopenblas0-pthread"));
}

void examine_libraries(std::vector<Finding>& findings) {
  for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    if (const auto value = process_environment(variable))
      findings.push_back({variable, Verdict::kMisleading, *value,
                          "stepcast sets the threads per rank itself (--threads); unset it"});
  const std::string gnuplot = find_program("gnuplot");
  findings.push_back(judged("gnuplot", !gnuplot.empty(), Verdict::kMissing,
                            gnuplot.empty() ? "not in PATH" : gnuplot,
                            "'stepcast plot' needs it; install gnuplot-nox"));
}

/// Libraries and backends that the runner reports.
void add_capabilities(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  const nlohmann::json context = capabilities.value("context", nlohmann::json::object());
  for (const auto& [name, version] : context.value("libraries", std::map<std::string, std::string>{})) {
    const std::string instead = name == kBlasKernels ? capabilities.value("blas_core_type_instead", "") : "";
    findings.push_back(judged("  " + name, instead.empty(), Verdict::kMisleading, version,
                              "OpenBLAS does not support this CPU and uses kernels of 2004: set "
                              "OPENBLAS_CORETYPE=" +
                                  instead));
  }
  for (const nlohmann::json& backend : capabilities.value("backends", nlohmann::json::array()))
    findings.push_back(
        {"  backend " + backend.value("name", "?"), Verdict::kGood, backend.value("library", "?"), ""});
}

/// Capabilities that the runner reports; an empty object without a runner.
nlohmann::json examine_runner(std::vector<Finding>& findings) {
  std::string runner;
  try {
    runner = find_runner();
  } catch (const InputError& error) {
    findings.push_back({"stepcast-runner", Verdict::kMissing, error.what(), "unset or correct the variable"});
    return nlohmann::json::object();
  }
  if (runner.empty()) {
    findings.push_back(
        {"stepcast-runner", Verdict::kMissing, "neither next to stepcast nor in PATH",
         "measure, bench, calibrate and run need it; build it with libtorch-dev and libgloo-dev"});
    return nlohmann::json::object();
  }
  const ProgramOutput output = run_program_file({runner, "capabilities"});
  const nlohmann::json json = nlohmann::json::parse(output.standard_output, nullptr, false);
  if (output.exit_code != 0 || !json.is_object()) {
    findings.push_back({"stepcast-runner", Verdict::kMissing,
                        runner + " does not start: " + output.standard_error,
                        "build it again against the installed LibTorch and Gloo"});
    return nlohmann::json::object();
  }
  findings.push_back({"stepcast-runner", Verdict::kGood, runner, ""});
  add_capabilities(json, findings);
  return json;
}

}  // namespace

std::string find_runner() {
  if (const auto chosen = process_environment(kRunnerVariable)) return *chosen;
  const std::string beside = program_beside(kName);
  return is_program(beside) ? beside : find_program(kName);
}

std::string require_runner(const std::string& purpose) {
  std::string program = find_runner();
  if (!program.empty()) return program;
  throw CapabilityError(purpose +
                        " needs stepcast-runner, which is neither next to stepcast nor in PATH; build it "
                        "(it needs libtorch-dev and libgloo-dev), or name it in STEPCAST_RUNNER");
}

const char* to_text(Verdict verdict) {
  return std::array{"good", "MISLEADING", "MISSING"}.at(static_cast<std::size_t>(verdict));
}

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings;
  examine_processor(findings);
  examine_libraries(findings);
  examine_blas(examine_runner(findings), findings);
  return findings;
}

}  // namespace stepcast

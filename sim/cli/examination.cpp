#include "sim/cli/examination.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "sim/cli/runner_program.hpp"
#include "sim/records/run_context.hpp"

namespace stepcast {
namespace {

constexpr double kNoisy = 0.10;
constexpr double kBusyPerCore = 0.25;  // load average per core above which measurements share the machine

std::string two_digits(double value) {
  const std::string text = std::to_string(value);
  return text.substr(0, text.find('.') + 3);
}

void examine_processor(std::vector<Finding>& findings) {
  const RunContext context = make_run_context("", {});
  findings.push_back({"processor", Verdict::kGood, context.cpu_model, ""});
  const bool few = context.cores < 2;
  findings.push_back(
      {"cores", few ? Verdict::kMisleading : Verdict::kGood, std::to_string(context.cores) + " usable",
       few ? "two ranks would share one core; measure with at least as many cores as ranks" : ""});
  const bool busy = context.load_average > kBusyPerCore * context.cores;
  findings.push_back({"load", busy ? Verdict::kMisleading : Verdict::kGood,
                      two_digits(context.load_average) + " over the last minute",
                      busy ? "something else computes here; stop it before measuring" : ""});
  const double noise = timing_noise();
  findings.push_back({"noise", noise > kNoisy ? Verdict::kMisleading : Verdict::kGood,
                      percent_text(noise, 0) + " spread (p10 to p90) of a fixed computation",
                      noise > kNoisy ? "timings vary; use several launches, and close other programs" : ""});
}

void examine_libraries(std::vector<Finding>& findings) {
  const BlasIdentity blas = identify_blas();
  const bool none = blas.description.find("no lib") != std::string::npos;
  findings.push_back(
      {"BLAS",
       none                ? Verdict::kMissing
       : blas.is_reference ? Verdict::kMisleading
                           : Verdict::kGood,
       blas.description,
       none || blas.is_reference
           ? "linear layers are about 16 times slower than they should be; install libopenblas0-pthread"
           : ""});
  for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    if (const auto value = process_environment(variable))
      findings.push_back({variable, Verdict::kMisleading, *value,
                          "stepcast sets the threads per rank itself (--threads); unset it"});
  const std::string gnuplot = find_program("gnuplot");
  findings.push_back({"gnuplot", gnuplot.empty() ? Verdict::kMissing : Verdict::kGood,
                      gnuplot.empty() ? "not in PATH" : gnuplot,
                      gnuplot.empty() ? "'stepcast plot' needs it; install gnuplot-nox" : ""});
}

/// Libraries and backends that the runner says it has.
void add_capabilities(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  const nlohmann::json context = capabilities.value("context", nlohmann::json::object());
  for (const auto& [name, version] : context.value("libraries", std::map<std::string, std::string>{}))
    findings.push_back({"  " + name, Verdict::kGood, version, ""});
  for (const nlohmann::json& backend : capabilities.value("backends", nlohmann::json::array()))
    findings.push_back(
        {"  backend " + backend.value("name", "?"), Verdict::kGood, backend.value("library", "?"), ""});
}

void examine_runner(std::vector<Finding>& findings) {
  std::string runner;
  try {
    runner = find_runner();
  } catch (const InputError& error) {
    findings.push_back({"stepcast-runner", Verdict::kMissing, error.what(), "unset the variable or mend it"});
    return;
  }
  if (runner.empty()) {
    findings.push_back(
        {"stepcast-runner", Verdict::kMissing, "neither beside stepcast nor in PATH",
         "measure, bench, calibrate and run need it; build it with libtorch-dev and libgloo-dev"});
    return;
  }
  const ProgramOutput output = run_program_file({runner, "capabilities", "--json"});
  const nlohmann::json json = nlohmann::json::parse(output.standard_output, nullptr, false);
  if (output.exit_code != 0 || !json.is_object()) {
    findings.push_back({"stepcast-runner", Verdict::kMissing,
                        runner + " does not start: " + output.standard_error,
                        "build it again against the installed LibTorch and Gloo"});
    return;
  }
  findings.push_back({"stepcast-runner", Verdict::kGood, runner, ""});
  add_capabilities(json, findings);
}

}  // namespace

const char* to_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "good";
    case Verdict::kMisleading:
      return "MISLEADING";
    case Verdict::kMissing:
      return "MISSING";
  }
  return "";
}

double timing_noise() {
  using Clock = std::chrono::steady_clock;
  constexpr int kRepetitions = 60;
  constexpr int kTerms = 400'000;
  std::vector<double> times;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const auto start = Clock::now();
    volatile double sum = 0.0;
    for (int term = 1; term <= kTerms; ++term) sum = sum + 1.0 / term;
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return (quantile(times, 0.9) - quantile(times, 0.1)) / median(times);
}

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings;
  examine_processor(findings);
  examine_libraries(findings);
  examine_runner(findings);
  return findings;
}

}  // namespace stepcast

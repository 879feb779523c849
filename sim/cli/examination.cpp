#include "sim/cli/examination.hpp"

#include <array>
#include <chrono>
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

/// Good, or `bad` with what mends it.
Finding finding(const std::string& what, const std::string& found, bool is_bad = false,
                const std::string& remedy = "", Verdict bad = Verdict::kMisleading) {
  return {what, is_bad ? bad : Verdict::kGood, found, is_bad ? remedy : ""};
}

void examine_processor(std::vector<Finding>& findings) {
  const RunContext context = make_run_context("", {});
  findings.push_back(finding("processor", context.cpu_model));
  findings.push_back(finding("cores", std::to_string(context.cores) + " usable", context.cores < 2,
                             "two ranks would share one core; measure with at least as many cores as ranks"));
  const std::string load = std::to_string(context.load_average);
  findings.push_back(finding("load", load.substr(0, load.find('.') + 3) + " over the last minute",
                             context.load_average > kBusyPerCore * context.cores,
                             "something else computes here; stop it before measuring"));
  const double noise = timing_noise();
  findings.push_back(finding("noise", percent_text(noise, 0) + " spread (p10 to p90) of a fixed computation",
                             noise > kNoisy, "timings vary; use several launches, and close other programs"));
}

void examine_libraries(std::vector<Finding>& findings) {
  const BlasIdentity blas = identify_blas();
  const bool none = blas.description.find("no lib") != std::string::npos;
  findings.push_back(
      finding("BLAS", blas.description, none || blas.is_reference,
              "linear layers are about 16 times slower than they should be; install libopenblas0-pthread",
              none ? Verdict::kMissing : Verdict::kMisleading));
  for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    if (const auto value = process_environment(variable))
      findings.push_back(
          finding(variable, *value, true, "stepcast sets the threads per rank itself (--threads); unset it"));
  const std::string gnuplot = find_program("gnuplot");
  findings.push_back(finding("gnuplot", gnuplot.empty() ? "not in PATH" : gnuplot, gnuplot.empty(),
                             "'stepcast plot' needs it; install gnuplot-nox", Verdict::kMissing));
}

/// Libraries and backends that the runner says it has.
void add_capabilities(const nlohmann::json& capabilities, std::vector<Finding>& findings) {
  const nlohmann::json context = capabilities.value("context", nlohmann::json::object());
  for (const auto& [name, version] : context.value("libraries", std::map<std::string, std::string>{}))
    findings.push_back(finding("  " + name, version));
  for (const nlohmann::json& backend : capabilities.value("backends", nlohmann::json::array()))
    findings.push_back(finding("  backend " + backend.value("name", "?"), backend.value("library", "?")));
}

void examine_runner(std::vector<Finding>& findings) {
  const auto missing = [&](const std::string& found, const std::string& remedy) {
    findings.push_back(finding("stepcast-runner", found, true, remedy, Verdict::kMissing));
  };
  std::string runner;
  try {
    runner = find_runner();
  } catch (const InputError& error) {
    return missing(error.what(), "unset the variable or mend it");
  }
  if (runner.empty())
    return missing("neither beside stepcast nor in PATH",
                   "measure, bench, calibrate and run need it; build it with libtorch-dev and libgloo-dev");
  const ProgramOutput output = run_program_file({runner, "capabilities", "--json"});
  const nlohmann::json json = nlohmann::json::parse(output.standard_output, nullptr, false);
  if (output.exit_code != 0 || !json.is_object())
    return missing(runner + " does not start: " + output.standard_error,
                   "build it again against the installed LibTorch and Gloo");
  findings.push_back(finding("stepcast-runner", runner));
  add_capabilities(json, findings);
}

}  // namespace

const char* to_text(Verdict verdict) {
  constexpr std::array kWords{"good", "MISLEADING", "MISSING"};
  return kWords.at(static_cast<std::size_t>(verdict));
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

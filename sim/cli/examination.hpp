#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// What `doctor` looks at.
namespace stepcast {

enum class Verdict : std::uint8_t { kGood, kMisleading, kMissing };
const char* to_text(Verdict verdict);

struct Finding {
  std::string what;
  Verdict verdict = Verdict::kGood;
  std::string found;
  std::string remedy;  ///< "" when there is nothing to mend
};

/// Processor, load, noise, BLAS, threads set in the environment, gnuplot, stepcast-runner and what it was
/// built with.
std::vector<Finding> examine_machine();

/// Relative spread (p90 - p10) / p50 of a short fixed computation, repeated: what other work on this machine,
/// its clock and its hypervisor do to timings.
double timing_noise();

}  // namespace stepcast

#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Checks of `doctor`, and the path of `stepcast-runner`.
namespace stepcast {

enum class Verdict : std::uint8_t { kGood, kMisleading, kMissing };
const char* to_text(Verdict verdict);

struct Finding {
  std::string what;
  Verdict verdict = Verdict::kGood;
  std::string found;
  std::string remedy;  ///< "" if the finding is good
};

/// Findings about CPU, load, noise, BLAS, thread variables, gnuplot, stepcast-runner and its libraries.
std::vector<Finding> examine_machine();

/// Path of the program that measures and trains. \throws CapabilityError if there is none, which names
/// `purpose`, the requirements and the searched folders
std::string require_runner(const std::string& purpose);

}  // namespace stepcast

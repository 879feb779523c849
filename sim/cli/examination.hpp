#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_table.hpp"

/// Checks of `doctor`, and the path of `stepcast-runner`.
namespace stepcast {

enum class Verdict : std::uint8_t { kGood, kMisleading, kMissing };
inline constexpr auto kVerdicts = enum_names<Verdict>("good", "MISLEADING", "MISSING");
constexpr const char* to_text(Verdict verdict) { return row_of(kVerdicts, verdict).name; }

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

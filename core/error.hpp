#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// Error policy: a user's mistake or a machine's failure is an `Error` with its exit code, thrown at the
/// place of the problem and printed once, in `main`. A programmer's mistake is an assert.
namespace stepcast {

/// Exit codes of both programs; `stepcast help` lists them.
enum class ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kBadInput = 3,
  kOutOfTolerance = 4,
  kMissingCapability = 5,
  kTimedOut = 124,
  kInterrupted = 130,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Something failed while running: a rank died, a disk is full.
struct RunError : Error {
  explicit RunError(const std::string& message) : Error(ExitCode::kFailed, message) {}
};
/// The command line is wrong.
struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};
/// A file or a value is wrong. The message names file, key, value and the valid values.
struct InputError : Error {
  explicit InputError(const std::string& message) : Error(ExitCode::kBadInput, message) {}
};
/// This machine or build lacks a required part: gnuplot, the runner, CUDA.
struct CapabilityError : Error {
  explicit CapabilityError(const std::string& message) : Error(ExitCode::kMissingCapability, message) {}
};
/// A time limit has passed.
struct TimeoutError : Error {
  explicit TimeoutError(const std::string& message) : Error(ExitCode::kTimedOut, message) {}
};

/// True if the text contains characters that move a terminal's cursor or colour it, line breaks included.
bool has_control_character(std::string_view text);
/// The text with control characters as `\x1b`.
std::string printable(std::string_view text);

/// Nearest known name by edit distance; "" if none is similar.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// `unknown strategy 'dpd' (did you mean 'ddp'?); known: all_reduce, ddp, gather_scatter, single`
std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace stepcast

#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// One error policy: a person's mistake or a machine's failure is an `Error` with the exit code it deserves,
/// thrown where it is found and printed once, in `main`. A programmer's mistake is an assert.
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
/// This machine or build cannot do what was asked: no gnuplot, no runner, no CUDA.
struct CapabilityError : Error {
  explicit CapabilityError(const std::string& message) : Error(ExitCode::kMissingCapability, message) {}
};
/// Something did not happen within its time limit.
struct TimeoutError : Error {
  explicit TimeoutError(const std::string& message) : Error(ExitCode::kTimedOut, message) {}
};

/// Characters that move a terminal's cursor or colour it; a line break is one.
bool has_control_character(std::string_view text);
/// With control characters as `\x1b`.
std::string printable(std::string_view text);

/// The known name that is nearest to `name` by edit distance, or "" when none is near enough to be meant.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// `unknown strategy 'dpd' (did you mean 'ddp'?); known: all_reduce, ddp, gather_scatter, single`
std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace stepcast

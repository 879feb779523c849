#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
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

/// An error of one exit code, with a text or with a format string and its values:
/// `throw InputError("{}: expected {} cells, found {}", path, 3, 4)`.
template <ExitCode kCode>
struct CodedError : Error {
  explicit CodedError(const std::string& message) : Error(kCode, message) {}
  template <class First, class... Rest>
  explicit CodedError(fmt::format_string<First, Rest...> message, First&& first, Rest&&... rest)
      : Error(kCode, fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

/// Something failed while running: a rank died, a disk is full.
using RunError = CodedError<ExitCode::kFailed>;
/// The command line is wrong.
using UsageError = CodedError<ExitCode::kUsage>;
/// A file or a value is wrong. The message names file, key, value and the valid values.
using InputError = CodedError<ExitCode::kBadInput>;
/// This machine or build lacks a required part: gnuplot, the runner, CUDA.
using CapabilityError = CodedError<ExitCode::kMissingCapability>;
/// A time limit has passed.
using TimeoutError = CodedError<ExitCode::kTimedOut>;

/// Result of `parse()`; an InputError becomes a UsageError that names the option. \param option "": none
auto parsed_option(const std::string& option, const auto& parse) {
  try {
    return parse();
  } catch (const InputError& error) {
    const std::string message = error.what();
    throw UsageError(option.empty() || message.starts_with("--") ? message : "--" + option + ": " + message);
  }
}

/// Result of `read`, whose InputErrors name the file, or another place.
decltype(auto) of_file(const std::string& path, const auto& read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw InputError("{}: {}", path, error.what());
  }
}

/// True if the text contains characters that move a terminal's cursor or colour it, line breaks included.
bool has_control_character(std::string_view text);
/// The text with control characters as `\x1b`.
std::string printable(std::string_view text);

/// Nearest known name by edit distance; "" if none is similar.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// `unknown strategy 'dpd' (did you mean 'ddp'?); known: all_reduce, ddp, gather_scatter, single`
std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace stepcast

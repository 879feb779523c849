#pragma once

#include <string>

#include "core/units.hpp"
#include "sim/cli/command.hpp"

/// Values of options with units. What is wrong on the command line is a UsageError, not a bad input file.
namespace stepcast {

/// \throws UsageError with an example when the value is not a size such as 25MiB
Bytes bytes_option(const po::variables_map& values, const std::string& name);

/// \throws UsageError with an example when the value is not a rate such as 25GB/s
BytesPerSecond bytes_per_second_option(const po::variables_map& values, const std::string& name);

constexpr int kMostOfAnything = 10'000'000;  ///< more is a slip that would fill the memory
constexpr int kMostThreads = 1024;           ///< threads of a rank, and processes that are started at once

/// \throws UsageError when the value is below `least` or above `most`
int int_option(const po::variables_map& values, const std::string& name, int least,
               int most = kMostOfAnything);

/// `10%` as 0.1. \throws UsageError with an example
double percent_option(const po::variables_map& values, const std::string& name);

/// `a,b,c` as its parts; "all" as none.
std::vector<std::string> list_option(const po::variables_map& values, const std::string& name);
/// All parts of an option that may be given several times, as `a,b,c`; "" where it was not given.
std::string joined_option(const po::variables_map& values, const std::string& name);

/// `--output`, `--json` and `--force` of a command whose result is `content`: `the trace`.
void declare_output(po::options_description& options, const std::string& content);

/// Refuses, before long work, a file that could not be written. \param replaces an existing file without --force
/// \throws InputError
void check_output(const po::variables_map& values, bool replaces = false);

/// Writes the result to its file, if it has one, and prints it if --json asks for that. \returns whether it is
/// printed; else the command shows a summary
bool write_output(const po::variables_map& values, const std::string& json, bool replaces = false);

}  // namespace stepcast

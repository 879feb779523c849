#pragma once

#include <string>

#include "sim/cli/command.hpp"
#include "sim/core/units.hpp"

/// Values of options with units. What is wrong on the command line is a UsageError, not a bad input file.
namespace stepcast {

/// \throws UsageError with an example when the value is not a size such as 25MiB
Bytes bytes_option(const po::variables_map& values, const std::string& name);

/// \throws UsageError with an example when the value is not a rate such as 25GB/s
BytesPerSecond bytes_per_second_option(const po::variables_map& values, const std::string& name);

/// \throws UsageError when the value is below `least`
int int_option(const po::variables_map& values, const std::string& name, int least);

/// `10%` as 0.1. \throws UsageError with an example
double percent_option(const po::variables_map& values, const std::string& name);

/// `a,b,c` as its parts; "all" as none.
std::vector<std::string> list_option(const po::variables_map& values, const std::string& name);

}  // namespace stepcast

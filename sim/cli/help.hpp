#pragma once

#include <string>
#include <vector>

#include "sim/cli/command.hpp"

/// The texts of `help`, all made from the registries and option tables.
namespace stepcast {

/// The command's own options and `--help`.
po::options_description option_table(const std::string& name, const Command& command);

/// `--world-size`, `-o`, ... of a table, for suggestions.
std::vector<std::string> option_names(const po::options_description& options);

/// Commands by group, exit codes, environment variables.
std::string program_help(const std::string& program, const std::string& summary);

/// Usage, description and options of one command. \throws UsageError for an unknown command.
std::string command_help(const std::string& program, const std::string& name);

/// `stepcast: `, in colour where the terminal and NO_COLOR allow it.
std::string error_prefix(const std::string& program);

}  // namespace stepcast

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "core/environment.hpp"
#include "core/ranges.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

constexpr unsigned kLineLength = 100;

/// Heading of `help` under which a command is listed.
std::string group_of(const Registry<Command>::Entry& entry) {
  return entry.value.hand_over ? "Measure (by stepcast-runner)" : command_page(entry.name).at("group").text();
}

constexpr std::string_view kEnding = R"(
Exit codes: 0 done, 1 failed while running, 2 wrong command line, 3 bad input file, 4 out of tolerance,
5 something is not installed or not supported here, 124 timed out, 130 interrupted.
Results go to standard output, everything else to standard error. NO_COLOR=1 turns colour off.
)";

}  // namespace

po::options_description option_table(const std::string& name, const Command& command) {
  po::options_description options("Options of " + name, kLineLength, kLineLength / 2);
  command.declare ? command.declare(options) : declare_options(options, name);
  options.add_options()("help,h", "this text");
  return options;
}

std::vector<std::string> option_names(const po::options_description& options) {
  return transformed(options.options(), [](const auto& option) { return "--" + option->long_name(); });
}

std::string program_help(const std::string& program, const std::string& summary) {
  std::size_t width = 0;
  for (const auto& entry : commands().entries()) width = std::max(width, entry.name.size());
  std::string text = fmt::format("{}\n\nUsage: {} COMMAND [options]\n", summary, program);
  for (const auto& [group, entries] : grouped(commands().entries(), group_of)) {
    text += fmt::format("\n{}:\n", group);
    for (const auto* entry : entries)
      text += fmt::format(
          "  {:{}}  {}\n", entry->name, width,
          entry->value.hand_over ? entry->description : command_page(entry->name).at("description").text());
  }
  std::vector<std::string> topics;
  for (const auto& entry : commands().entries())
    for (const auto& [topic, make] : entry.value.topics) topics.push_back("'help " + topic + "'");
  text += fmt::format("\n'{} help COMMAND' shows the options of a command{}.\n{}\nEnvironment variables:\n",
                      program, topics.empty() ? "" : "; more: " + joined(topics, ", "), kEnding);
  for (const Variable& variable : stepcast_variables())
    text += fmt::format("  {}  {} ({})\n", variable.name, variable.meaning, variable.valid);
  return text;
}

std::string command_help(const std::string& name) {
  const auto& entry =
      named<UsageError>(commands().entries(), &Registry<Command>::Entry::name, "command", name);
  std::ostringstream options;
  options << option_table(name, entry.value);
  if (entry.value.ending) options << '\n' << entry.value.ending();
  const auto usage = transformed(command_page(name).at("usage").one_or_more(), &YamlNode::text);
  return fmt::format("Usage: {}\n\n{}\n\n{}", joined(usage, "\n       "),
                     command_page(name).at("description").text(), options.str());
}

std::string error_prefix(const std::string& program) {
  const bool colour = !process_environment("NO_COLOR") && interactive();
  return colour ? "\033[1;31m" + program + ":\033[0m " : program + ": ";
}

}  // namespace stepcast

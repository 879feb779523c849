#include "sim/cli/command.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <sstream>
#include <string_view>

#include "core/environment.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"
#include "records/run_context.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {
namespace {

std::vector<std::string>& typed_words() {
  static std::vector<std::string> words;
  return words;
}

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

/// Commands by group, exit codes, environment variables.
std::string program_help(const std::string& program, const std::string& summary) {
  const auto width = largest_of(commands().names(), [](const std::string& name) { return name.size(); });
  std::string text = fmt::format("{}\n\nUsage: {} COMMAND [options]\n", summary, program);
  for (const auto& [group, entries] : grouped(commands().entries(), group_of)) {
    text += fmt::format("\n{}:\n", group);
    for (const auto* entry : entries)
      text += fmt::format("  {:{}}  {}\n", entry->name, width,
                          command_page(entry->name).at("description").text());
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

/// Usage, description and options of one command. \throws UsageError for an unknown command.
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

/// `stepcast: `, in colour if the terminal and NO_COLOR allow it.
std::string error_prefix(const std::string& program) {
  const bool colour = !process_environment("NO_COLOR") && interactive();
  return colour ? "\033[1;31m" + program + ":\033[0m " : program + ": ";
}

/// Ends the program at once: removes files under construction; the exit code is the shell's 128 + signal.
void end_on_signal(int signal) {
  remove_temporary_files();
  ::_exit(128 + signal);
}

void install_signal_handlers() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is reported like a full disk
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    struct sigaction inherited {};
    sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler == SIG_IGN) continue;  // nohup, background jobs of a shell without job control
    action.sa_handler = end_on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

/// Refuses what boost's conversions accept (`-1` as 4294967295, control characters, infinite numbers), and
/// numbers that it refuses without the reason.
void check_values(const po::parsed_options& parsed, const po::options_description& options) {
  for (const po::option& option : parsed.options)
    for (const std::string& value : option.value) {
      const auto refuse = [&](const char* why) {
        throw UsageError("--{}: '{}' {}", option.string_key, value, why);
      };
      if (has_control_character(value)) refuse("holds a control character");
      const po::option_description* known = options.find_nothrow(option.string_key, false);
      if (known == nullptr) continue;
      const po::value_semantic* semantic = known->semantic().get();
      if (dynamic_cast<const po::typed_value<unsigned>*>(semantic) != nullptr && !number_in<unsigned>(value))
        refuse("is not a whole number of at least 0");
      if (dynamic_cast<const po::typed_value<int>*>(semantic) != nullptr && !number_in<int>(value))
        refuse("is not a whole number");
      if (dynamic_cast<const po::typed_value<double>*>(semantic) != nullptr &&
          !std::isfinite(number_in<double>(value).value_or(NAN)))
        refuse("is not a finite number");
    }
}

ExitCode run_command(const std::string& name, const std::vector<std::string>& words) {
  const Command& command = commands().find(name);
  if (command.hand_over) return command.hand_over(words);
  const po::variables_map values = parse_words(name, words);
  if (values.count("help") != 0) {
    std::cout << command_help(name);
    return ExitCode::kDone;
  }
  return command.run(values);
}

/// `help COMMAND`, `help COMMAND TOPIC`, and `help TOPIC` of one command, as `help conventions`.
ExitCode help(const std::vector<std::string>& words) {
  for (const auto& [name, description, command, order] : commands().entries())
    if ((words.size() == 1 || (words.size() == 2 && name == words.front())) &&
        command.topics.contains(words.back())) {
      std::cout << command.topics.at(words.back())();
      return ExitCode::kDone;
    }
  if (words.size() == 1) {
    std::vector<std::string> known = commands().names();
    for (const auto& entry : commands().entries())
      for (const auto& [topic, make] : entry.value.topics) known.push_back(topic);
    if (!contains(known, words.front()))
      throw UsageError(unknown_name("command or topic", words.front(), known));
    return run_command(words.front(), {"--help"});
  }
  const auto& topics = commands().find(words.front()).topics;
  throw UsageError("'help' takes the name of one command{}",
                   topics.empty() ? ""
                                  : fmt::format(", and of {} of a topic: {}", words.front(),
                                                alternatives(names_of(topics))));
}

ExitCode dispatch(const std::string& program, const std::string& summary,
                  const std::vector<std::string>& words) {
  if (words.empty()) {
    std::cerr << program_help(program, summary);
    return ExitCode::kUsage;
  }
  const std::string& first = words.front();
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (first == "help" && !rest.empty()) return help(rest);
  if (first == "help" || first == "--help" || first == "-h") {
    std::cout << program_help(program, summary);
    return ExitCode::kDone;
  }
  if (first == "--version") {
    std::cout << program << ' ' << make_run_context("", {}).stepcast.text() << '\n';
    return ExitCode::kDone;
  }
  if (first.front() == '-') throw UsageError(unknown_name("option", first, {"--help", "--version"}));
  return run_command(first, rest);
}

/// Flushes standard output. A full disk behind `> file` is a failure; a reader that closed the pipe is not.
ExitCode flushed(ExitCode code) {
  errno = 0;
  std::cout.flush();
  if (std::cout.good() || errno == EPIPE || code != ExitCode::kDone) return code;
  throw RunError("cannot write to standard output: {}", std::strerror(errno == 0 ? EIO : errno));
}

}  // namespace

Registry<Command>& commands() {
  static Registry<Command> registry("command");
  return registry;
}

po::options_description option_table(const std::string& name, const Command& command) {
  po::options_description options("Options of " + name, kLineLength, kLineLength / 2);
  command.declare ? command.declare(options) : declare_options(options, name);
  options.add_options()("help,h", "this text");
  return options;
}

std::vector<std::string> option_names(const po::options_description& options) {
  return transformed(options.options(), [](const auto& option) { return "--" + option->long_name(); });
}

const std::vector<std::string>& command_line() { return typed_words(); }

po::variables_map parse_words(const std::string& name, const std::vector<std::string>& words) {
  const Command& command = commands().find(name);
  static std::map<std::string, po::options_description> tables;  // many requests use one table
  const po::options_description& options = cached(tables, name, [&] { return option_table(name, command); });
  po::positional_options_description positional;
  if (const std::string option = command_page(name).text_or("positional", ""); !option.empty())
    positional.add(option.c_str(), -1);
  po::variables_map values;
  try {
    const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
    const po::parsed_options parsed =
        po::command_line_parser(words).options(options).positional(positional).style(style).run();
    check_values(parsed, options);
    po::store(parsed, values);
    if (values.count("help") == 0) po::notify(values);
  } catch (const po::unknown_option& error) {
    throw UsageError(unknown_choice("option", error.get_option_name(), option_names(options)));
  } catch (const po::too_many_positional_options_error&) {
    throw UsageError("'{0}' takes no words without an option; see 'help {0}'", name);
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
  return values;
}

int run_program(const std::string& program, const std::string& summary, int argc, char** argv) {
  install_signal_handlers();
  typed_words().assign(argv, argv + argc);
  const auto report = [&](ExitCode code, const std::string& message) {
    std::cout.flush();
    std::cerr << error_prefix(program);
    for (std::size_t start = 0, end = 0; end != std::string::npos; start = end + 1) {
      end = code == ExitCode::kFailed ? message.find('\n', start) : std::string::npos;  // a report has lines
      std::cerr << printable(std::string_view(message).substr(start, end - start)) << '\n';
    }
    return static_cast<int>(code);
  };
  try {
    return static_cast<int>(flushed(dispatch(program, summary, {argv + 1, argv + argc})));
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kFailed, "out of memory");
  } catch (const std::logic_error& error) {
    return report(ExitCode::kFailed, std::string("internal error: ") + error.what());
  } catch (const std::exception& error) {
    const std::string message = error.what();  // of LibTorch, with a backtrace
    return report(ExitCode::kFailed, message.substr(0, message.find("\nException raised from")));
  }
}

}  // namespace stepcast

#pragma once

#include <boost/program_options.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/registry.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "records/result.hpp"

/// Commands of both programs: option tables, parsing without prefix guessing, errors that name the nearest
/// option, help, and the dispatch by the first word.
namespace stepcast {

namespace po = boost::program_options;

/// One command. A file in `commands/` defines and registers it: calls and printing only. Its page,
/// commands/NAME.yaml, contains what `help NAME` prints.
struct Command {
  /// Adds the options to their table; default: those of the page.
  std::function<void(po::options_description&)> declare{};
  /// Runs with the parsed options and returns the exit code; errors are thrown.
  std::function<ExitCode(const po::variables_map&)> run{};
  /// Set for a command that another program runs: receives the words after the command's name as typed.
  /// `declare` and `run` are not called.
  std::function<ExitCode(const std::vector<std::string>&)> hand_over = nullptr;
  /// Texts of `help COMMAND TOPIC`.
  std::map<std::string, std::function<std::string()>> topics{};
  std::function<std::string()> ending = nullptr;  ///< text behind the options in `help COMMAND`
};

Registry<Command>& commands();

/// The page of a command: `description`, `usage`, `group` (heading of `help`), `positional` (the option that
/// takes words without a flag) and `options`. Other pages contain options that several commands share.
const YamlNode& command_page(const std::string& name);

using PageTexts = std::map<std::string, std::string>;
/// Adds the options of a page's section. `{key}` in their texts stands for the text of `key`; an entry
/// `+PAGE` adds the options of that page, with the texts of the entry.
void declare_options(po::options_description& options, const std::string& page, const PageTexts& texts = {},
                     const std::string& section = "options");

/// The words of the command line as typed, for the context of written files. Set once by `run_program`.
const std::vector<std::string>& command_line();

/// Parses the options of a command as typed. \throws UsageError that names the nearest option
po::variables_map parse_words(const std::string& name, const std::vector<std::string>& words);

/// Parses `argv[1]` as the command's name and the rest with its option table, runs it, prints any Error to
/// stderr as `program: message` and returns the exit code. `--help`, `--version` and `help [COMMAND]` are
/// handled here. SIGPIPE is ignored. Ctrl-C ends with code 130; files being written are removed.
int run_program(const std::string& program, const std::string& summary, int argc, char** argv);

/// True if stderr is a terminal and progress may be drawn.
bool interactive();

/// A progress bar on a terminal, else one line every ten seconds, on stderr.
class Progress {
 public:
  Progress(std::string what, int total) : what_(std::move(what)), total_(total) {}
  ~Progress();
  /// Counts one more of `total` as done; `now` names it.
  void advance(const std::string& now = "");

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  int total_, done_ = 0;
  bool bar_ = interactive();
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

/// The command's own options and `--help`.
po::options_description option_table(const std::string& name, const Command& command);

/// `--world-size`, `-o`, ... of a table, for suggestions.
std::vector<std::string> option_names(const po::options_description& options);

}  // namespace stepcast

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/units.hpp"
#include "models/precision.hpp"
#include "sim/cli/command.hpp"
#include "sim/strategies/options.hpp"

/// Values of options. Wrong values are UsageErrors, not errors of input files.
namespace stepcast {

struct TrainingConfig;

/// A given text; empty if the option was not given.
std::string text_option(const po::variables_map& values, const std::string& name);
/// All texts of an option that may be given several times.
std::vector<std::string> texts_option(const po::variables_map& values, const std::string& name);
/// Whether a switch was given.
bool flag_option(const po::variables_map& values, const std::string& name);

/// \throws UsageError with an example if the value is not a size such as 25MiB, a rate such as 25GB/s, or a
/// time such as 5us
Bytes bytes_option(const po::variables_map& values, const std::string& name);
Seconds seconds_option(const po::variables_map& values, const std::string& name);

/// Value of --precision. \throws UsageError that lists the known parts and dtypes
Precision precision_option(const po::variables_map& values);

/// Seconds of an option that limits the time of a command. \throws UsageError below 0
double budget_option(const po::variables_map& values, const std::string& name = "budget");

/// \throws UsageError if the value is below `least` or above `most`
int int_option(const po::variables_map& values, const std::string& name, int least, int most = kMostWhole);

/// Value of --jobs; one per core if it was not given.
int jobs_option(const po::variables_map& values);

/// `10%` as 0.1. \throws UsageError with an example
double percent_option(const po::variables_map& values, const std::string& name);

/// `a,b,c` as its parts; "all" as none.
std::vector<std::string> list_option(const po::variables_map& values, const std::string& name);

/// Entry of `actions` that the first of the `words` names. \throws UsageError that lists them
template <class Action>
const std::pair<std::string, Action>& action_option(
    const po::variables_map& values, const std::string& command,
    const std::vector<std::pair<std::string, Action>>& actions) {
  const auto name_of = &std::pair<std::string, Action>::first;
  if (values.count("words") == 0)
    throw UsageError("the action is missing: {}; see 'stepcast help {}'",
                     alternatives(transformed(actions, name_of)), command);
  return named<UsageError>(actions, name_of, "action", texts_option(values, "words").front());
}

/// `0,4-7` as 0, 4, 5, 6, 7; empty if it was not given. \throws UsageError with an example
std::set<int> numbers_option(const po::variables_map& values, const std::string& name);

/// Texts of the given options, by name: a flag is `yes`, values of an option given several times are joined
/// by commas. Defaults are left out.
OptionTexts given_options(const po::variables_map& values);

/// Declares `--strategy`, `--micro-batches` and every option of a strategy, the same for `run` and `predict`.
void declare_training_options(po::options_description& options);
/// Training configuration of the given options, see sim/strategies/strategy.hpp.
TrainingConfig training_config(const po::variables_map& values);

/// Checks before long work that the timeline can be written, and its ranks and steps.
/// \param world_size number of ranks; 0: not known yet \throws UsageError
void check_timeline(const po::variables_map& values, int world_size = 0);
void write_timeline_option(const po::variables_map& values, const Result& result);

/// Checks before long work that the output can be written. \param replaces an existing file without --force
/// \throws InputError
void check_output(const po::variables_map& values, bool replaces = false);

/// Writes the result to --output, and prints it for --json. \returns true if it is printed; else the command
/// prints a summary
/// \param json makes the text; it is called only if --output or --json is given.
bool write_output(const po::variables_map& values, const std::function<std::string()>& json,
                  bool replaces = false);

/// Writes a text to --output, or prints it without that option.
void write_or_print(const po::variables_map& values, const std::string& text);

/// First line of a YAML file: a comment with the version and the command line.
std::string written_line();

/// Given options of commands/importers.yaml.
ImportTexts import_texts(const po::variables_map& values);

/// What an importer understood, assumed and ignored, a line each.
std::string import_report(const Imported& imported);

/// Writes JSON with the context of this command line, as above.
bool write_json_output(const po::variables_map& values, const std::string& schema, nlohmann::json json);

}  // namespace stepcast

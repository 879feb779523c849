#pragma once

#include <string>
#include <vector>

/// Keys and values of files that start a training, without running them.
namespace stepcast {

/// Values that are not literal. Keywords of an expression or call are entries of their own.
inline constexpr const char *kNotLiteral = "\x01", *kExpression = "\x01()";
/// The empty text of Python and TOML.
inline constexpr const char* kEmptyText = "\"\"";

/// A literal value of a launch file.
struct LaunchEntry {
  std::string key;    ///< as written, without leading dashes; nested as `zero_optimization.stage`
  std::string value;  ///< "" of a flag
  int line = 0;
};

struct LaunchFile {
  std::vector<LaunchEntry> entries;
  std::vector<std::string>
      words;  ///< lines that end options of stepcast: of comments `# stepcast: --model ...`
  std::vector<std::string> ignored, assumed;  ///< one sentence each
};

/// Reads the entries of a text.
///
///     script   literal assignments, arrays, $VAR, arithmetic, if, case, && and ||, and the command; or
///              arguments alone
///     recipe   Python: `a.b.c = literal`, `key=literal` in calls, and variables of literals; or Hydra's
///              overrides
///     toml     sections, scalars and lists
///     yaml     maps, also as JSON; comments `# Trainer: key: value` as keys; an empty text as null
///
/// \param name the text's name in errors \throws InputError with the line of what is not literal
LaunchFile read_script(const std::string& text, const std::string& name);
LaunchFile read_recipe(const std::string& text, const std::string& name);
LaunchFile read_toml(const std::string& text, const std::string& name);
LaunchFile read_yaml(const std::string& text, const std::string& name);

/// `yes` of flags and `true`, `no` of `false`, "" of kEmptyText; other values as they are.
std::string normal_value(const std::string& value);

/// The same of a flag, also as YAML 1.1 and Python have it: `on`, `1`.
std::string flag_value(const std::string& value);
/// `yes` or `no`.
bool is_flag(const std::string& value);

/// A script of a shell, by its first line.
bool is_script(const std::string& text);
/// Lines that are no comments.
std::string uncommented(const std::string& text);
/// Whether a line begins with `key =`.
bool assigns(const std::string& text);

/// Values of `a b`, `a,b` and `[a, "b"]`.
std::vector<std::string> values_in(std::string text);

/// Blocks of each stage of Megatron's layout: of `Et*3|(tt|)*29,m|L`. \throws InputError that names `name`
std::vector<int> stages_of(std::string layout, const std::string& name);

/// Blocks of each stage between torchtitan's points, as `layers.9,norm`, of a model with so many blocks.
std::vector<int> stages_between(const std::string& points, int layers);

/// 50432 of `50257 up to a multiple of 256`; other texts as they are.
std::string rounded_up(const std::string& text);

/// Adds what a comment of a plan contains: the number of processes, and options that the program's own do not
/// express. Other lines contain nothing.
void read_comment(const std::string& line, int number, LaunchFile& file);

}  // namespace stepcast

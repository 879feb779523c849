#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/commands/shell.hpp"
#include "tests/kineto/written_profile.hpp"

/// README.md and docs/: code is that of the files it is taken from, commands exist with all their options,
/// and those of blocks marked `sh runs` are run, one after the other. The output of a block marked `sh runs
/// table` contains all numbers of the tables that follow.
namespace stepcast::tests::documents_test {
namespace fs = std::filesystem;
namespace {

const fs::path kSource = STEPCAST_SOURCE_DIR;

/// A block between fences.
struct Block {
  fs::path file;
  int line = 0;
  std::string info;  ///< `cpp sim/strategies/all_reduce.cpp`
  std::string text;
  std::string tables;  ///< up to the next block
};

std::vector<fs::path> documents() {
  std::vector<fs::path> files{kSource / "README.md"};
  for (const auto& entry : fs::directory_iterator(kSource / "docs"))
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Block> blocks_of(const fs::path& file) {
  std::vector<Block> blocks;
  std::ifstream in(file);
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({file, number, line.substr(3), "", ""});
    } else if (inside) {
      blocks.back().text += line + "\n";
    } else if (!blocks.empty() && line.starts_with("|")) {
      blocks.back().tables += line + "\n";
    }
  }
  return blocks;
}

bool is_shell(const Block& block) { return block.info.empty() || block.info.starts_with("sh"); }

/// Words of every call of `program` in shell text. A call ends at an operator of the shell, a comment or a
/// line's end.
std::vector<std::vector<std::string>> calls(std::string text, const std::string& program) {
  text = std::regex_replace(text, std::regex(R"(\\\n)"), " ");
  text = std::regex_replace(text, std::regex(R"((^|\s)#[^\n]*)"), "$1\n");
  text = std::regex_replace(text, std::regex(R"(\$\{[^}]*\}|\$\w+)"), "VARIABLE");
  text = std::regex_replace(text, std::regex(R"(;|\||&&|>|\n|\$\(|\))"), " \n ");
  std::vector<std::vector<std::string>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> call;
    for (std::string word; words >> word;)
      if (!call.empty() || word == program) call.push_back(word);
    if (call.size() > 1) found.push_back(call);
  }
  return found;
}

/// Help of a command, cached.
const std::string& help_of(const Shell& shell, const std::string& command) {
  static std::map<std::string, std::string> known;
  const auto [entry, fresh] = known.try_emplace(command);
  if (fresh) {
    const Outcome outcome = shell.run("stepcast help " + command);
    if (outcome.exit_code == 0) entry->second = outcome.out;
  }
  return entry->second;
}

void check_call(const Shell& shell, const std::vector<std::string>& words, std::size_t first) {
  const std::string& command = words.at(first);
  if (command == "help" || command == "COMMAND") return;
  const std::string& help = help_of(shell, command);
  INFO("stepcast " << command);
  REQUIRE_FALSE(help.empty());
  for (std::size_t i = first + 1; i < words.size(); ++i) {
    if (words[i] == "--") return check_call(shell, words, i + 1);  // lab run -- COMMAND
    const std::string option = words[i].substr(0, words[i].find('='));
    INFO(option);
    if (option.starts_with("--"))
      CHECK(std::regex_search(help, std::regex("(^|\\n)  (-\\w \\[ )?" + option + "[ \\n\\[]")));
    else if (option.size() == 2 && option[0] == '-')
      CHECK_THAT(help, Catch::Contains("  " + option + " ["));
  }
}

}  // namespace

TEST_CASE("code in a document that names a file is that file", "[commands][documents]") {
  int compared = 0;
  for (const fs::path& file : documents())
    for (const Block& block : blocks_of(file)) {
      if (!block.info.starts_with("cpp ") && !block.info.starts_with("yaml ")) continue;
      INFO(block.file << ":" << block.line);
      std::ifstream in(kSource / block.info.substr(block.info.find(' ') + 1));
      std::ostringstream content;
      content << in.rdbuf();
      CHECK(block.text == content.str());
      ++compared;
    }
  CHECK(compared >= 1);
}

TEST_CASE("every command in the documents exists, with all its options", "[commands][documents]") {
  const Shell shell;
  const std::string dev = shell.run("'" + (kSource / "dev").string() + "' help").out;
  int commands = 0;
  for (const fs::path& file : documents())
    for (const Block& block : blocks_of(file)) {
      if (!is_shell(block)) continue;
      INFO(block.file << ":" << block.line << "\n" << block.text);
      for (const auto& call : calls(block.text, "stepcast")) {
        check_call(shell, call, 1);
        ++commands;
      }
      for (const auto& call : calls(block.text, "./dev"))
        CHECK_THAT(dev, Catch::Contains("\n  " + call[1] + " "));
    }
  CHECK(commands > 20);
}

/// Traces and calibrations of tests/golden replace those that `measure` and `calibrate` would write, a
/// written profile of a GPU that of the reader.
TEST_CASE("the examples of the documents that need no measurement run in their order",
          "[commands][documents]") {
  int runs = 0;
  for (const fs::path& file : documents()) {
    const Shell shell;
    const fs::path inputs = kSource / "tests" / "golden" / "inputs";
    for (const auto& [from, to] :
         std::map<std::string, std::string>{{"vgg11-bn-cifar.trace.json", "vgg.trace.json"},
                                            {"bert-base.trace.json", "bert-base.trace.json"}})
      if (fs::exists(inputs / from)) fs::copy_file(inputs / from, shell.path(to));
    fs::copy_file(kSource / "calibration/data/two-cores.calibration.json",
                  shell.path("here.calibration.json"));
    const WrittenProfile profile{.layers = {{{512, 512}, 1e3, 2e3}, {{512, 512}, 1e3, 2e3}}};
    shell.write("rank0.trace.json", profile.json().dump());
    REQUIRE(shell.run("gzip rank0.trace.json").exit_code == 0);
    for (const Block& block : blocks_of(file)) {
      if (!block.info.starts_with("sh runs")) continue;
      const Outcome outcome = shell.run("set -e\n" + block.text);
      INFO(block.file << ":" << block.line << "\n" << block.text << outcome.err);
      CHECK(outcome.exit_code == 0);
      ++runs;
      if (block.info != "sh runs table") continue;
      const std::regex cell(R"(\| ([\d.]+[kMB]?( %)?)(?= \|))");  // a number
      for (std::sregex_iterator at(block.tables.begin(), block.tables.end(), cell), end; at != end; ++at)
        CHECK_THAT(outcome.out, Catch::Contains((*at)[1].str()));
    }
  }
  CHECK(runs >= 5);
}

TEST_CASE("links of the documents to files of this repository lead somewhere", "[commands][documents]") {
  const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  for (const fs::path& file : documents()) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
      for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at) {
        INFO(file << ": " << at->str());
        CHECK(fs::exists(file.parent_path() / (*at)[1].str()));
      }
  }
}

TEST_CASE("README has at most 150 lines", "[commands][documents]") {
  std::ifstream in(kSource / "README.md");
  int lines = 0;
  for (std::string line; std::getline(in, line);) ++lines;
  CHECK(lines <= 150);
}

}  // namespace stepcast::tests::documents_test

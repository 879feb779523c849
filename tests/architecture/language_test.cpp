#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/text.hpp"

/// Phrases that the project has replaced by plain ones. This file alone contains them.
namespace stepcast::language_test {
namespace {

namespace fs = std::filesystem;

/// Whole words in lower case; a star at the end allows any ending.
const std::vector<std::string> kPhrases{"stand in line", "stood in line", "stands in line", "misfit*",
                                        "bout",          "bouts",         "so manieth",     "manieth",
                                        "quicken*",      "in vain",       "of which each"};

/// Folders whose files are read.
const std::vector<std::string> kChecked{"calibration", "commands", "core",    "docs",        "models",
                                        "packaging",   "plots",    "records", "reliability", "runner",
                                        "schedule",    "sim",      "studies", "tests",       "topologies"};

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// \param line in lower case
bool contains(const std::string& line, const std::string& phrase) {
  const bool any_ending = phrase.ends_with('*');
  const std::string word = phrase.substr(0, phrase.size() - (any_ending ? 1 : 0));
  for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_letter(line[at - 1])) && (any_ending || end == line.size() || !is_letter(line[end])))
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("sources, docs and YAML files contain none of the replaced phrases") {
  const fs::path root = STEPCAST_SOURCE_DIR;
  std::size_t files = 0;
  for (const std::string& folder : kChecked)
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".hpp" && extension != ".md" && extension != ".yaml") continue;
      if (entry.path().filename() == "language_test.cpp") continue;
      ++files;
      std::ifstream stream(entry.path());
      std::string line;
      for (int number = 1; std::getline(stream, line); ++number)
        for (const std::string& phrase : kPhrases)
          if (contains(lower(line), phrase))
            FAIL_CHECK(fs::relative(entry.path(), root).string() << ":" << number << ": '" << phrase << "'");
    }
  CHECK(files > 100);
}

TEST_CASE("a phrase is found as whole words, whatever its case") {
  CHECK(contains(lower("Ranks Stood in Line for a core"), "stood in line"));
  CHECK(contains(lower("the Misfits of a fit"), "misfit*"));
  CHECK_FALSE(contains(lower("about a minute"), "bout"));
  CHECK(contains(lower("one bout."), "bout"));
}

}  // namespace stepcast::language_test

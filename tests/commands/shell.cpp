#include "tests/commands/shell.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace stepcast::tests {
namespace fs = std::filesystem;
namespace {

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

Shell::Shell() {
  static std::atomic<int> counter{0};
  const std::string name = "stepcast_" + std::to_string(::getpid()) + "_" + std::to_string(counter++);
  folder_ = fs::temp_directory_path() / name / "folder";
  captured_ = fs::temp_directory_path() / name / "captured";
  fs::create_directories(folder_);
  fs::create_directories(captured_);
}

Shell::~Shell() { fs::remove_all(folder_.parent_path()); }

Outcome Shell::run(const std::string& line) const {
  const fs::path script = captured_ / "script.sh", out = captured_ / "out", err = captured_ / "err";
  std::ofstream(script) << "export PATH='" STEPCAST_BINARY_DIR "':$PATH\ncd '" << folder_.string() << "'\n"
                        << line << "\n";
  const std::string command =
      "/bin/bash '" + script.string() + "' >'" + out.string() + "' 2>'" + err.string() + "' </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content_of(out), content_of(err)};
}

void Shell::write(const std::string& name, const std::string& content) const {
  std::ofstream(folder_ / name, std::ios::binary) << content;
}

std::string Shell::read(const std::string& name) const { return content_of(folder_ / name); }

std::set<std::string> Shell::files() const {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace stepcast::tests

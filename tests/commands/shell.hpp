#pragma once

#include <filesystem>
#include <set>
#include <string>

/// The programs as users call them: from a shell, in an empty folder.
namespace stepcast::tests {

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::string err;
};

class Shell {
 public:
  Shell();   ///< an empty folder
  ~Shell();  ///< removes it
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  /// Runs a line of bash in the folder, with the built programs first in PATH.
  [[nodiscard]] Outcome run(const std::string& line) const;

  void write(const std::string& name, const std::string& content) const;
  [[nodiscard]] std::string read(const std::string& name) const;
  /// Names in the folder.
  [[nodiscard]] std::set<std::string> files() const;
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
  std::filesystem::path captured_;  ///< of standard output and error, outside the folder
};

}  // namespace stepcast::tests

#pragma once

#include <string>

namespace stepcast {

/// A file under a temporary name, removed at the end of the scope (after a rename there is nothing to remove)
/// and, by `remove_temporary_files`, if a signal ends the program.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int slot_ = -1;
};

/// Unlinks every temporary file in use. Async-signal-safe, for a signal handler.
void remove_temporary_files() noexcept;

}  // namespace stepcast

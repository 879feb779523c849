#pragma once

#include <string>

namespace stepcast {

/// A file under its temporary name: removed when the scope ends (after a rename there is nothing to remove)
/// and, through `remove_temporary_files`, when a signal ends the program.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  TemporaryFile(TemporaryFile&&) = delete;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int slot_ = -1;
};

/// Unlinks every temporary file that is in use now. Async-signal-safe, for a signal handler.
void remove_temporary_files() noexcept;

}  // namespace stepcast

#pragma once

#include <string>

namespace stepcast {

/// Folder for the files of one job on this machine, through which its ranks meet. Removed on destruction. The
/// folder of a killed program is removed by the next JobFolder: its lock is free.
class JobFolder {
 public:
  /// \throws RunError if it cannot be created in $TMPDIR, or /tmp
  JobFolder();
  ~JobFolder();
  JobFolder& operator=(JobFolder&&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  ///< open while this lives
};

}  // namespace stepcast

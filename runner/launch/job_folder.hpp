#pragma once

#include <string>

namespace stepcast {

/// A folder for the files of one job on this machine, through which its ranks meet; removed with this. One
/// whose program was killed is removed by the next that is made: its lock is free.
class JobFolder {
 public:
  /// \throws RunError when the folder for temporary files ($TMPDIR, else /tmp) takes no other
  JobFolder();
  ~JobFolder();
  JobFolder& operator=(JobFolder&&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  ///< open as long as this lives
};

}  // namespace stepcast

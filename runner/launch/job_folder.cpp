#include "runner/launch/job_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/error.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "stepcast-job-";

/// Locks the folder itself. \returns a descriptor, or -1 if another process has the lock
int locked(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 || ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

/// True if the folder may have been created but not locked yet.
bool may_be_new(const fs::path& folder) {
  constexpr std::chrono::minutes kLong{1};
  std::error_code problem;
  const fs::file_time_type changed = fs::last_write_time(folder, problem);
  return problem || (fs::is_empty(folder, problem) && fs::file_time_type::clock::now() - changed < kLong);
}

void remove_abandoned(const fs::path& parent) {
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, problem)) {
    if (!entry.path().filename().string().starts_with(kPrefix) || may_be_new(entry.path())) continue;
    const int lock = locked(entry.path());
    if (lock < 0) continue;
    fs::remove_all(entry.path(), problem);
    ::close(lock);
  }
}

}  // namespace

JobFolder::JobFolder() {
  const fs::path parent = fs::temp_directory_path();
  remove_abandoned(parent);
  std::string path = (parent / (kPrefix + std::string("XXXXXX"))).string();
  if (::mkdtemp(path.data()) == nullptr)
    throw RunError("cannot create a folder in " + parent.string() + ": " + std::strerror(errno));
  path_ = path;
  lock_ = locked(path_);
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace stepcast

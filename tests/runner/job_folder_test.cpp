#include "runner/launch/job_folder.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "runner/backend/session.hpp"

namespace stepcast::job_folder_test {

namespace fs = std::filesystem;

namespace {

/// A folder for temporary files of its own, while this lives.
class OwnTmp {
 public:
  OwnTmp() : path_(fs::temp_directory_path() / ("job_folder_test." + std::to_string(::getpid()))) {
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    fs::create_directories(path_);
    ::setenv("TMPDIR", path_.c_str(), 1);
  }
  ~OwnTmp() {
    if (before_)
      ::setenv("TMPDIR", before_->c_str(), 1);
    else
      ::unsetenv("TMPDIR");
    fs::remove_all(path_);
  }
  OwnTmp(const OwnTmp&) = delete;
  OwnTmp& operator=(const OwnTmp&) = delete;
  OwnTmp(OwnTmp&&) = delete;
  OwnTmp& operator=(OwnTmp&&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("a job removes its folder, and the next job that of a killed one, but not that of a running one") {
  const OwnTmp tmp;
  const fs::path killed = tmp.path() / "stepcast-job-killed";
  fs::create_directories(killed);
  std::ofstream(killed / "key") << "value";
  const fs::path unused = tmp.path() / "stepcast-job-unused";
  fs::create_directories(unused);
  fs::last_write_time(unused, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const fs::path young = tmp.path() / "stepcast-job-young";
  fs::create_directories(young);
  const fs::path other = tmp.path() / "not-ours";
  fs::create_directories(other);
  std::ofstream(other / "key") << "value";
  std::string path;
  {
    const JobFolder living;
    path = living.path();
    std::ofstream(fs::path(path) / "key") << "value";
    CHECK_FALSE(fs::exists(killed));
    CHECK_FALSE(fs::exists(unused));
    CHECK(fs::exists(young));
    const JobFolder second;
    CHECK(fs::exists(path));
    CHECK(second.path() != path);
  }
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists(other));
}

TEST_CASE(
    "a store in a folder keeps the last value of a key, and a key that is not set ends the wait with its "
    "name") {
  const OwnTmp tmp;
  const JobFolder folder;
  const auto writer = make_file_store(folder.path(), std::chrono::milliseconds(100));
  const auto reader = make_file_store(folder.path(), std::chrono::milliseconds(100));
  CHECK_FALSE(reader->has("joined/1"));
  writer->set("joined/1", {'1'});
  CHECK(reader->has("joined/1"));
  writer->set("joined/1", {'o', 'k'});
  CHECK(reader->get("joined/1") == std::vector<char>{'o', 'k'});
  CHECK_THROWS_WITH(reader->get("host/3"), Catch::Contains("no rank set 'host/3'"));
}

}  // namespace stepcast::job_folder_test

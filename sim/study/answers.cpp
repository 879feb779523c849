#include "sim/study/answers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

/// A process answers so many points and is replaced, so that what libraries never give back does not add up.
constexpr int kPointsOfAProcess = 256;
constexpr auto kSyncInterval = std::chrono::milliseconds(500);
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr int kLockTries = 40;
constexpr int kAnswered = 0, kMoreLeft = 10, kDiskFull = 11;

std::string rows_name(const StudyRun& run) {
  return "rows." + std::to_string(run.shard) + "-of-" + std::to_string(run.shards);
}

bool is_rows_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("rows.") && name.ends_with(".jsonl");
}

/// Rows of one file but for lost ones; `clean` tells whether all its lines are whole, and none is lost.
std::map<std::string, StudyRow> rows_of_file(const fs::path& path, const std::string& header, bool drop_lost,
                                             bool& clean) {
  std::map<std::string, StudyRow> rows;
  std::istringstream lines(read_file(path));
  std::string line;
  clean = true;
  if (!std::getline(lines, line)) {
    clean = false;
    return rows;
  }
  if (line + "\n" != header)
    throw InputError(path.string() +
                     ": holds answers of another study, or of another version of it, of its files or of " +
                     "this program; --force begins anew");
  while (std::getline(lines, line)) {
    std::optional<StudyRow> row = row_of_line(line);
    const bool keep = row && !lines.eof() && !(drop_lost && row->lost);
    clean = clean && keep;
    if (keep) rows.insert_or_assign(row->key, std::move(*row));
  }
  return rows;
}

/// What processes that answer share: which point is next, and on which each of them is.
struct Shared {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};
};

class SharedMemory {
 public:
  explicit SharedMemory(int jobs)
      : size_(sizeof(Shared) + sizeof(std::size_t) * static_cast<std::size_t>(jobs)) {
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw RunError(std::string("cannot share memory: ") + std::strerror(errno));
    new (memory_) Shared();
  }
  ~SharedMemory() { ::munmap(memory_, size_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedMemory(SharedMemory&&) = delete;
  SharedMemory& operator=(SharedMemory&&) = delete;

  Shared& operator*() const { return *static_cast<Shared*>(memory_); }
  Shared* operator->() const { return static_cast<Shared*>(memory_); }
  /// The point that process `job` is at.
  [[nodiscard]] std::atomic_ref<std::size_t> at(int job) const {
    auto* all = reinterpret_cast<std::size_t*>(static_cast<char*>(memory_) + sizeof(Shared));
    return std::atomic_ref<std::size_t>(all[job]);
  }

 private:
  std::size_t size_;
  void* memory_ = nullptr;
};

/// One run at a time answers a shard. Held by the processes that it forks as well, and let go with the last of them.
class ShardLock {
 public:
  explicit ShardLock(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0) throw RunError(path.string() + ": " + std::strerror(errno));
    // Processes of a run that was just killed take a moment to end.
    for (int i = 0; ::flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) {
      if (i == kLockTries) {
        ::close(file_);
        throw InputError(path.string() +
                         ": another run is answering this part of the study; wait for its end");
      }
      ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    }
  }
  ~ShardLock() { ::close(file_); }
  ShardLock(const ShardLock&) = delete;
  ShardLock& operator=(const ShardLock&) = delete;
  ShardLock(ShardLock&&) = delete;
  ShardLock& operator=(ShardLock&&) = delete;

 private:
  int file_;
};

/// Lines appended to a file that several processes write.
class Lines {
 public:
  explicit Lines(const fs::path& path) : file_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)) {
    if (file_ < 0) throw RunError(path.string() + ": " + std::strerror(errno));
  }
  ~Lines() {
    ::fdatasync(file_);
    ::close(file_);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  Lines(Lines&&) = delete;
  Lines& operator=(Lines&&) = delete;

  /// \returns false when the disk is full
  bool add(const std::string& line) {
    if (::write(file_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now - synced_ < kSyncInterval) return true;
    synced_ = now;
    return ::fdatasync(file_) == 0;
  }

 private:
  int file_;
  std::chrono::steady_clock::time_point synced_{};
};

struct StudyWork {
  const std::vector<const StudyPoint*>& points;
  const std::function<StudyRow(const StudyPoint&)>& answer;
  const SharedMemory& shared;
  fs::path path;
};

/// Of one process. \returns its exit code
int answer_some(const StudyWork& work, int job) {
  Lines lines(work.path);
  for (int i = 0; i < kPointsOfAProcess; ++i) {
    const std::size_t index = work.shared->next++;
    if (index >= work.points.size()) return kAnswered;
    work.shared.at(job) = index;
    const StudyPoint& point = *work.points[index];
    StudyRow row;
    try {
      row = work.answer(point);
    } catch (const std::bad_alloc&) {
      row = {point.key, {}, "out of memory", true};
    } catch (const std::exception& error) {
      row = {point.key, {}, printable(error.what()), false};
    }
    if (!lines.add(line_of(row))) return kDiskFull;
    work.shared.at(job) = work.points.size();
    ++work.shared->done;
  }
  return kMoreLeft;
}

pid_t fork_process(const StudyWork& work, int job) {
  work.shared.at(job) = work.points.size();
  const pid_t parent = ::getpid();
  std::cout.flush();  // or the new process would print it as well
  const pid_t process = ::fork();
  if (process < 0) throw RunError(std::string("cannot start a process: ") + std::strerror(errno));
  if (process > 0) return process;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(::getppid() == parent ? answer_some(work, job) : kAnswered);
}

void end_all(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes)
    if (process > 0) ::kill(process, SIGKILL);
  for (const pid_t process : processes)
    if (process > 0) ::waitpid(process, nullptr, 0);
}

/// What is to be done about a process that has ended. \returns whether another shall take its place
bool take_end(const StudyWork& work, int job, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDiskFull)
    throw RunError(work.path.string() + ": cannot be written; is the disk full?");
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kAnswered || WEXITSTATUS(status) == kMoreLeft))
    return WEXITSTATUS(status) == kMoreLeft;
  const std::size_t index = work.shared.at(job);
  if (index < work.points.size()) {
    const std::string how = WIFSIGNALED(status)
                                ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                : "ended with exit code " + std::to_string(WEXITSTATUS(status));
    Lines(work.path).add(line_of({work.points[index]->key, {}, "its process " + how, true}));
    ++work.shared->done;
  }
  return true;
}

void answer_all(const StudyWork& work, const StudyRun& run) {
  std::vector<pid_t> processes(static_cast<std::size_t>(run.jobs), -1);
  try {
    for (int job = 0; job < run.jobs; ++job)
      processes[static_cast<std::size_t>(job)] = fork_process(work, job);
    for (bool any = true; any;) {
      any = false;
      for (int job = 0; job < run.jobs; ++job) {
        pid_t& process = processes[static_cast<std::size_t>(job)];
        if (process <= 0) continue;
        any = true;
        int status = 0;
        if (::waitpid(process, &status, WNOHANG) != process) continue;
        process = -1;
        if (take_end(work, job, status)) process = fork_process(work, job);
      }
      run.on_progress(work.shared->done, work.points.size());
      if (any) ::poll(nullptr, 0, static_cast<int>(kLook.count()));
    }
  } catch (...) {
    end_all(processes);
    throw;
  }
}

std::map<std::string, StudyRow> rows_of_folder(const std::string& folder, const std::string& header,
                                               bool drop_lost) {
  std::map<std::string, StudyRow> rows;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    bool clean = true;
    if (!is_rows_file(entry.path())) continue;
    for (auto& [key, row] : rows_of_file(entry.path(), header, drop_lost, clean)) {
      const auto [known, is_new] = rows.try_emplace(key, row);
      if (!is_new && known->second.lost) known->second = row;  // another shard has an answer
    }
  }
  return rows;
}

}  // namespace

std::map<std::string, StudyRow> answer_study(const Study& study, const StudyRun& run,
                                             const std::string& header,
                                             const std::function<StudyRow(const StudyPoint&)>& answer) {
  const fs::path path = fs::path(run.folder) / (rows_name(run) + ".jsonl");
  fs::create_directories(run.folder);
  const ShardLock lock(fs::path(run.folder) / (rows_name(run) + ".lock"));
  if (run.force)
    for (const fs::directory_entry& entry : fs::directory_iterator(run.folder))
      if (is_rows_file(entry.path())) fs::remove(entry.path());
  const std::map<std::string, StudyRow> known = rows_of_folder(run.folder, header, true);
  bool clean = fs::exists(path);
  if (clean) {
    const std::map<std::string, StudyRow> own = rows_of_file(path, header, true, clean);
    if (!clean) {
      std::string whole = header;
      for (const auto& [key, row] : own) whole += line_of(row);
      write_file(path, whole, true);
    }
  } else {
    write_file(path, header, true);
  }
  std::vector<const StudyPoint*> points;
  std::set<std::string> asked;
  for (const StudyPoint& point : study.points)
    if (asked.insert(point.key).second &&
        static_cast<int>((asked.size() - 1) % static_cast<std::size_t>(run.shards)) == run.shard - 1 &&
        !known.contains(point.key))
      points.push_back(&point);
  const SharedMemory shared(run.jobs);
  if (!points.empty()) answer_all({points, answer, shared, path}, run);
  std::map<std::string, StudyRow> rows = rows_of_folder(run.folder, header, false);
  std::erase_if(rows, [&](const auto& row) { return !asked.contains(row.first); });
  return rows;
}

}  // namespace stepcast

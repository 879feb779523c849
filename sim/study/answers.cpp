#include "sim/study/answers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

/// A process answers so many neighbours of the study's order, always from the first one, known or not: the simulator's
/// clock goes on from point to point, and with it the rounding, which so is the same however a study was interrupted or
/// divided. What libraries never give back does not add up either. Of large studies, whose memory a fork copies, more.
std::size_t points_of_a_batch(const Study& study) {
  constexpr std::size_t kBatches = 2000, kLeast = 4, kMost = 64;
  return std::clamp(study.points.size() / kBatches, kLeast, kMost);
}

constexpr auto kSyncInterval = std::chrono::milliseconds(500);
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr int kLockTries = 40;
constexpr int kAnswered = 0, kMoreLeft = 10, kDiskFull = 11;
constexpr std::size_t kNextBatch = -1;

std::string rows_name(const StudyRun& run) {
  return "rows." + std::to_string(run.shard) + "-of-" + std::to_string(run.shards);
}

bool is_rows_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("rows.") && name.ends_with(".jsonl");
}

/// In what a header differs: `git_revision is "1", expected "2"`.
std::string difference_of(const std::string& found, const std::string& expected) {
  const auto theirs = nlohmann::json::parse(found, nullptr, false);
  const auto ours = nlohmann::json::parse(expected, nullptr, false);
  if (!theirs.is_object() || !ours.is_object()) return "its first line is no header";
  std::vector<std::string> parts;
  for (const auto& [name, value] : ours.items())
    if (!theirs.contains(name) || theirs.at(name) != value)
      parts.push_back(name + " is " + (theirs.contains(name) ? theirs.at(name).dump() : "missing") +
                      ", expected " + value.dump());
  for (const auto& [name, value] : theirs.items())
    if (!ours.contains(name)) parts.push_back(name + " is " + value.dump() + ", expected none");
  return joined(parts, "; ");
}

/// Rows of one file but for lost ones; `clean` tells whether all its lines are whole, and none is lost.
std::map<std::string, StudyRow> rows_of_file(const fs::path& path, const std::string& header, bool drop_lost,
                                             bool& clean) {
  std::map<std::string, StudyRow> rows;
  std::ifstream lines(path, std::ios::binary);
  std::string line;
  clean = true;
  if (!std::getline(lines, line)) {
    clean = false;
    return rows;
  }
  if (line + "\n" != header)
    throw InputError(path.string() +
                     ": holds answers of another study, or of another version of it, of its files or of " +
                     "this program (" + difference_of(line, header) + "); --force begins anew");
  while (std::getline(lines, line)) {
    std::optional<StudyRow> row = row_of_line(line);
    const bool keep = row && !lines.eof() && !(drop_lost && row->lost);
    clean = clean && keep;
    if (keep) rows.insert_or_assign(row->key, std::move(*row));
  }
  return rows;
}

/// What processes that answer share: which batch is next, and on which point each of them is.
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

/// A point of a batch. Known ones are answered again where another of the batch is not, but not written again.
struct Asked {
  const StudyPoint* point;
  std::size_t batch;
  bool known;
};

struct StudyWork {
  const std::vector<Asked>& points;
  std::vector<std::size_t> batches;  ///< the first point of each
  const std::function<StudyRow(const StudyPoint&)>& answer;
  const SharedMemory& shared;
  fs::path path;
};

/// Of one process. \param from where it goes on in a batch; kNextBatch: at the next one \returns its exit code
int answer_some(const StudyWork& work, int job, std::size_t from) {
  Lines lines(work.path);
  if (from == kNextBatch) {
    const std::size_t next = work.shared->next++;
    if (next >= work.batches.size()) return kAnswered;
    from = work.batches[next];
  }
  for (std::size_t index = from;
       index < work.points.size() && work.points[index].batch == work.points[from].batch; ++index) {
    work.shared.at(job) = index;
    const StudyPoint& point = *work.points[index].point;
    StudyRow row;
    try {
      row = work.answer(point);
    } catch (const std::bad_alloc&) {
      row = {point.key, {}, "out of memory", true};
    } catch (const std::exception& error) {
      row = {point.key, {}, printable(error.what()), false};
    }
    if (work.points[index].known) continue;
    if (!lines.add(line_of(row))) return kDiskFull;
    ++work.shared->done;
  }
  work.shared.at(job) = work.points.size();
  return kMoreLeft;
}

pid_t fork_process(const StudyWork& work, int job, std::size_t from = kNextBatch) {
  work.shared.at(job) = work.points.size();
  const pid_t parent = ::getpid();
  std::cout.flush();  // or the new process would print it as well
  const pid_t process = ::fork();
  if (process < 0) throw RunError(std::string("cannot start a process: ") + std::strerror(errno));
  if (process > 0) return process;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(::getppid() == parent ? answer_some(work, job, from) : kAnswered);
}

void end_all(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes)
    if (process > 0) ::kill(process, SIGKILL);
  for (const pid_t process : processes)
    if (process > 0) ::waitpid(process, nullptr, 0);
}

/// What is to be done about a process that has ended. \returns the one that takes its place; -1: none
pid_t take_end(const StudyWork& work, int job, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDiskFull)
    throw RunError(work.path.string() + ": cannot be written; is the disk full?");
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kAnswered || WEXITSTATUS(status) == kMoreLeft))
    return WEXITSTATUS(status) == kMoreLeft ? fork_process(work, job) : -1;
  const std::size_t index = work.shared.at(job);
  if (index >= work.points.size()) return fork_process(work, job);
  if (!work.points[index].known) {
    const std::string how = WIFSIGNALED(status)
                                ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                : "ended with exit code " + std::to_string(WEXITSTATUS(status));
    Lines(work.path).add(line_of({work.points[index].point->key, {}, "its process " + how, true}));
    ++work.shared->done;
  }
  const bool ends_batch =
      index + 1 == work.points.size() || work.points[index + 1].batch != work.points[index].batch;
  return fork_process(work, job, ends_batch ? kNextBatch : index + 1);
}

/// Signals of processes that end wait until they are asked for.
class EndsOfProcesses {
 public:
  EndsOfProcesses() {
    ::sigemptyset(&ends_);
    ::sigaddset(&ends_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &ends_, &before_);
  }
  ~EndsOfProcesses() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  EndsOfProcesses(const EndsOfProcesses&) = delete;
  EndsOfProcesses& operator=(const EndsOfProcesses&) = delete;
  EndsOfProcesses(EndsOfProcesses&&) = delete;
  EndsOfProcesses& operator=(EndsOfProcesses&&) = delete;

  /// For at most kLook.
  void wait() const {
    const timespec most{0, std::chrono::nanoseconds(kLook).count()};
    ::sigtimedwait(&ends_, nullptr, &most);
  }

 private:
  sigset_t ends_{}, before_{};
};

void answer_all(const StudyWork& work, const StudyRun& run) {
  std::vector<pid_t> processes(static_cast<std::size_t>(run.jobs), -1);
  const auto wanted = static_cast<std::size_t>(
      std::count_if(work.points.begin(), work.points.end(), [](const Asked& one) { return !one.known; }));
  const EndsOfProcesses ends;
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
        process = take_end(work, job, status);
      }
      run.on_progress(work.shared->done, wanted);
      if (any) ends.wait();
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
      const auto [known, is_new] = rows.try_emplace(key, std::move(row));
      if (!is_new && known->second.lost) known->second = std::move(row);  // another shard has an answer
    }
  }
  return rows;
}

/// `1/4, 3/4`: the shards whose part these places of the study's points are; "" where files are not all of n shards.
std::string shards_of(const std::set<fs::path>& files, const std::vector<std::size_t>& places,
                      std::size_t points_of_a_batch) {
  std::size_t shards = 0;
  for (const fs::path& file : files) {
    std::size_t part = 0, of = 0;
    if (std::sscanf(file.filename().c_str(), "rows.%zu-of-%zu.", &part, &of) != 2 || of < 2) return "";
    if (shards != 0 && of != shards) return "";
    shards = of;
  }
  if (shards == 0) return "";
  std::set<std::size_t> parts;
  for (const std::size_t place : places) parts.insert(place / points_of_a_batch % shards + 1);
  std::string text;
  for (const std::size_t part : parts)
    text += (text.empty() ? "" : ", ") + std::to_string(part) + "/" + std::to_string(shards);
  return text;
}

/// Answers of several folders as one file of the run's own folder, in the order of the study.
void merge_answers(const Study& study, const StudyRun& run, const std::string& header, const fs::path& path) {
  std::map<std::string, StudyRow> rows;
  std::map<std::string, fs::path> from;
  std::set<fs::path> files;
  std::vector<std::string> folders = run.merged;
  folders.push_back(run.folder);
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) throw InputError(folder + ": is no folder; name those with answers");
    std::size_t found = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (!is_rows_file(entry.path())) continue;
      ++found;
      if (!files.insert(fs::canonical(entry.path())).second) continue;
      bool clean = true;
      for (auto& [key, row] : rows_of_file(entry.path(), header, true, clean)) {
        const auto known = rows.find(key);
        if (known != rows.end() && line_of(known->second) != line_of(row))
          throw InputError(entry.path().string() + ": answers '" + key + "' otherwise than " +
                           from.at(key).string());
        if (known != rows.end()) continue;
        rows.emplace(key, std::move(row));
        from.emplace(key, entry.path());
      }
    }
    if (found == 0 && folder != run.folder)
      throw InputError(folder + ": holds no answers: no file is called rows.K-of-N.jsonl");
  }
  std::string text = header;
  std::set<std::string> asked;
  std::vector<std::size_t> missing;
  std::string such_as;
  for (const StudyPoint& point : study.points) {
    const std::size_t place = asked.size();
    if (!asked.insert(point.key).second) continue;
    if (const auto row = rows.find(point.key); row != rows.end()) {
      text += line_of(row->second);
      continue;
    }
    if (missing.empty()) such_as = point.key;
    missing.push_back(place);
  }
  write_file(path, text, true);
  if (missing.empty()) return;
  const std::string shards = shards_of(files, missing, points_of_a_batch(study));
  throw InputError(counted(missing.size(), "point") + " of " + std::to_string(asked.size()) +
                   (missing.size() == 1 ? " is" : " are") + " missing, such as '" + such_as + "'" +
                   (shards.empty() ? "" : " (of --shard " + shards + ")") +
                   "; what is there was taken, and 'stepcast study " + study.path + " -o " + run.folder +
                   "' answers the rest and puts all together");
}

}  // namespace

std::map<std::string, StudyRow> answer_study(const Study& study, const StudyRun& run,
                                             const std::string& header,
                                             const std::function<StudyRow(const StudyPoint&)>& answer) {
  const fs::path path = fs::path(run.folder) / (rows_name(run) + ".jsonl");
  std::error_code problem;
  fs::create_directories(run.folder, problem);
  if (problem || !fs::is_directory(run.folder))
    throw InputError("-o " + run.folder + ": is no folder for answers, nor can it be made one" +
                     (problem ? ": " + problem.message() : ""));
  const ShardLock lock(fs::path(run.folder) / (rows_name(run) + ".lock"));
  if (run.force)
    for (const fs::directory_entry& entry : fs::directory_iterator(run.folder))
      if (is_rows_file(entry.path())) fs::remove(entry.path());
  if (!run.merged.empty()) merge_answers(study, run, header, path);
  std::set<std::string> known;
  for (const auto& [key, row] : rows_of_folder(run.folder, header, true)) known.insert(key);
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
  const std::size_t each = points_of_a_batch(study);
  std::vector<Asked> points;
  std::unordered_set<std::string_view> asked;
  for (const StudyPoint& point : study.points) {
    if (!asked.insert(point.key).second) continue;
    const std::size_t batch = (asked.size() - 1) / each;
    if (static_cast<int>(batch % static_cast<std::size_t>(run.shards)) == run.shard - 1)
      points.push_back({&point, batch, known.contains(point.key)});
  }
  known.clear();
  std::vector<std::size_t> batches;
  for (std::size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    bool all_known = true;
    for (; end < points.size() && points[end].batch == points[begin].batch; ++end)
      all_known = all_known && points[end].known;
    if (!all_known) batches.push_back(begin);
  }
  const SharedMemory shared(run.jobs);
  if (!batches.empty()) answer_all({points, batches, answer, shared, path}, run);
  std::map<std::string, StudyRow> rows = rows_of_folder(run.folder, header, false);
  std::erase_if(rows, [&](const auto& row) { return !asked.contains(row.first); });
  return rows;
}

}  // namespace stepcast

#include "sim/study/answers.hpp"

#include <poll.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using Answer = std::function<StudyRow(const StudyPoint&)>;

/// Files of rows in a folder.
std::vector<fs::path> rows_files(const std::string& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rows.") && name.ends_with(".jsonl")) files.push_back(entry.path());
  }
  return files;
}

/// How two headers differ: `git_revision is "1", expected "2"`.
std::string difference_of(const std::string& found, const std::string& expected) {
  const auto theirs = nlohmann::json::parse(found, nullptr, false);
  const auto ours = nlohmann::json::parse(expected, nullptr, false);
  if (!theirs.is_object() || !ours.is_object()) return "its first line is no header";
  std::vector<std::string> parts;
  for (const auto& [name, value] : ours.items())
    if (!theirs.contains(name) || theirs.at(name) != value)
      parts.push_back(fmt::format("{} is {}, expected {}", name,
                                  theirs.contains(name) ? theirs.at(name).dump() : "missing", value.dump()));
  for (const auto& [name, value] : theirs.items())
    if (!ours.contains(name)) parts.push_back(fmt::format("{} is {}, expected none", name, value.dump()));
  return joined(parts, "; ");
}

struct FileRows {
  std::vector<StudyRow> rows;
  bool complete = false;  ///< all lines are whole, and no row was dropped
};

FileRows read_rows(const fs::path& path, const std::string& header, bool drop_lost) {
  FileRows result;
  std::ifstream lines(path, std::ios::binary);
  std::string line;
  if (!std::getline(lines, line)) return result;
  if (line + "\n" != header)
    throw InputError(
        "{}: holds answers of another study, or of another version of it, of its files or of this program "
        "({}); --force starts again",
        path.string(), difference_of(line, header));
  result.complete = true;
  while (std::getline(lines, line)) {
    std::optional<StudyRow> row = row_of_line(line);
    const bool keep = row && !lines.eof() && !(drop_lost && row->lost);
    result.complete = result.complete && keep;
    if (keep) result.rows.push_back(std::move(*row));
  }
  return result;
}

StudyRows rows_of_folder(const std::string& folder, const std::string& header, bool drop_lost) {
  StudyRows rows;
  for (const fs::path& file : rows_files(folder))
    for (StudyRow& row : read_rows(file, header, drop_lost).rows) {
      const auto known = rows.find(row.key);
      if (known == rows.end() || known->second.lost)  // another shard may have an answer
        rows.insert_or_assign(row.key, std::move(row));
    }
  return rows;
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Opens a file to append to it; child processes do not inherit it over exec.
File open_file(const fs::path& path) {
  File file(std::fopen(path.c_str(), "ae"), std::fclose);
  if (!file) throw RunError("{}: {}", path.string(), std::strerror(errno));
  return file;
}

/// Waits up to 2 s, because child processes of a run that was just killed hold its lock for a moment.
void lock_shard(const File& file, const fs::path& path) {
  constexpr int kTries = 40, kPause_ms = 50;
  for (int i = 0; ::flock(::fileno(file.get()), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (i == kTries)
      throw InputError("{}: another run is answering this part of the study; wait for its end",
                       path.string());
    ::poll(nullptr, 0, kPause_ms);
  }
}

/// Appends rows to a file and syncs it twice per second.
class RowWriter {
 public:
  explicit RowWriter(const fs::path& path) : path_(path), file_(open_file(path)) {}
  ~RowWriter() { ::fdatasync(::fileno(file_.get())); }

  void add(const std::string& line) {
    constexpr auto kInterval = std::chrono::milliseconds(500);
    const int file = ::fileno(file_.get());
    bool written = ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    const auto now = std::chrono::steady_clock::now();
    if (now - synced_ >= kInterval) {
      written = ::fdatasync(file) == 0 && written;
      synced_ = now;
    }
    if (!written) throw RunError("{}: cannot be written; is the disk full?", path_.string());
  }

 private:
  fs::path path_;
  File file_;
  std::chrono::steady_clock::time_point synced_{};
};

/// A point of a batch. Known points are computed if another of the batch is not known, but not written again.
struct BatchPoint {
  const StudyPoint* point;
  bool known;
};
using Batch = std::vector<BatchPoint>;

/// The row of a point, or of its error.
StudyRow answered(const StudyPoint& point, const Answer& answer) {
  try {
    return answer(point);
  } catch (const std::bad_alloc&) {
    return {point.key, {}, "out of memory", true};
  } catch (const std::exception& error) {
    return {point.key, {}, printable(error.what()), false};
  }
}

/// Computes batches in child processes, at most `run.jobs` at a time.
class Workers {
 public:
  Workers(const std::vector<Batch>& batches, const Answer& answer, const StudyRun& run, const fs::path& path)
      : batches_(batches), answer_(answer), run_(run), rows_(path), next_(batches.size()) {
    for (const Batch& batch : batches)
      wanted_ += static_cast<std::size_t>(std::ranges::count(batch, false, &BatchPoint::known));
  }

  void compute_all() {
    for (int job = 0; job < run_.jobs; ++job) start_next();
    children_.receive(
        [&](std::size_t batch, const ChildMessage& message) {
          store(batches_[batch][next_[batch]++], message.text);
        },
        [&](std::size_t batch, int status) { replace(batch, status); });
  }

 private:
  void start_next() {
    if (next_batch_ < batches_.size()) start(next_batch_++);
  }

  void start(std::size_t number) {
    children_.start(number, [&](const ChildPool::Send& send) {
      for (std::size_t i = next_[number]; i < batches_[number].size(); ++i)
        send({i, line_of(answered(*batches_[number][i].point, answer_))});
    });
  }

  void store(const BatchPoint& point, const std::string& line) {
    if (point.known) return;
    rows_.add(line);
    run_.on_progress(wanted_);
  }

  /// The point at which a process died has a lost row; another process computes the rest of its batch.
  void replace(std::size_t number, int status) {
    const Batch& batch = batches_[number];
    if (next_[number] < batch.size()) {
      const BatchPoint& point = batch[next_[number]++];
      const auto how = WIFSIGNALED(status)
                           ? fmt::format("its process was ended by signal {}", WTERMSIG(status))
                           : fmt::format("its process ended with exit code {}", WEXITSTATUS(status));
      store(point, line_of({point.point->key, {}, how, true}));
    }
    next_[number] < batch.size() ? start(number) : start_next();
  }

  const std::vector<Batch>& batches_;
  const Answer& answer_;
  const StudyRun& run_;
  RowWriter rows_;
  ChildPool children_;
  std::vector<std::size_t> next_;  ///< by batch: the point that a process is computing
  std::size_t next_batch_ = 0, wanted_ = 0;
};

/// `1/4, 3/4`: the shards that contain these points, counted in the order of the study. Empty if the files
/// are not those of one number of shards.
std::string shards_of(const std::set<fs::path>& files, const std::vector<std::size_t>& points,
                      std::size_t batch) {
  std::size_t shards = 0;
  for (const fs::path& file : files) {
    std::size_t part = 0, of = 0;
    if (std::sscanf(file.filename().c_str(), "rows.%zu-of-%zu.", &part, &of) != 2 || of < 2) return "";
    if (shards != 0 && of != shards) return "";
    shards = of;
  }
  if (shards == 0) return "";
  std::set<std::size_t> parts;
  for (const std::size_t point : points) parts.insert(point / batch % shards + 1);
  return joined(transformed(parts, [&](std::size_t part) { return fmt::format("{}/{}", part, shards); }));
}

struct MergedRows {
  StudyRows rows;
  std::set<fs::path> files;
};

MergedRows read_folders(const StudyRun& run, const std::string& header) {
  MergedRows all;
  std::map<std::string, fs::path> from;
  std::vector<std::string> folders = run.merged;
  folders.push_back(run.folder);
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) throw InputError("{}: is not a folder; name those with answers", folder);
    const std::vector<fs::path> files = rows_files(folder);
    if (files.empty() && folder != run.folder)
      throw InputError("{}: holds no answers: no file is called rows.K-of-N.jsonl", folder);
    for (const fs::path& file : files) {
      if (!all.files.insert(fs::canonical(file)).second) continue;
      for (StudyRow& row : read_rows(file, header, true).rows) {
        const auto [known, is_new] = from.try_emplace(row.key, file);
        if (!is_new && line_of(all.rows.at(row.key)) != line_of(row))
          throw InputError("{}: answers '{}' otherwise than {}", file.string(), row.key,
                           known->second.string());
        if (is_new) all.rows.emplace(row.key, std::move(row));
      }
    }
  }
  return all;
}

/// Writes the rows of several folders to one file of the run's folder, in the order of the study.
void merge_folders(const Study& study, const StudyRun& run, const std::string& header, const fs::path& path) {
  const MergedRows all = read_folders(run, header);
  std::string text = header, example;
  std::set<std::string> keys;
  std::vector<std::size_t> missing;
  for (const StudyPoint& point : study.points) {
    const std::size_t index = keys.size();
    if (!keys.insert(point.key).second) continue;
    if (const auto row = all.rows.find(point.key); row != all.rows.end()) {
      text += line_of(row->second);
      continue;
    }
    if (missing.empty()) example = point.key;
    missing.push_back(index);
  }
  write_file(path, text, true);
  if (missing.empty()) return;
  const std::string shards = shards_of(all.files, missing, points_per_batch(study));
  throw InputError(
      "{} of {} {} missing, such as '{}'{}; the others were taken; 'stepcast study {} -o {}' computes the "
      "rest and joins all",
      counted(missing.size(), "point"), keys.size(), missing.size() == 1 ? "is" : "are", example,
      shards.empty() ? "" : " (of --shard " + shards + ")", study.path, run.folder);
}

/// Makes the file of rows, or drops lines of it that are not whole and rows that were lost.
void prepare_file(const fs::path& path, const std::string& header) {
  std::string text = header;
  if (fs::exists(path)) {
    const FileRows own = read_rows(path, header, true);
    if (own.complete) return;
    for (const StudyRow& row : own.rows) text += line_of(row);
  }
  write_file(path, text, true);
}

/// Batches of this run's shard in which a row is missing.
std::vector<Batch> batches_of(const Study& study, const StudyRun& run, const StudyRows& known) {
  std::vector<Batch> all;
  const std::size_t size = points_per_batch(study);
  std::unordered_set<std::string_view> keys;
  for (const StudyPoint& point : study.points) {
    if (!keys.insert(point.key).second) continue;
    if (all.empty() || all.back().size() == size) all.emplace_back();
    all.back().push_back({&point, known.contains(point.key)});
  }
  std::vector<Batch> own;
  for (std::size_t i = static_cast<std::size_t>(run.shard) - 1; i < all.size();
       i += static_cast<std::size_t>(run.shards))
    if (!std::ranges::all_of(all[i], &BatchPoint::known)) own.push_back(std::move(all[i]));
  return own;
}

}  // namespace

std::size_t points_per_batch(const Study& study) {
  constexpr std::size_t kBatches = 2000, kMin = 4, kMax = 64;
  const bool apart = study.points.size() < kMax && std::ranges::none_of(study.points, [](const auto& point) {
                       return point.assigned.find("failures") != nullptr;
                     });
  return apart ? 1 : std::clamp(study.points.size() / kBatches, kMin, kMax);
}

StudyRows answer_study(const Study& study, const StudyRun& run, const std::string& header,
                       const Answer& answer) {
  const fs::path rows_path = fs::path(run.folder) / fmt::format("rows.{}-of-{}", run.shard, run.shards);
  const fs::path path = rows_path.string() + ".jsonl", lock_path = rows_path.string() + ".lock";
  std::error_code problem;
  fs::create_directories(run.folder, problem);
  if (problem || !fs::is_directory(run.folder))
    throw InputError("-o {}: is not a folder for answers, nor can it be made one{}", run.folder,
                     problem ? ": " + problem.message() : "");
  for (const char* name : {"results.csv", "report.html"})
    if (!run.force && rows_files(run.folder).empty() && fs::exists(fs::path(run.folder) / name))
      throw InputError("-o {}: has a {} but no rows.*.jsonl; choose another folder, or --force overwrites it",
                       run.folder, name);
  const File lock = open_file(lock_path);
  lock_shard(lock, lock_path);
  if (run.force)
    for (const fs::path& file : rows_files(run.folder)) fs::remove(file);
  if (!run.merged.empty()) merge_folders(study, run, header, path);
  const std::vector<Batch> batches = batches_of(study, run, rows_of_folder(run.folder, header, true));
  prepare_file(path, header);
  if (!batches.empty()) Workers(batches, answer, run, path).compute_all();
  StudyRows rows = rows_of_folder(run.folder, header, false);
  std::unordered_set<std::string_view> keys;
  for (const StudyPoint& point : study.points) keys.insert(point.key);
  std::erase_if(rows, [&](const auto& row) { return !keys.contains(row.first); });
  return rows;
}

}  // namespace stepcast

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

/// Computes the rows of a study in several processes, so that nothing is lost and nothing is computed twice.
namespace stepcast {

struct StudyRun {
  std::string folder;
  int jobs = 1;               ///< processes at the same time
  int shard = 1, shards = 1;  ///< this run computes every `shards`-th batch of points, from the `shard`-th
  bool force = false;         ///< start again if the folder holds rows of another study
  std::vector<std::string> merged{};  ///< folders whose rows are joined; nothing is computed then
  std::function<void(std::size_t total)> on_progress = [](std::size_t) {};  ///< called for each computed row
};

/// Points that one child process computes. A batch always starts at the same point, known or not: the
/// simulator's clock runs on from point to point, and so does its rounding. Rows thus do not depend on
/// interruptions and shards. A new process also frees what libraries never free. Points of small studies are
/// apart, unless they may share a forecast as trainings do. Batches of large studies are larger, because a
/// fork copies memory.
std::size_t points_per_batch(const Study& study);

/// Computes the rows that `folder` does not hold yet. Each row is one line, appended to
/// `rows.SHARD-of-SHARDS.jsonl` at once. An incomplete line of an interrupted run is dropped, and its point
/// computed again. A point that fails has a row with its error. If its process dies or runs out of memory,
/// the row is marked as lost, and the next run computes it again. Processes are forked, so that all use what
/// `answer` has loaded before; they end with this one.
///
/// With `merged`, the rows of these folders and the own ones are joined to one file in the study's order.
/// They must have the same header, be equal if several folders have them, and be complete. \param header
/// first line of the file: program, inputs and study of its rows \throws InputError if the folder holds rows
/// with another header or another run computes the same shard; RunError if the disk is full \returns all rows
/// of the folder that belong to points of the study, by key
StudyRows answer_study(const Study& study, const StudyRun& run, const std::string& header,
                       const std::function<StudyRow(const StudyPoint&)>& answer);

}  // namespace stepcast

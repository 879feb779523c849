#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/study/rows.hpp"
#include "sim/study/study.hpp"

/// Answering the points of a study in several processes, so that nothing is lost and nothing done twice.
namespace stepcast {

struct StudyRun {
  std::string folder;
  int jobs = 1;               ///< processes that answer
  int shard = 1, shards = 1;  ///< of all points this run answers each `shards`-th, from the `shard`-th
  bool force = false;         ///< begin anew where the folder holds another study's answers
  std::vector<std::string> merged{};  ///< folders whose answers are taken; none is asked then
  /// What is done now, of how many.
  std::function<void(std::size_t done, std::size_t total)> on_progress = [](std::size_t, std::size_t) {};
};

/// Answers what `folder` does not hold yet. Every answer is one line that is appended to
/// `rows.SHARD-of-SHARDS.jsonl` at once; a line that an interrupted run left unfinished is dropped and its point
/// answered again. A point that fails is a row with its error; one whose process dies or that runs out of memory is
/// lost, and asked again by the next run. Processes are forked, so that what `answer` has loaded before serves all,
/// and end with this one.
/// With `merged` it takes the answers of those folders and its own, writes them as one file in the study's order, and
/// asks nothing: they must be of the same header, say the same where several have one, and be complete.
/// \param header first line of the file: who wrote it, and for which study. Rows of another header are refused
/// \throws InputError when the folder holds rows of another header, or another run answers the same shard; RunError
/// when the disk is full
/// \returns all rows of the folder whose points are the study's, by key
std::map<std::string, StudyRow> answer_study(const Study& study, const StudyRun& run,
                                             const std::string& header,
                                             const std::function<StudyRow(const StudyPoint&)>& answer);

}  // namespace stepcast

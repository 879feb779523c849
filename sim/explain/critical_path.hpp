#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/replay/recording.hpp"

/// Critical path of a step: a chain of operations through ranks and streams. Each began when the one before
/// it allowed it.
namespace stepcast {

/// A part of the critical path between two times.
struct PathPart {
  int rank = 0;
  int op = -1;  ///< of the rank's program; -1: no operation accounts for it
  double start_s = 0.0;
  double end_s = 0.0;
  std::string kind;   ///< `backward`, `all_reduce`, `message`, `host issue`, ...
  std::string layer;  ///< `layer3`, or `layer9..layer11` for arrays of several layers; "": no layer
  std::string link;   ///< tier, or bottleneck link; "": crosses no link
  [[nodiscard]] double seconds() const { return end_s - start_s; }
};

/// A change of the path from one rank to another, because the first one waits.
struct PathWait {
  int rank = 0;
  int for_rank = 0;
  std::string name;     ///< of the operation of `rank` that waits
  double time_s = 0.0;  ///< from its start until `for_rank` joins
};

/// Parts adjoin in order of time and add up to the step of the slowest rank.
struct CriticalPath {
  int slowest = 0;
  double step_s = 0.0;
  std::vector<PathPart> parts;
  std::vector<PathWait> waits;
};

/// Walks back from the end of the slowest rank's step. An operation's end is explained by its own duration,
/// and its start by what allowed it to begin:
///
///     compute           the operation before it on the main thread, or one that it comes after, whichever
///                       ended last; its last part by the launch thread, if that had yet to issue it
///     hook              the piece of its parent before it, or an operation that it comes after
///     collective        from the time the last rank joined, the network; before that the cause of that
///                       rank's delay. In a gather, scatter or broadcast ranks wait for the root alone
///     send, receive     the same for two ranks
///     other streams     an operation that it comes after, the end of another one in its queue, or the main
///                       thread, which issued it
///
/// A step that no operation fills to its end ends with the `rest of the step`. The path enters the step
/// before if a rank had not ended that one, as in pipelines; time before it is `the step before`. Ranks that
/// were not replayed have the times of their class.
CriticalPath critical_path(const Recording& recording);

/// Names and seconds.
using Contributions = std::vector<std::pair<std::string, double>>;
/// Sums of the parts of a path by `key`, largest first.
Contributions contributions(const CriticalPath& path, const std::function<std::string(const PathPart&)>& key);

}  // namespace stepcast

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/replay/recording.hpp"

/// Why a step took so long: the chain of operations, through ranks and streams, of which each began when the one before it
/// let it.
namespace stepcast {

/// A piece of the critical path: what was under way on it from one date to another.
struct PathPart {
  int rank = 0;
  int op = -1;  ///< of the rank's program; -1: what no operation accounts for
  double start_s = 0.0;
  double end_s = 0.0;
  std::string kind;   ///< `backward`, `all_reduce`, `message`, `host issue`, ...
  std::string layer;  ///< `layer3`, `layer9..layer11` of what carries those of several; "": of none
  std::string link;   ///< tier, or link where one is the fullest; "": crosses none
  [[nodiscard]] double seconds() const { return end_s - start_s; }
};

/// Where the path goes from one rank to another, for whom the first waited.
struct PathWait {
  int rank = 0;
  int for_rank = 0;
  std::string op;        ///< of `rank`, that could not go on
  double seconds = 0.0;  ///< for which it was ready before the other one
};

/// Parts adjoin and are in order of time: they add up to the step of the slowest rank.
struct CriticalPath {
  int slowest = 0;
  double step_s = 0.0;
  std::vector<PathPart> parts;
  std::vector<PathWait> waits;
};

/// Walks back from the end of the slowest rank's step. The end of an operation is explained by its own duration, and its
/// beginning by what let it begin:
///
///     compute           the operation before it on the main thread, or what it comes after, whichever ended last; its last
///                       part by the host, where that had yet to issue it
///     hook              the piece of its operation before it, or what it comes after
///     collective        from when the last rank joined, on the network; before that by what kept that rank. Who is not the
///                       root waits for nobody but the root of a gather, scatter or broadcast
///     send, receive     the same of two ranks
///     other streams     what it comes after, the end of another one in its queue, or the main thread, which issued it
///
/// A step that no operation fills to its end ends with the `rest of the step`. The path leads into the step before where a
/// rank had yet to end that, as stages of a pipeline have; what lies before that one is `the step before`. Dates of ranks that
/// stand for others are those of their class.
CriticalPath critical_path(const Recording& recording);

/// Sum over the parts of a path by what `key` makes of them, the largest first.
std::vector<std::pair<std::string, double>> contributions(
    const CriticalPath& path, const std::function<std::string(const PathPart&)>& key);

/// How long main threads stood still because another rank had yet to come: who waits, for whom, and because of whom, for whom
/// that one was waiting meanwhile, and so on; of all ranks that are replayed, whether or not it made the step longer.
struct Standstill {
  int rank = 0;
  int for_rank = 0;
  int because_of = 0;
  double seconds = 0.0;
};
/// The rank because of which others stand still longest, and how long they do. \pre not empty
std::pair<int, double> most_waited_for(const std::vector<Standstill>& standstills);
/// The longest first. Without waits for links, and for messages that are under way.
std::vector<Standstill> standstills(const Recording& recording);

/// What each replayed rank computes in the step, s.
std::map<int, double> computing(const Recording& recording);

}  // namespace stepcast

#pragma once

#include <deque>
#include <vector>

#include "sim/kineto/names.hpp"
#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// When autograd's nodes, updates and Gloo's transfers run on the CPU threads of a profile.
struct HostTimes {
  struct Span {
    double begin = 0.0, end = 0.0;
  };
  std::deque<Span> nodes{};       ///< of all threads, sorted by begin; each ends with the last one so far
  std::deque<Span> engine{};      ///< events of autograd's other threads, sorted by begin
  std::vector<Span> transfers{};  ///< `gloo:*`, sorted by begin
  std::vector<double> updates{};  ///< begins of `Optimizer.step#` without nodes inside, sorted

  HostTimes(const KinetoFile& file, const std::vector<NameKind>& kinds, int main_track);

  /// True if nodes begin between two times.
  [[nodiscard]] bool has_nodes(double from, double to) const;
  /// Begin and end of the nodes before a time; lowest(): none.
  [[nodiscard]] Span last_node(double time) const;
  /// True if an update begins between a time and the next node.
  [[nodiscard]] bool updates_next(double time) const;
  /// How long a thread without operations between two times waits for Gloo: up to the last end of a transfer.
  /// \param called it called a collective right before. Else a transfer must end when the thread goes on.
  [[nodiscard]] double waited(double from, double until, bool called) const;
};

}  // namespace stepcast

#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/replay/recording.hpp"

namespace stepcast {

/// An operation of a replayed rank.
struct RecordedPosition {
  int rank = 0;
  int op = -1;   ///< -1: the beginning of the step
  int back = 0;  ///< 1: in the step before
  [[nodiscard]] RecordedPosition at(int other) const { return {rank, other, back}; }
};

/// Operations of a Recording, and which of them wait for each other across ranks. The Recording outlives it.
class RecordedStep {
 public:
  explicit RecordedStep(const Recording& recording);

  [[nodiscard]] const Recording& recording() const { return recording_; }
  [[nodiscard]] const Program& program(int rank) const { return recording_.schedule.program(rank); }
  [[nodiscard]] const Op& op(RecordedPosition position) const {
    return program(position.rank).ops[position.op];
  }
  [[nodiscard]] const RecordedRank& rank(int rank) const { return recording_.ranks.at(rank); }
  [[nodiscard]] const std::vector<RecordedOp>& ops(RecordedPosition position) const {
    return position.back == 0 ? rank(position.rank).ops : rank(position.rank).before;
  }
  [[nodiscard]] const RecordedOp& times(RecordedPosition position) const {
    return ops(position)[position.op];
  }
  [[nodiscard]] double start_of_step(RecordedPosition position) const {
    return position.back == 0 ? rank(position.rank).start_s : rank(position.rank).before_s;
  }
  /// Times that differ by less are equal, s.
  [[nodiscard]] double tolerance() const { return tolerance_; }

  [[nodiscard]] bool on_main(RecordedPosition position) const {
    return op(position).stream == Stream::kCompute;
  }
  /// A hook runs on the main thread inside its parent operation.
  [[nodiscard]] bool is_hook(RecordedPosition position) const {
    return on_main(position) && op(position).within >= 0;
  }

  /// The operation that joined a collective or message last, among those that it cannot start without. None
  /// for other operations.
  [[nodiscard]] std::optional<RecordedPosition> last_to_join(RecordedPosition position);

  /// `backward`, `all_reduce`, `message`, ...
  [[nodiscard]] std::string kind(RecordedPosition position) const;
  /// `layer3`, or `layer9..layer11` for arrays of several layers; "" without a layer.
  [[nodiscard]] std::string layer(RecordedPosition position) const;

 private:
  /// Calls of one group, or messages in one direction with one offset and tag.
  using SequenceKey = std::tuple<char, int, int>;

  [[nodiscard]] SequenceKey key_of(const Op& op, int rank) const;
  /// Operations of a rank with one key, in program order.
  const std::vector<int>& sequence(int rank, const SequenceKey& key);
  std::vector<RecordedPosition> partners(RecordedPosition position);
  std::vector<RecordedPosition> members(RecordedPosition position, const Collective& collective);
  [[nodiscard]] std::string layers(const std::vector<int>& tensors) const;
  [[nodiscard]] std::string segment(int index) const {
    return index < 0 ? std::string() : recording_.segments[index];
  }

  const Recording& recording_;
  double tolerance_ = 0.0;
  std::map<int, std::map<SequenceKey, std::vector<int>>> sequences_;  ///< by rank
};

}  // namespace stepcast

#pragma once

#include <vector>

#include "sim/strategies/pipeline_layout.hpp"

namespace stepcast {

/// When the stages of a pipeline would be done if messages were alone on their links and nobody computed anything else: the
/// longest path through the order in which each of them works.
struct PipelinePath {
  explicit PipelinePath(PipelineShape which) : shape(std::move(which)) {}
  PipelineShape shape;
  std::vector<double> forward_s, backward_s;  ///< of a micro-batch, by chunk
  std::vector<double> message_s;              ///< from one chunk to the next, and back

  /// By rank, the end of its last backward from the beginning of the first forward on.
  [[nodiscard]] std::vector<double> ends() const;
};

}  // namespace stepcast

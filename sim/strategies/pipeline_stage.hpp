#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/strategies/bucketed_reduction.hpp"
#include "sim/strategies/layout.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {

/// Shared by all stages of one pipeline.
struct Pipeline {
  const Model& model;
  const TrainingConfig& config;
  std::string checkpoint;
  bool forward_only;
  bool waited;  ///< messages are exchanged before the next action
  int shards;   ///< ranks that share one copy of a stage
  int copies;   ///< replicas of a stage, whole or in shards
  PipelineShape shape{};
  std::vector<std::vector<int>> chunks{};  ///< segments by chunk
  std::optional<BucketLimits> buckets{};   ///< set if stages have replicas that train
  int zero = 0;                            ///< ZeRO stage of the replicas; 3: everything is sharded
  Layout layout{};                         ///< of these, without ranks
  /// Tensors that one stage owns and another one uses (embedding and head), with both stages.
  std::vector<std::pair<int, std::pair<int, int>>> ties{};
  int first_tie_group = 0;  ///< families, as in a Collective: one per tie
  /// Of stage 0 in Schedule::families, with replicas of shards: shards, replicas.
  int first_shard_family = 0;

  /// Ranks with the same stage: replicas, shards, or replicas of shards.
  [[nodiscard]] int peers() const { return copies * shards; }
  [[nodiscard]] int stage_at(int rank) const { return rank / peers(); }
  /// Number of a rank among those with its stage; ranks that share one copy in shards are adjacent.
  [[nodiscard]] int peer_of(int rank) const { return rank % peers(); }
  [[nodiscard]] bool hybrid() const { return copies > 1 && shards > 1; }

  /// Stage that holds a segment.
  [[nodiscard]] int stage_of(int segment) const {
    const auto holds = [segment](const auto& chunk) { return segment <= chunk.back(); };
    return static_cast<int>(std::ranges::find_if(chunks, holds) - chunks.begin()) % shape.ranks;
  }

  [[nodiscard]] int chunk_count() const { return static_cast<int>(chunks.size()); }
  [[nodiscard]] const std::vector<int>& segments(int chunk) const { return chunks[chunk]; }
};

/// Program of one stage, with a message per boundary and micro-batch between the chunks.
///
/// A receive is posted one action ahead of the one that needs it, so that the message is sent while the stage
/// still computes, at the price of one more boundary tensor. Sends are not waited for. With `messages waited`
/// a stage computes and exchanges messages in turn, both directions at once after each action, as
/// send_forward_recv_backward of Megatron's 1F1B does (megatron/core/pipeline_parallel/p2p_communication.py).
/// A checkpointed micro-batch saves only the input of the stage; its forward is rerun right before its
/// backward and does not wait for the gradient (as in torch's Pipe).
Program stage_program(const Pipeline& pipeline, Schedule& schedule, int stage);

}  // namespace stepcast

#pragma once

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/offload.hpp"

namespace stepcast {

/// Value of `--zero`, and the stage that zero_stage() returns for it.
inline constexpr const char* kWholeParameters = "whole";
inline constexpr int kWholeStage = -1;

/// Shares the optimizer of n replicas by parameter, as Megatron-LM's layer-wise optimizer does for Muon
/// (`dist_muon` of core 0.14 to 0.16, megatron/core/optimizer/layer_wise_optimizer.py). Gradients are
/// all-reduced and whole. In order of size, parameters are dealt to ranks 0 ... n-1, n-1 ... 0, and so on;
/// those of experts to the replicas with the same experts. A rank keeps master copies and states of its
/// parameters alone and updates these. Then an all-gather sends the updated ones, and each rank copies them
/// from arrays that hold all.
///
/// Every rank counts as the fullest one: its states are the largest, and so is its part of the time, by the
/// flop of Muon or, in a stage without its weights, by elements. Parts of the all-gather have different
/// sizes; the message is their sum. Later versions reduce-scatter gradients instead, in buckets padded to
/// whole parameters, which is left out.
/// \param program with whole updates, which this changes \param group of `ranks` replicas
void share_whole_parameters(Program& program, Schedule& schedule, const Model& model, const Offload& offload,
                            int group, int ranks);

}  // namespace stepcast

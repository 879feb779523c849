#pragma once

#include <string>

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {

/// What a Schedule of one rank's part of a model becomes when `model.tensor` ranks share it: each of its ranks becomes
/// so many neighbours, rank r the ranks r t ... r t + t - 1, which train on the same batch. All that the Schedule does stays
/// as it is, each of the neighbours with its own of the other groups; in the middle of forwards, recomputations, backwards and losses
/// stand the model's exchanges, for each a collective of the neighbours (group `tensor`), which the rest of its host
/// waits for. Bytes are those of a micro-batch:
///
///     per layer, forward and backward    two all-reduces of s b h each (Megatron, Shoeybi et al., 2019)
///     with sequence parallelism          two all-gathers and two reduce-scatters of s b h each (torchtitan; Megatron
///                                        gathers the inputs once more in the backward)
///
/// Left out: Megatron hides the backward's collectives behind the product for the weight's gradient.
///
/// With model.context c, c ranks of the Schedule that would train on batches of their own have parts of the sequences of
/// one: keys and values are gathered in the middle of every attention, and their gradients scattered, 2 s w each of them for
/// s positions and keys of width w (group `context`); or they go round a ring, in c - 1 shifts forward and c in the backward
/// of 2 s w/c each, twice that while gradients go with them, beside the steps of attention. Gradients are averaged over these
/// ranks as over all others.
///
/// With model.expert e, e ranks of the Schedule that train beside each other have an equal part of the experts each
/// (DeepSpeed-MoE, Rajbhandari et al., 2022; Megatron). Per layer of experts two all-to-alls forward and two backward take
/// the K h of every token to the experts that it chose and back (group `expert`); with a capacity of C tokens, E C h of every
/// sequence. What the Schedule averages of experts it averages among every e-th rank of its group, which have the same
/// (group `... of experts`), and divides by all ranks, whose samples these experts have seen.
/// \param batch of a rank \pre the Schedule was built for the world size / model.tensor
/// \throws UsageError where c or e do not divide the batches
Schedule share_layers(const Schedule& base, const Model& model, int batch);

/// Takes what concerns every strategy out of its option `mesh`, `data=4,context=2,tensor=2`: `config.context`,
/// `config.tensor`, `config.expert`, and of a strategy that has no such option `config.data`, for `fsdp` data times
/// `shard`, which is `config.shard` where there are replicas. \throws UsageError for other dimensions, or sizes that
/// are no whole number above 0
void take_mesh(const std::string& strategy, TrainingConfig& config);

/// A model of which one rank has one of so many parts: `llama3-8b` and 8 give `llama3-8b:tensor=8`.
std::string shared_by(const std::string& model, const TrainingConfig& config);

}  // namespace stepcast

#pragma once

#include <string>

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/mesh.hpp"

namespace stepcast {

/// Converts a Schedule for one rank's part of a model to tensor, context and expert parallelism. Each rank
/// becomes `model.parallel.tensor` adjacent ranks, rank r the ranks r t ... r t + t - 1, which train on the
/// same batch. Its operations stay as they are, and each of the adjacent ranks has its own copy of the other
/// groups. The model's collectives become hooks inside forwards, recomputations, backwards and losses: a
/// collective of the adjacent ranks (group `tensor`) that suspends its parent. Bytes are those of a
/// micro-batch:
///
///      per layer, forward and backward    two all-reduces of s b h each (Megatron, Shoeybi et al., 2019)
///      with sequence parallelism          two all-gathers and two reduce-scatters of s b h each (torchtitan;
///                                         Megatron gathers the inputs once more in the backward)
///
/// Not modelled: Megatron overlaps collectives of the backward with the GEMM of the weight gradient.
///
/// With model.parallel.context c, c data-parallel ranks of the Schedule have parts of the sequences of one
/// batch. Keys and values are gathered inside every attention and their gradients scattered, 2 s w each for s
/// positions and keys of width w (group `context`). With ring attention they rotate through a ring instead,
/// in c - 1 shifts forward and c in the backward of 2 s w/c each, twice that while gradients move with them,
/// concurrently with the steps of attention. Gradients are averaged over these ranks as over all others.
///
/// With model.parallel.expert e, the ranks of data, context and tensor parallelism together, tensor first,
/// divide the experts: e adjacent ones have an equal part each (DeepSpeed-MoE, Rajbhandari et al., 2022).
/// With model.parallel.expert_tensor x, every part belongs to x adjacent ranks, which divide the matrices of
/// each expert (Megatron's --expert-tensor-parallel-size): they gather the rows that arrive at each of them
/// and sum their results (group `expert_tensor`). Per layer of experts two all-to-alls forward and two
/// backward move the K h of every token to its experts and back (group `expert`); with a capacity of C
/// tokens, E C h of every sequence. Gradients of experts are summed over every (e x)-th of these ranks, which
/// have the same parts (group `... of experts`), and divided by data x context.
/// \param batch of a rank \pre the Schedule was built in the standard order of a mesh, for the world
/// size / model.parallel.tensor
/// \throws UsageError if nothing sums the gradients of ranks with the same experts
Schedule share_layers(Schedule base, const Model& model, int batch);

/// Kind of the calls of a collective inside a segment. \pre it is not kWait, which calls nothing
CollectiveKind collective_kind(LayerCollectiveKind kind);

/// Specification with one more setting: `llama3-8b:sequence=8192`.
std::string with_setting(const std::string& model, const std::string& setting, const std::string& value);

/// Specification of one rank's part of a model: `llama3-8b` and `tensor=8` give `llama3-8b:tensor=8`.
std::string shared_by(const std::string& model, const Mesh& mesh);

}  // namespace stepcast

#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"
#include "schedule/schedule.hpp"
#include "sim/strategies/offload.hpp"

/// Units of FSDP: parameters that are gathered, freed and reduced together.
namespace stepcast {

/// Suffixes of the units of experts and of frozen parameters, which follow the unit of the same segments.
/// (FSDP2 gathers frozen parameters with the others, in one collective.)
inline constexpr const char *kExpertUnits = " experts", *kFrozenUnits = " frozen";

/// Returns a sharded unit of these parameters. Its flat array is padded to a multiple of the ranks.
/// \param ranks that share one copy \param group their process group \pre there is a parameter, and all are
/// frozen or none
FsdpUnit make_unit(const Model& model, const std::string& name, const std::vector<int>& tensors, int ranks,
                   int group);

/// Whether two layers share a parameter.
bool ties_parameters(const Model& model);

/// `--wrap` in effect: `layer` for `block` and `ends` of a model without repeated blocks, `block` for `ends`
/// of one that ties the embedding to the head, since both are in one unit then.
std::string wrap_of(const Model& model, const std::string& wrap);

/// Returns the model's units: first the root, which has all segments that no other unit wraps, then one unit
/// per wrapped segment with parameters; with `ends` the root, what follows the blocks, is last. Experts that
/// ranks share have a unit after that of their segment, sharded over the ranks that have the same experts.
/// Flat arrays are padded to a multiple of the shards. Units without parameters are left out.
/// \param wrap `block`, `ends`, `layer` or `root` \param ranks that share one copy
/// \param group their process group
std::vector<FsdpUnit> make_fsdp_units(const Model& model, const std::string& wrap, int ranks, int group,
                                      bool sharded);

/// Device memory of a sharded unit between steps, per rank: parameters, gradients and optimizer state.
/// \param gathers its shards are gathered in every micro-batch
std::vector<MemoryChange> resident_shard(const Model& model, const FsdpUnit& unit,
                                         const Offload& offload = {}, bool gathers = false);

}  // namespace stepcast

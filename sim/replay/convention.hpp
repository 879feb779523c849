#pragma once

#include <string>

#include "sim/strategies/options.hpp"

/// Conventions: options that a project's published recipes set (`--like megatron`). One file each, in
/// conventions/.
namespace stepcast {

/// Options of `predict` with those that the convention `like` sets added, and what was added.
struct LikeOptions {
  OptionTexts options;
  std::string note;  ///< `megatron: zero 1, gather_again=1`
};

/// What each convention sets, for `help conventions`.
std::string conventions_text();

/// Adds options whose conditions hold and that are not given; an entry whose conditions name its own option
/// replaces it. Conditions read the options, and the mesh: `tensor`, `context`, `expert`, `data`, `shard`,
/// `pipeline`, and `replicas` = world size / (pipeline x tensor). Settings of a model that lacks them are
/// left out. \throws UsageError for an unknown convention \throws InputError for a file that is not valid
LikeOptions like(const std::string& convention, const OptionTexts& options);

}  // namespace stepcast

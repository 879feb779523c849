#pragma once

#include <set>

#include "sim/kineto/rank_profile.hpp"

/// Which operations of a step are one forward, of a micro-batch.
namespace stepcast {

/// Joins forwards to the one before whose graph is retained: its nodes run again after them, as of second
/// losses and gradients of gradients.
void join_forwards(const KinetoFile& file, ProfiledStep& step);

/// Numbers the micro-batches whose forwards follow each other, as in pipelines. A backward begins where nodes
/// go on to a later operation, the last of its forward. All have equally many gradients.
void split_forwards(ProfiledStep& step);

using Shapes = std::set<std::vector<std::int64_t>>;

/// Operations inside `Optimizer.step#`: their names, and the extents of all their tensors.
struct UpdateOperations {
  std::set<std::string> names{};
  Shapes shapes{};  ///< empty: not recorded
};
UpdateOperations update_operations(const KinetoFile& file);

/// Leaves out gradients of inputs, which are no parameters. The inputs are first tensors of operations, if
/// they were received, as by a stage of a pipeline, or if their first extent is the batch. A gradient at a
/// forward's first operation is its input's unless a parameter has as many elements, or the input is one that
/// an update has; elsewhere, if no update has a tensor of this shape.
void drop_input_gradients(const KinetoFile& file, int batch, const Shapes& updated, ProfiledStep& step);

/// Keeps the forwards with the most parameters as the micro-batches of a step that has several kinds, as of
/// several models. Operations of the others get the micro-batch -1.
void choose_forwards(ProfiledStep& step);

}  // namespace stepcast

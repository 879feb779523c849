#pragma once

#include <string>

#include "models/model.hpp"

/// From the layers of the segments to everything that follows from them.
namespace stepcast {

/// Fills, for every segment, parameters, buffers, rows and per-sample costs, and the model's lists of them.
///
/// Parameters and buffers are registered in forward order, a residual's body before its shortcut, as a
/// PyTorch module lists them. Gradients become ready in the opposite order of the layers, a shortcut's before
/// its body's (autograd runs the later node first), and within a layer as LayerKind says.
///
///     backward flop = 2 forward flop; layers up to the first one with parameters need no gradient of their
///     input, and take 1 forward flop
///
/// Saved bytes are what a segment's forward allocates and leaves behind for the backward: activations that a
/// layer keeps (each once, however many layers keep it), its own output, and pooling's indices. The input
/// belongs to the segment before. Transient workspace and allocator rounding are left out; `measure` observes
/// the real figure.
///
/// \pre every layer has its input and output shapes
/// \returns the name of a tensor that two layers share, or "" when all names are unique
std::string complete(Model& model);

}  // namespace stepcast

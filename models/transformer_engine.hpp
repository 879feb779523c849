#pragma once

#include <vector>

#include "models/model.hpp"

/// Arrays that Megatron keeps for the whole run where Transformer Engine computes.
namespace stepcast {

struct EngineBuffers {
  /// Transformer Engine adds gradients of weights to Megatron's fp32 arrays itself. It gives autograd an
  /// array of 16 bit instead: one for each shape of a weight on the rank. q, k and v are one weight, and so
  /// are gate and value. Source: `get_dummy_wgrad` of transformer_engine/pytorch/module/base.py.
  Bytes weight_gradients{};
  /// Angles of rotary positions, fp32: positions of the rank times the size of a head, or of its rotary part.
  Bytes rotary{};
};

/// Buffers of a rank that has these segments. \pre model.transformer_engine()
EngineBuffers engine_buffers(const Model& model, const std::vector<int>& segments);

}  // namespace stepcast

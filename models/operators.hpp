#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/layer.hpp"

/// Costs of PyTorch's operators, from their names and the shapes of their tensors.
namespace stepcast {

struct OperatorTensor {
  Shape shape{};
  double numbers = 0.0;  ///< of 4 B in fp32: int64 counts twice, bool a quarter
  bool weight = false;   ///< a parameter, or a view of one
};

/// One call of an operator on a whole batch.
struct OperatorCall {
  std::string name;  ///< without namespace and overload: `conv2d`
  std::vector<OperatorTensor> inputs{};
  OperatorTensor output{};
  bool causal = false;  ///< of attention
};

struct OperatorCost {
  Kernel kernel;               ///< per sample, without weights
  Bytes weights{};             ///< read by the forward
  bool view = false;           ///< no kernel: the output is the input's memory, or not computed
  Kept kept = Kept::kNothing;  ///< what autograd saves for the backward
};

/// False: an operator that consists of others, or one without a row in the table.
bool knows_operator(const std::string& name);

/// True if the tensors have the dimensions that cost_of() reads.
bool has_operands(const OperatorCall& call);

/// Flop are 2 per multiply-add; batch norm 4, layer and group norm 8, RMS norm 4, functions of each element
/// 1 per element, all others 0. Bytes are those of models/layer.hpp's kinds. An operator without a row moves
/// its inputs and its output, and twice that in the backward. In-place forms (`relu_`) cost what the others
/// do. \param batch samples that the shapes contain
/// \pre has_operands(call)
OperatorCost cost_of(const OperatorCall& call, double batch);

}  // namespace stepcast

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/yaml.hpp"
#include "models/layer.hpp"

/// Layers of kind `operators`: a part of a network of somebody's own, given by its tensors and operators.
namespace stepcast {

struct GivenOperator {
  std::string name;  ///< `conv2d`
  Kernel kernel;     ///< per sample, without weights
  Bytes weights{};
};

struct GivenLayer {
  std::string program{};   ///< `TorchScript`: the file beside the description computes it; "": nothing does
  int first = 0, end = 0;  ///< nodes of that program's graph
  int nodes = 0;           ///< of the whole graph
  Shape output{};
  std::vector<LayerTensor> parameters{};  ///< by full names, in registration order
  std::vector<LayerTensor> buffers{};
  std::vector<std::string> ready{};  ///< parameters in the order their gradients become ready
  std::vector<std::string> tied{};   ///< parameters that an earlier layer owns
  std::vector<GivenOperator> operators{};
};

/// Reads the attributes of a layer: `nodes`, `output`, `parameters`, `buffers`, `ready`, `tied`, `list`.
/// \throws InputError naming file, line and key
GivenLayer read_given(const YamlNode& node, const std::string& program);

/// A network as segments of one layer each.
struct GivenModel {
  std::string description, program;  ///< `TorchScript` or ""
  std::string input;                 ///< YAML: `{kind: features, shape: [3, 32, 32]}`
  std::string loss;                  ///< `mean_square` or `own`
  std::string optimizer;             ///< YAML
  struct Part {
    std::string name;
    GivenLayer layer;
  };
  std::vector<Part> parts{};
};

/// The network as a model file.
std::string to_text(const GivenModel& model);

/// True for a TorchScript file, whose description is `FILE.yaml`.
bool is_torch_script(const std::string& specification);

/// `3x224x224`. \throws InputError that names `what`
Shape parse_shape(const std::string& text, const std::string& what);

}  // namespace stepcast

#include <filesystem>
#include <map>
#include <memory>

#include "core/error.hpp"
#include "core/table.hpp"
#include "models/given_layer.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/layer_builder.hpp"
#include "runner/torch/script_program.hpp"

namespace stepcast {
namespace {

/// Tensors of a part, in the order of its inputs.
struct PartTensors {
  std::vector<torch::Tensor> own;
  std::vector<std::size_t> tied;  ///< those that an earlier layer owns

  /// As tied_linear: see build_tied_linear().
  [[nodiscard]] std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> result = own;
    for (const std::size_t index : tied) {
      result[index] = own[index].detach().requires_grad_();
      result[index].mutable_grad() = own[index].grad();
    }
    return result;
  }
};

PartTensors tensors_of(LayerBuilder& builder, const GivenLayer& given, const ScriptProgram& program,
                       const std::vector<std::string>& names, const std::string& path) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> made;
  const auto fill = [&](const std::string& name, const torch::Tensor& tensor) {
    const torch::Tensor from = program.tensor(name);
    if (tensor.sizes() != from.sizes())
      throw InputError("{}: '{}' has the shape {}, {}.yaml contains another; measure it again", path, name,
                       joined(from.sizes(), "x"), path);
    made[name] = tensor.copy_(from);
  };
  for (const LayerTensor& tensor : given.parameters) fill(tensor.suffix, builder.parameter(tensor.suffix));
  for (const LayerTensor& tensor : given.buffers) fill(tensor.suffix, builder.buffer(tensor.suffix));
  PartTensors result;
  for (const std::string& name : names) {
    if (std::ranges::find(given.tied, name) != given.tied.end()) {
      result.tied.push_back(result.own.size());
      made[name] = builder.held(name);
    }
    if (const auto found = made.find(name); found != made.end()) {
      result.own.push_back(found->second);
      continue;
    }
    const torch::Tensor constant = program.tensor(name).detach();
    result.own.push_back(constant.is_floating_point() ? constant.to(builder.options().dtype()) : constant);
  }
  return result;
}

LayerFunction build_operators(LayerBuilder& builder, const Layer& layer) {
  const GivenLayer& given = *layer.given;
  if (given.program.empty())
    throw CapabilityError("{}: lists operators, which can be forecast; a TorchScript file can be trained",
                          builder.model().path);
  if (builder.options().device() != torch::kCPU)
    throw CapabilityError("{}: TorchScript networks are trained on CPUs, --device cuda is not supported",
                          builder.model().specification);
  const std::string path = std::filesystem::path(builder.model().path).replace_extension().string();
  const std::shared_ptr<const ScriptProgram> program = builder.program(path);
  if (program->nodes() != given.nodes || given.end > given.nodes || given.first >= given.end)
    throw InputError(
        "{0}: {0}.yaml does not describe it, or another LibTorch wrote that; 'stepcast measure --input' "
        "writes it",
        path);
  ScriptPart part = program->part(given.first, given.end);
  PartTensors tensors = tensors_of(builder, given, *program, part.tensors, path);
  return [part = std::move(part), tensors = std::move(tensors)](const torch::Tensor& x) {
    return part.run(x, tensors.tied.empty() ? tensors.own : tensors.values());
  };
}

}  // namespace

const LayerTable kScriptLayers{{"operators", &build_operators}};

}  // namespace stepcast

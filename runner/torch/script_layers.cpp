#include <map>
#include <memory>

#include "core/error.hpp"
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

void copy_into(const torch::Tensor& to, const torch::Tensor& from, const std::string& name,
               const std::string& path) {
  if (to.sizes() != from.sizes())
    throw InputError("{}: '{}' has the shape {}, {}.yaml contains another; measure it again", path, name,
                     fmt::format("{}", fmt::join(from.sizes(), "x")), path);
  to.copy_(from);
}

PartTensors tensors_of(LayerBuilder& builder, const GivenLayer& given, const ScriptProgram& program,
                       const std::vector<std::string>& names, const std::string& path) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> made;
  for (const LayerTensor& tensor : given.parameters) {
    made[tensor.suffix] = builder.parameter(tensor.suffix);
    copy_into(made[tensor.suffix], program.tensor(tensor.suffix), tensor.suffix, path);
  }
  for (const LayerTensor& tensor : given.buffers) {
    made[tensor.suffix] = builder.buffer(tensor.suffix);
    copy_into(made[tensor.suffix], program.tensor(tensor.suffix), tensor.suffix, path);
  }
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
  const std::string& described = builder.model().path;
  const std::string path = described.substr(0, described.size() - std::string_view(".yaml").size());
  const std::shared_ptr<const ScriptProgram> program = builder.program(path);
  if (program->nodes() != given.nodes || given.end > given.nodes || given.first >= given.end)
    throw InputError(
        "{}: {}.yaml does not describe it, or another LibTorch wrote that; 'stepcast measure --input' writes "
        "it",
        path, path);
  ScriptPart part = program->part(given.first, given.end);
  PartTensors tensors = tensors_of(builder, given, *program, part.tensors, path);
  return [part = std::move(part), tensors = std::move(tensors)](const torch::Tensor& x) {
    return part.run(x, tensors.tied.empty() ? tensors.own : tensors.values());
  };
}

}  // namespace

const LayerTable kScriptLayers{{"operators", &build_operators}};

}  // namespace stepcast

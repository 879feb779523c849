#pragma once

#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

/// A TorchScript network as one graph. Includes LibTorch: only files of runner/torch include this header.
namespace stepcast {

/// Nodes first ... end - 1 of a graph as a function of one tensor.
struct ScriptPart {
  torch::jit::Code code;
  std::vector<std::string> tensors;  ///< inputs behind the first: parameters and buffers
  std::shared_ptr<torch::jit::CompilationUnit> functions{};  ///< that errors name

  [[nodiscard]] torch::Tensor run(const torch::Tensor& input, const std::vector<torch::Tensor>& values) const;
};

/// Calls of modules are inlined, `training` is true, attributes are constants, and parameters and buffers are
/// inputs. What depends on constants alone is computed once.
class ScriptProgram {
 public:
  /// \throws InputError that names the file, and an operator that this LibTorch lacks with the version that
  /// has it; for several inputs, and for batch norm or dropout recorded outside training
  explicit ScriptProgram(const std::string& path);

  /// Trained parameters in registration order; one that has several names has the first.
  [[nodiscard]] const std::vector<std::string>& parameters() const { return parameters_; }
  /// Buffers of floating point and int64.
  [[nodiscard]] const std::vector<std::string>& buffers() const { return buffers_; }
  /// Parameters, buffers and constants.
  [[nodiscard]] torch::Tensor tensor(const std::string& name) const { return tensors_.at(name); }
  [[nodiscard]] int nodes() const { return static_cast<int>(nodes_.size()); }
  /// Numbers of nodes behind which a single tensor leads to the rest.
  [[nodiscard]] std::vector<int> cuts() const;
  /// \pre both are 0, nodes() or among cuts()
  [[nodiscard]] ScriptPart part(int first, int end) const;

 private:
  using Value = torch::jit::Value;
  using Node = torch::jit::Node;
  using Objects = std::unordered_map<Value*, std::pair<c10::IValue, std::string>>;  ///< with their paths

  void name_tensors(const torch::jit::Module& module);
  void lower(torch::jit::Block* block, Objects& objects);
  void lower_attribute(Node* node, const c10::IValue& object, const std::string& path, Objects& objects);
  void take_first_output();
  void check_training() const;
  void order_nodes();
  [[nodiscard]] Value* crossing(int end) const;

  std::string path_;
  std::shared_ptr<torch::jit::CompilationUnit> functions_;
  std::shared_ptr<torch::jit::Graph> graph_;
  std::map<std::string, torch::Tensor> tensors_;
  std::map<std::string, std::string> first_names_;  ///< of tensors with several names
  std::vector<std::string> parameters_, buffers_;
  std::map<std::string, Value*> inputs_;  ///< of the graph, by tensor
  std::vector<Node*> nodes_;              ///< that depend on the input or have effects
  std::unordered_map<Value*, int> made_;  ///< number of the node behind which a value is there
  std::unordered_map<Value*, int> used_;  ///< largest number of a node that reads it
};

}  // namespace stepcast

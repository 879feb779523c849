#include "runner/torch/script_program.hpp"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/print_handler.h>
#include <torch/version.h>

#include <filesystem>
#include <iostream>
#include <regex>
#include <set>

#include "core/error.hpp"
#include "models/exported_program.hpp"

namespace stepcast {
namespace {

namespace jit = torch::jit;

/// First version of LibTorch with an operator (release notes of PyTorch).
const std::map<std::string, const char*> kNewOperators{
    {"scaled_dot_product_attention", "2.0"}, {"_native_batch_norm_legit", "2.0"}, {"rms_norm", "2.4"}};

/// The first lines of a message of LibTorch, without its backtrace.
std::string complaint(const std::string& message) {
  std::string text = message.substr(0, message.find("Exception raised from"));
  std::erase(text, '\t');
  std::ranges::replace(text, '\n', ' ');
  constexpr std::size_t kMost = 300;
  return printable(text.substr(0, kMost));
}

[[noreturn]] void refuse_load(const std::string& path, const std::string& message) {
  static const std::regex kUnknown("(?:[Uu]nknown builtin op: |operator )aten::(\\w+)");
  std::smatch found;
  if (!std::regex_search(message, found, kUnknown))
    throw InputError("{}: LibTorch {} cannot load it: {}", path, TORCH_VERSION, complaint(message));
  const auto version = kNewOperators.find(found[1]);
  throw InputError(
      "{}: uses aten::{}, which LibTorch {} lacks; {}: './dev build --torch DIR' builds with another one",
      path, found[1].str(), TORCH_VERSION,
      version == kNewOperators.end() ? "a newer one has it"
                                     : fmt::format("it is in {} and later", version->second));
}

jit::Module load(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw InputError("{}: no such file", path);
  check_archive(path);
  const auto is_constants = [](const std::string& member) { return member.ends_with("constants.pkl"); };
  if (!std::ranges::any_of(archive_members(path), is_constants))
    throw InputError(
        "{}: contains tensors or a pickled module of torch.save, no TorchScript; write it by "
        "torch.jit.script(model).save(FILE), or torch.jit.trace",
        path);
  jit::setPrintHandler([](const std::string& text) { std::cerr << text; });  // output is stepcast's
  std::string problem;
  try {
    jit::Module module = jit::load(path, torch::Device(torch::kCPU));
    module.train();
    return module;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  refuse_load(path, problem);
}

/// Values that a node reads, those of its blocks included.
void each_read(const jit::Node* node, const std::function<void(jit::Value*)>& visit) {
  for (const jit::Value* value : node->inputs()) visit(const_cast<jit::Value*>(value));
  for (const jit::Block* block : node->blocks()) {
    for (const jit::Node* inner : block->nodes()) each_read(inner, visit);
    for (const jit::Value* value : block->outputs()) visit(const_cast<jit::Value*>(value));
  }
}

bool has_effects(const jit::Node* node) {
  if (node->hasSideEffects() || node->isNondeterministic()) return true;
  if (const auto* schema = node->maybeSchema(); schema != nullptr && schema->is_mutable()) return true;
  for (const jit::Block* block : node->blocks())
    for (const jit::Node* inner : block->nodes())
      if (has_effects(inner)) return true;
  return false;
}

}  // namespace

torch::Tensor ScriptPart::run(const torch::Tensor& input, const std::vector<torch::Tensor>& values) const {
  jit::Stack stack;
  stack.reserve(values.size() + 1);
  stack.emplace_back(input);
  for (const torch::Tensor& value : values) stack.emplace_back(value);
  jit::InterpreterState(code).run(stack);
  return stack.back().toTensor();
}

ScriptProgram::ScriptProgram(const std::string& path) : path_(path) {
  const jit::Module module = load(path);
  const auto method = module.find_method("forward");
  if (!method) throw InputError("{}: has no method 'forward'", path);
  name_tensors(module);
  functions_ = module._ivalue()->compilation_unit();
  graph_ = method->graph()->copy();
  jit::Inline(*graph_);
  if (graph_->inputs().size() != 2)
    throw InputError("{}: forward takes {} inputs; networks of one tensor are trained", path,
                     graph_->inputs().size() - 1);
  Objects objects;
  objects[graph_->inputs()[0]] = {module._ivalue(), ""};
  lower(graph_->block(), objects);
  jit::EliminateDeadCode(graph_);
  if (!graph_->inputs()[0]->uses().empty())
    throw InputError("{}: its forward hands on or changes a module ({}), which is not supported", path,
                     graph_->inputs()[0]->uses().front().user->kind().toQualString());
  graph_->eraseInput(0);
  jit::ConstantPropagation(graph_);
  jit::EliminateDeadCode(graph_);
  take_first_output();
  check_training();
  order_nodes();
}

void ScriptProgram::name_tensors(const jit::Module& module) {
  std::map<void*, std::string> by_memory;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    const auto [first, is_new] = by_memory.try_emplace(tensor.data_ptr(), name);
    const bool empty = tensor.numel() == 0;
    if (is_new || empty) tensors_[name] = tensor;
    first_names_[name] = empty ? name : first->second;
    return is_new || empty;
  };
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (tensor.is_floating_point() && tensor.scalar_type() != torch::kFloat32)
      throw InputError(
          "{}: parameter '{}' is of {}; save the network after model.float(), and give --precision for "
          "others",
          path_, name, c10::toString(tensor.scalar_type()));
    const bool is_new = add(name, tensor);
    if (is_new && tensor.requires_grad() && tensor.is_floating_point()) parameters_.push_back(name);
  }
  for (const auto& [name, tensor] : module.named_buffers())
    if (add(name, tensor) && (tensor.is_floating_point() || tensor.scalar_type() == torch::kInt64))
      buffers_.push_back(name);
  if (parameters_.empty()) throw InputError("{}: has no parameters that are trained", path_);
}

void ScriptProgram::lower(jit::Block* block, Objects& objects) {
  std::vector<Node*> nodes(block->nodes().begin(), block->nodes().end());
  for (Node* node : nodes) {
    for (jit::Block* inner : node->blocks()) lower(inner, objects);
    const bool sets = node->kind() == jit::prim::SetAttr;
    if (!sets && node->kind() != jit::prim::GetAttr) continue;
    const auto object = objects.find(node->inputs()[0]);
    if (object == objects.end()) continue;
    const auto [value, path] = object->second;
    if (!sets) {
      lower_attribute(node, value, path, objects);
      continue;
    }
    const std::string& name = node->s(jit::attr::name);
    if (name != "num_batches_tracked")  // counts steps, which nothing reads
      throw InputError("{}: forward sets '{}{}'; parts of a network are trained without such state", path_,
                       path, name);
    node->destroy();
  }
}

void ScriptProgram::lower_attribute(Node* node, const c10::IValue& object, const std::string& path,
                                    Objects& objects) {
  const std::string name = path + node->s(jit::attr::name);
  const c10::IValue value = object.toObject()->getAttr(node->s(jit::attr::name));
  if (value.isModule()) return void(objects[node->output()] = {value, name + "."});
  const auto known = value.isTensor() ? first_names_.find(name) : first_names_.end();
  if (known != first_names_.end()) {
    Value*& input = inputs_[known->second];
    if (input == nullptr) {
      input = graph_->addInput();
      input->setType(c10::TensorType::get());
    }
    node->output()->replaceAllUsesWith(input);
    return;
  }
  const jit::WithInsertPoint place(node);
  if (const auto constant = jit::tryInsertConstant(*graph_, value))
    node->output()->replaceAllUsesWith(*constant);
}

/// Of a tuple the first element is the output.
void ScriptProgram::take_first_output() {
  if (graph_->outputs().size() != 1)
    throw InputError("{}: forward has {} outputs", path_, graph_->outputs().size());
  Value* output = graph_->outputs()[0];
  while (output->node()->kind() == jit::prim::TupleConstruct && !output->node()->inputs().empty())
    output = output->node()->inputs()[0];
  if (!output->type()->isSubtypeOf(*c10::TensorType::get()))
    throw InputError("{}: forward returns {}; expected a tensor, or a tuple that begins with one", path_,
                     output->type()->str());
  graph_->eraseOutput(0);
  graph_->registerOutput(output);
  jit::EliminateDeadCode(graph_);
}

void ScriptProgram::check_training() const {
  for (const Node* node : graph_->nodes()) {
    const auto* schema = node->maybeSchema();
    if (schema == nullptr) continue;
    for (std::size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
      const std::string& name = schema->arguments()[i].name();
      if (name != "training" && name != "train") continue;
      const auto value = jit::toIValue(node->inputs()[i]);
      if (value && value->isBool() && !value->toBool())
        throw InputError(
            "{}: {} was recorded with training=False; call model.train() before torch.jit.trace, so that the "
            "file can be trained",
            path_, node->kind().toUnqualString());
    }
  }
}

void ScriptProgram::order_nodes() {
  made_[graph_->inputs()[0]] = 0;
  for (Node* node : graph_->nodes()) {
    bool depends = has_effects(node);
    each_read(node, [&](Value* value) { depends = depends || made_.contains(value); });
    if (!depends) continue;
    const int number = nodes();
    nodes_.push_back(node);
    each_read(node, [&](Value* value) { used_[value] = number; });
    for (Value* value : node->outputs()) made_[value] = number + 1;
  }
  used_[graph_->outputs()[0]] = nodes();
}

/// The only value that is there before node `end` and read from it on; null if there are several, or none.
ScriptProgram::Value* ScriptProgram::crossing(int end) const {
  if (end == 0) return graph_->inputs()[0];
  if (end == nodes()) return graph_->outputs()[0];
  Value* found = nullptr;
  for (const auto& [value, made] : made_) {
    const auto used = used_.find(value);
    if (made > end || used == used_.end() || used->second < end) continue;
    if (found != nullptr || !value->type()->isSubtypeOf(*c10::TensorType::get())) return nullptr;
    found = value;
  }
  return found;
}

std::vector<int> ScriptProgram::cuts() const {
  std::vector<int> result;
  for (int end = 1; end < nodes(); ++end)
    if (Value* value = crossing(end); value != nullptr && value != graph_->inputs()[0]) result.push_back(end);
  return result;
}

ScriptPart ScriptProgram::part(int first, int end) const {
  const auto graph = std::make_shared<jit::Graph>();
  std::unordered_map<Value*, Value*> map;
  const auto add_input = [&](Value* value) {
    map[value] = graph->addInput();
    map[value]->setType(c10::TensorType::get());
  };
  add_input(crossing(first));
  ScriptPart part{{}, {}, functions_};
  std::set<Value*> read;
  const std::function<void(Value*)> look = [&](Value* value) {
    if (!read.insert(value).second || made_.contains(value)) return;
    if (value->node()->kind() != jit::prim::Param) each_read(value->node(), look);
  };
  for (int i = first; i < end; ++i) each_read(nodes_[i], look);
  for (const auto& [name, value] : inputs_) {
    if (!read.contains(value)) continue;
    add_input(value);
    part.tensors.push_back(name);
  }
  // What depends on constants and tensors alone is computed in each part that reads it.
  std::function<Value*(Value*)> resolve;
  const auto copy = [&](Node* node) {
    Node* made = graph->appendNode(graph->createClone(node, resolve));
    for (std::size_t i = 0; i < made->outputs().size(); ++i) map[node->outputs()[i]] = made->outputs()[i];
  };
  resolve = [&](Value* value) {
    if (!map.contains(value)) copy(value->node());
    return map.at(value);
  };
  for (int i = first; i < end; ++i) copy(nodes_[i]);
  graph->registerOutput(resolve(crossing(end)));
  part.code = jit::Code(graph, "part");
  return part;
}

}  // namespace stepcast

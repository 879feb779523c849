#include "models/exported_program.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/given_parts.hpp"
#include "models/operators.hpp"

namespace stepcast {
namespace {

using nlohmann::json;

// ScalarType of torch's serialisation (torch/_export/serde/schema.py).
constexpr int kByteType = 1, kFirstFloat = 6, kLastFloat = 8, kBoolType = 12, kBfloat16Type = 13;

bool is_float(int type) { return (type >= kFirstFloat && type <= kLastFloat) || type == kBfloat16Type; }

struct Tensor {
  OperatorTensor is;
  int type = 0;
};

/// A node of the graph that computes a tensor from the input.
struct Step {
  std::string name;  ///< of the operator
  std::vector<std::string> inputs, outputs;
  bool causal = false;
};

/// `torch.ops.aten.conv2d.default` → `conv2d`
std::string operator_name(const std::string& target) {
  const std::size_t end = target.rfind('.');
  const std::size_t start =
      end == std::string::npos || end == 0 ? std::string::npos : target.rfind('.', end - 1);
  return start == std::string::npos ? target : target.substr(start + 1, end - start - 1);
}

struct ExportReader {
  const json& program;
  const std::string& file;

  ExportedProgram read() {
    if (const auto version = program.find("torch_version"); version != program.end() && version->is_string())
      result.torch = version->get<std::string>();
    read_tensors();
    read_signature();
    read_steps();
    leave_unread_out();
    const std::vector<ProgramPiece> pieces = modules_of(smallest(), sizes);
    const std::vector<std::string> names = names_of_parts(pieces, order);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      result.model.parts.push_back({names[i], layer_of(pieces[i])});
    describe();
    return std::move(result);
  }

  void read_tensors() {
    for (const auto& [name, meta] : graph.at("tensor_values").items()) {
      Tensor& tensor = tensors[name];
      tensor.type = meta.at("dtype").get<int>();
      tensor.is.numbers = tensor.type == kBoolType || tensor.type == kByteType ? 0.25
                          : is_float(tensor.type)                              ? 1.0
                                                                               : 2.0;
      for (const json& extent : meta.at("sizes")) {
        tensor.is.shape.push_back(extent_of(extent, name));
        tensor.is.numbers *= static_cast<double>(tensor.is.shape.back());
      }
      constexpr double kMost = 1e15;
      if (tensor.is.numbers > kMost)
        throw InputError("{}: tensor '{}' has more than 1e15 elements", file, name);
    }
  }

  [[nodiscard]] std::int64_t extent_of(const json& extent, const std::string& name) const {
    const json* number = &extent;
    if (extent.contains("as_expr")) {
      number = &extent.at("as_expr");
      if (number->contains("hint") && number->at("hint").is_object()) number = &number->at("hint");
      if (!number->contains("as_int"))
        throw InputError("{}: tensor '{}' has a dynamic size; export with sizes that are fixed", file, name);
    }
    const auto value = number->at("as_int").get<std::int64_t>();
    if (value < 0) throw InputError("{}: tensor '{}' has the size {}", file, name, value);
    return value;
  }

  void read_signature() {
    for (const json& spec : signature.at("input_specs")) {
      if (const auto parameter = spec.find("parameter"); parameter != spec.end()) {
        const auto arg = parameter->at("arg").at("name").get<std::string>();
        const auto name = parameter->at("parameter_name").get<std::string>();
        Tensor& tensor = at(arg);
        tensor.is.weight = true;
        if (!parameter_names.emplace(arg, name).second || sizes.contains(name))
          throw InputError("{}: parameter '{}' is listed twice", file, name);
        sizes[name] = tensor.is.numbers;
        order.push_back(name);
      } else if (const auto buffer = spec.find("buffer"); buffer != spec.end()) {
        buffers[buffer->at("arg").at("name").get<std::string>()] =
            buffer->at("buffer_name").get<std::string>();
      } else if (const auto input = spec.find("user_input");
                 input != spec.end() && input->at("arg").contains("as_tensor")) {
        input_names.push_back(input->at("arg").at("as_tensor").at("name").get<std::string>());
      }
    }
    if (input_names.empty() || parameter_names.empty())
      throw InputError("{}: expected parameters and an input that is a tensor", file);
    const Shape& shape = at(input_names.front()).is.shape;
    if (shape.empty() || shape.front() < 1 || numel(shape) < 1 ||
        shape.front() > std::numeric_limits<int>::max())
      throw InputError("{}: input '{}' has no dimension of samples", file, input_names.front());
    result.batch = static_cast<int>(shape.front());
    if (input_names.size() > 1)
      result.assumed.push_back(fmt::format("samples are those of '{}'; {} are read beside it",
                                           input_names.front(), counted(input_names.size() - 1, "input")));
  }

  Tensor& at(const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      throw InputError("{}: tensor '{}' is not described in tensor_values", file, name);
    return found->second;
  }

  static void each_tensor(const json& arg, const std::function<void(const std::string&)>& visit) {
    if (const auto one = arg.find("as_tensor"); one != arg.end()) visit(one->at("name").get<std::string>());
    if (const auto many = arg.find("as_tensors"); many != arg.end())
      for (const json& one : *many) visit(one.at("name").get<std::string>());
  }

  /// Nodes that depend on an input; what is computed from constants alone is left out.
  void read_steps() {
    std::set<std::string> depends(input_names.begin(), input_names.end());
    for (const json& node : graph.at("nodes")) {
      Step step{operator_name(node.at("target").get<std::string>()), {}, {}};
      bool reads = false;
      for (const json& input : node.at("inputs")) {
        const json& arg = input.at("arg");
        each_tensor(arg, [&](const std::string& name) {
          step.inputs.push_back(name);
          reads = reads || depends.contains(name);
        });
        if (input.value("name", "") == "is_causal" && arg.contains("as_bool"))
          step.causal = arg.at("as_bool").get<bool>();
      }
      for (const json& output : node.at("outputs"))
        each_tensor(output, [&](const std::string& name) { step.outputs.push_back(name); });
      if (step.outputs.empty()) continue;
      if (!reads) {  // such as a transposed weight
        for (const std::string& output : step.outputs)
          if (!step.inputs.empty() && at(step.inputs.front()).is.weight) {
            at(output).is.weight = true;
            if (const auto owner = parameter_names.find(step.inputs.front()); owner != parameter_names.end())
              views[output] = owner->second;
          }
        continue;
      }
      depends.insert(step.outputs.begin(), step.outputs.end());
      steps.push_back(std::move(step));
    }
    if (steps.empty()) throw InputError("{}: no operator reads the input", file);
  }

  /// Parameters that no operator reads are other names of tied ones.
  void leave_unread_out() {
    std::set<std::string> read;
    for (const Step& step : steps)
      for (const std::string& input : step.inputs) read.insert(parameter_of(input));
    const auto dropped = std::erase_if(order, [&](const std::string& name) { return !read.contains(name); });
    std::erase_if(sizes, [&](const auto& size) { return !read.contains(size.first); });
    if (dropped > 0)
      result.assumed.push_back(counted(dropped, "parameter") +
                               " that no operator reads: other names of tied ones");
    if (order.empty()) throw InputError("{}: no operator reads a parameter", file);
  }

  [[nodiscard]] std::string parameter_of(const std::string& tensor) const {
    for (const auto* names : {&parameter_names, &views})
      if (const auto found = names->find(tensor); found != names->end()) return found->second;
    return "";
  }

  /// Runs of steps behind which a single tensor is read.
  [[nodiscard]] std::vector<ProgramPiece> smallest() const {
    std::map<std::string, int> last;  ///< step that reads it
    for (int i = 0; const Step& step : steps) {
      for (const std::string& input : step.inputs) last[input] = i;
      ++i;
    }
    for (const json& output : graph.at("outputs"))
      each_tensor(output, [&](const std::string& name) { last[name] = static_cast<int>(steps.size()); });
    std::set<std::string> live(input_names.begin(), input_names.end());
    std::vector<ProgramPiece> pieces;
    ProgramPiece piece;
    for (int i = 0; const Step& step : steps) {
      for (const std::string& input : step.inputs)
        if (const std::string name = parameter_of(input); !name.empty()) piece.parameters.push_back(name);
      for (const std::string& output : step.outputs)
        if (last.contains(output)) live.insert(output);
      std::erase_if(live, [&](const std::string& name) { return last[name] <= i; });
      piece.end = ++i;
      if (live.size() != 1 && i < static_cast<int>(steps.size())) continue;
      pieces.push_back(std::exchange(piece, {i, i}));
    }
    return pieces;
  }

  GivenLayer layer_of(const ProgramPiece& piece) {
    GivenLayer layer;
    std::set<std::string> kept;
    std::map<std::string, std::string> base;
    const auto memory = [&](const std::string& name) { return base.contains(name) ? base.at(name) : name; };
    for (int i = piece.first; i < piece.end; ++i) {
      const Step& step = steps[static_cast<std::size_t>(i)];
      OperatorCall call{.name = step.name, .causal = step.causal};
      std::vector<std::string> operands;
      for (const std::string& input : step.inputs) {
        if (buffers.contains(input)) continue;
        call.inputs.push_back(at(input).is);
        operands.push_back(input);
      }
      call.output = at(step.outputs.front()).is;
      if (!has_operands(call))
        throw InputError("{}: operator '{}' lacks operands, or they have too few dimensions", file,
                         call.name);
      OperatorCost cost = cost_of(call, result.batch);
      if (cost.view && !step.inputs.empty())
        for (const std::string& output : step.outputs) base[output] = memory(step.inputs.front());
      if (cost.view) continue;
      const auto keep = [&](const std::string& name) {
        const OperatorTensor& tensor = at(name).is;
        if (i == piece.first || tensor.weight || !kept.insert(memory(name)).second) return;
        cost.kernel.kept.size += Bytes(4.0 * tensor.numbers / result.batch);
      };
      if (cost.kept == Kept::kInput) std::ranges::for_each(operands, keep);
      if (cost.kept == Kept::kOutput && i + 1 < piece.end) keep(step.outputs.front());
      layer.operators.push_back({step.name, cost.kernel, cost.weights});
    }
    add_tensors(piece, layer);
    const OperatorTensor& output = at(steps[static_cast<std::size_t>(piece.end) - 1].outputs.front()).is;
    if (!output.shape.empty() && output.shape.front() == result.batch)
      layer.output = Shape(output.shape.begin() + 1, output.shape.end());
    else
      layer.output = {std::max<std::int64_t>(1, numel(output.shape) / result.batch)};
    return layer;
  }

  void add_tensors(const ProgramPiece& piece, GivenLayer& layer) {
    std::vector<std::string> reads = piece.parameters;
    for (const std::string& name : order) {
      if (std::ranges::find(reads, name) == reads.end()) continue;
      if (!owned.insert(name).second) {
        layer.tied.push_back(name);
        continue;
      }
      const auto arg =
          std::ranges::find_if(parameter_names, [&](const auto& one) { return one.second == name; });
      layer.parameters.push_back({.suffix = name, .shape = at(arg->first).is.shape});
    }
    for (auto name = reads.rbegin(); name != reads.rend(); ++name) {
      const bool own =
          std::ranges::find(layer.parameters, *name, &LayerTensor::suffix) != layer.parameters.end();
      if (own && std::ranges::find(layer.ready, *name) == layer.ready.end()) layer.ready.push_back(*name);
    }
    for (int i = piece.first; i < piece.end; ++i)
      for (const std::string& input : steps[static_cast<std::size_t>(i)].inputs) {
        const auto buffer = buffers.find(input);
        if (buffer == buffers.end() || !owned.insert(buffer->second).second) continue;
        const Tensor& tensor = at(input);
        if (is_float(tensor.type) || tensor.type > 1)
          layer.buffers.push_back(
              {.suffix = buffer->second, .shape = tensor.is.shape, .is_integer = !is_float(tensor.type)});
      }
  }

  void describe() {
    const Tensor& input = at(input_names.front());
    const Shape sample(input.is.shape.begin() + 1, input.is.shape.end());
    std::int64_t vocabulary = 0;
    for (const Step& step : steps)
      if (step.name == "embedding" && step.inputs.size() > 1 && step.inputs[1] == input_names.front())
        vocabulary = at(step.inputs[0]).is.shape.empty() ? 0 : at(step.inputs[0]).is.shape.front();
    GivenModel& model = result.model;
    if (!is_float(input.type) && sample.size() == 1 && vocabulary > 1)
      model.input = fmt::format("{{kind: tokens, shape: [{}], vocabulary: {}}}", sample.front(), vocabulary);
    else
      model.input = fmt::format("{{kind: features, shape: [{}]}}", sample.empty() ? "1" : joined(sample));
    const double count = sum_of(sizes, [](const auto& one) { return one.second; });
    model.loss = "mean_square";
    model.optimizer = "{kind: sgd, learning_rate: 0.01}";
    model.description = fmt::format("{:.0f} parameters in {}, exported with {} samples by PyTorch {}", count,
                                    counted(model.parts.size(), "part"), result.batch,
                                    result.torch.empty() ? "2.x" : result.torch);
    result.assumed.emplace_back(
        "optimizer sgd and loss mean_square, which cost little; the file's keys change them");
  }

  const json& graph = program.at("graph_module").at("graph");
  const json& signature = program.at("graph_module").at("signature");
  ExportedProgram result{};
  std::map<std::string, Tensor> tensors{};
  std::map<std::string, std::string> parameter_names{}, buffers{}, views{};  ///< full names, by tensor
  std::map<std::string, double> sizes{};                                     ///< of parameters, by full name
  std::vector<std::string> order{}, input_names{};
  std::vector<Step> steps{};
  std::set<std::string> owned{};
};

}  // namespace

ExportedProgram read_exported(const std::string& text, const std::string& name) {
  return of_json(name + ": is no program of torch.export", [&] {
    return ExportReader{json::parse(text), name}.read();
  });
}

}  // namespace stepcast

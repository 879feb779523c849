#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/given_layer.hpp"
#include "models/given_parts.hpp"
#include "runner/engine/torch_engine.hpp"
#include "runner/torch/operator_record.hpp"
#include "runner/torch/script_program.hpp"

namespace stepcast {
namespace {

constexpr const char* kScript = "TorchScript";

/// The smallest pieces of a program, joined to modules.
std::vector<ProgramPiece> divided(const ScriptProgram& program) {
  std::map<std::string, double> sizes;
  for (const std::string& name : program.parameters())
    sizes[name] = static_cast<double>(program.tensor(name).numel());
  std::vector<ProgramPiece> smallest;
  std::vector<int> ends = program.cuts();
  ends.push_back(program.nodes());
  for (int first = 0; const int end : ends) {
    ProgramPiece& piece = smallest.emplace_back(ProgramPiece{first, end});
    for (const std::string& name : program.part(first, end).tensors)
      if (sizes.contains(name)) piece.parameters.push_back(name);
    first = end;
  }
  return modules_of(smallest, sizes);
}

bool contains(const std::vector<LayerTensor>& tensors, const std::string& name) {
  return std::ranges::find(tensors, name, &LayerTensor::suffix) != tensors.end();
}

/// Runs a program as a whole and in pieces, and observes the pieces.
class ScriptTrial {
 public:
  ScriptTrial(const ScriptProgram& program, const ScriptQuestion& question)
      : program_(program), question_(question), batch_(question.shape.front()) {
    torch::manual_seed(1);
    input_ = question.vocabulary > 0
                 ? torch::randint(question.vocabulary, torch::IntArrayRef(question.shape), torch::kInt64)
                 : torch::randn(torch::IntArrayRef(question.shape));
    for (const std::string& name : program.parameters())
      weights_.push_back(program.tensor(name).requires_grad_());
  }

  /// Gradients of the whole program. \throws InputError for one that cannot be trained
  void run_whole() {
    torch::Tensor output;
    guarded([&] { output = run(program_.part(0, program_.nodes()), input_); });
    if (!output.requires_grad() || !output.is_floating_point())
      throw InputError("{}: its output does not depend on any trained parameter", question_.path);
    if (output.isnan().any().item<bool>())
      throw InputError("{}: with input {} of {} its output contains NaN; check its parameters",
                       question_.path, joined(question_.shape, "x"),
                       question_.vocabulary > 0 ? "random tokens" : "normal random numbers");
    if (output.dim() > 0 && output.numel() % batch_ != 0)
      throw InputError("{}: its output has {} numbers, which do not belong to {} samples evenly",
                       question_.path, output.numel(), batch_);
    own_loss_ = output.dim() == 0;
    guarded([&] { loss_of(output).backward(); });
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (!weights_[i].grad().defined())
        throw InputError("{}: parameter '{}' gets no gradient; DistributedDataParallel refuses that too",
                         question_.path, program_.parameters()[i]);
      expected_.push_back(weights_[i].grad().clone());
    }
  }

  /// Joins pieces that cannot run apart. Returns the pieces with what they compute.
  std::vector<GivenModel::Part> run_apart(std::vector<ProgramPiece>& pieces) {
    for (;;) {
      const std::optional<std::size_t> joined = forward(pieces);
      if (!joined) break;
      pieces[*joined].join(pieces[*joined + 1]);
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(*joined) + 1);
    }
    backward(pieces);
    if (!equal() && pieces.size() > 1) {
      pieces = {{0, program_.nodes(), program_.parameters()}};
      return run_apart(pieces);
    }
    return parts_;
  }

  [[nodiscard]] bool own_loss() const { return own_loss_; }

 private:
  [[nodiscard]] torch::Tensor run(const ScriptPart& part, const torch::Tensor& input) const {
    const auto values = transformed(part.tensors, [&](const auto& name) { return program_.tensor(name); });
    torch::manual_seed(1);
    return part.run(input.requires_grad() ? input : input.clone(), values);  // which it may change in place
  }
  [[nodiscard]] torch::Tensor loss_of(const torch::Tensor& output) const {
    return own_loss_ ? output : output.square().mean();
  }
  /// \throws InputError with the last line of LibTorch's message
  void guarded(const std::function<void()>& action) const {
    try {
      action();
    } catch (const std::exception& error) {
      std::string text = error.what();
      text = text.substr(0, text.find("\nException raised from"));
      const std::size_t line = text.find_last_of('\n', text.empty() ? 0 : text.size() - 2);
      throw InputError("{}: with input {}: {}", question_.path, joined(question_.shape, "x"),
                       printable(line == std::string::npos ? text : text.substr(line + 1)));
    }
  }

  /// \returns the piece that must be joined with the next one, if any
  std::optional<std::size_t> forward(const std::vector<ProgramPiece>& pieces) {
    parts_.clear();
    outputs_.clear();
    starts_.clear();
    torch::Tensor value = input_;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const ProgramPiece& piece = pieces[i];
      const ScriptPart part = program_.part(piece.first, piece.end);
      starts_.push_back(i == 0 ? value : value.detach().requires_grad_());
      GivenModel::Part made{
          "", {.program = kScript, .first = piece.first, .end = piece.end, .nodes = program_.nodes()}};
      try {
        value = run(part, starts_.back());
        const torch::Tensor seen = value;
        made.layer.operators = record_operators(static_cast<double>(batch_), weights_, {starts_.back(), seen},
                                                [&] { static_cast<void>(run(part, starts_.back())); });
      } catch (const std::exception&) {
        if (i == 0) throw;
        return i - 1;  // it changes its input in place, or needs more of what is before it
      }
      const bool last = i + 1 == pieces.size();
      if (!last && (!value.is_floating_point() || !value.requires_grad() || value.dim() == 0 ||
                    value.size(0) != batch_))
        return i;
      if (last && value.dim() > 0 && value.size(0) != batch_)
        made.layer.output = {value.numel() / batch_};
      else if (value.dim() > 0)
        made.layer.output = Shape(value.sizes().begin() + 1, value.sizes().end());
      outputs_.push_back(value);
      add_tensors(part, made.layer);
      parts_.push_back(std::move(made));
    }
    return std::nullopt;
  }

  /// The first piece that reads a tensor owns it.
  void add_tensors(const ScriptPart& part, GivenLayer& layer) {
    const auto owned = [&](const std::string& name) {
      return std::ranges::any_of(parts_, [&](const GivenModel::Part& one) {
        return contains(one.layer.parameters, name) || contains(one.layer.buffers, name);
      });
    };
    const auto reads = [&](const std::string& name) {
      return std::ranges::find(part.tensors, name) != part.tensors.end();
    };
    for (const std::string& name : program_.parameters()) {
      if (!reads(name)) continue;
      if (owned(name))
        layer.tied.push_back(name);
      else
        layer.parameters.push_back({.suffix = name, .shape = program_.tensor(name).sizes().vec()});
    }
    for (const std::string& name : program_.buffers())
      if (reads(name) && !owned(name))
        layer.buffers.push_back({.suffix = name,
                                 .shape = program_.tensor(name).sizes().vec(),
                                 .is_integer = !program_.tensor(name).is_floating_point()});
  }

  /// Notes the order in which gradients of each piece become ready.
  void backward(const std::vector<ProgramPiece>& pieces) {
    std::vector<std::string> order;
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i].mutable_grad().zero_();
      const auto accumulator = torch::autograd::impl::grad_accumulator(weights_[i]);
      const auto note = [&order, name = program_.parameters()[i]](const torch::autograd::variable_list& out,
                                                                  const torch::autograd::variable_list&) {
        order.push_back(name);
        return out;
      };
      hooks.emplace_back(accumulator, accumulator->add_post_hook(
                                          std::make_unique<torch::autograd::utils::LambdaPostHook>(note)));
    }
    for (std::size_t i = pieces.size(); i-- > 0;) {
      order.clear();
      i + 1 == pieces.size() ? loss_of(outputs_[i]).backward() : outputs_[i].backward(starts_[i + 1].grad());
      GivenLayer& layer = parts_[i].layer;
      for (const std::string& name : order)
        if (contains(layer.parameters, name)) layer.ready.push_back(name);
    }
    for (const auto& [accumulator, hook] : hooks) accumulator->del_post_hook(hook);
  }

  [[nodiscard]] bool equal() const {
    constexpr double kRounding = 1e-4;
    for (std::size_t i = 0; i < weights_.size(); ++i)
      if (!torch::allclose(weights_[i].grad(), expected_[i], kRounding,
                           kRounding * expected_[i].abs().max().item<double>()))
        return false;
    return true;
  }

  const ScriptProgram& program_;
  const ScriptQuestion& question_;
  std::int64_t batch_;
  torch::Tensor input_;
  std::vector<torch::Tensor> weights_, expected_;
  bool own_loss_ = false;
  std::vector<GivenModel::Part> parts_;
  std::vector<torch::Tensor> starts_, outputs_;  ///< by piece
};

}  // namespace

std::string describe_script(const ScriptQuestion& question) {
  const torch::AutoGradMode enabled(true);
  const ScriptProgram program(question.path);
  ScriptTrial trial(program, question);
  trial.run_whole();
  std::vector<ProgramPiece> pieces = divided(program);
  GivenModel model;
  model.program = kScript;
  model.parts = trial.run_apart(pieces);
  const std::vector<std::string> names = names_of_parts(pieces, program.parameters());
  for (std::size_t i = 0; i < names.size(); ++i) model.parts[i].name = names[i];
  const std::int64_t count =
      sum_of(program.parameters(), [&](const auto& name) { return program.tensor(name).numel(); });
  model.description = fmt::format("{} parameters in {}, described with {} samples by LibTorch {}", count,
                                  counted(model.parts.size(), "part"), question.shape.front(), TORCH_VERSION);
  const Shape sample(question.shape.begin() + 1, question.shape.end());
  model.input = question.vocabulary > 0 ? fmt::format("{{kind: tokens, shape: [{}], vocabulary: {}}}",
                                                      joined(sample), question.vocabulary)
                                        : fmt::format("{{kind: features, shape: [{}]}}", joined(sample));
  model.loss = trial.own_loss() ? "own" : "mean_square";
  model.optimizer = question.optimizer == "adam" ? "{kind: adam, learning_rate: 0.001}"
                                                 : "{kind: sgd, learning_rate: 0.01}";
  return to_text(model);
}

}  // namespace stepcast

#include "runner/torch/torch_model.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "models/muon.hpp"
#include "runner/execute/memory_account.hpp"
#include "runner/torch/collective_functions.hpp"
#include "runner/torch/layer_builder.hpp"
#include "runner/torch/tensor_memory.hpp"

namespace stepcast {

torch::Tensor collective_alone(const Model& model, int index, const torch::Tensor& own) {
  const LayerCollective& exchange = model.collectives.at(index);
  const std::int64_t ranks = model.ranks_of(exchange);
  switch (exchange.kind) {
    case LayerCollectiveKind::kAllGather: {
      const torch::Tensor all =
          torch::stack(std::vector<torch::Tensor>(static_cast<std::size_t>(ranks), own));
      return own.size(0) == 1 ? all.flatten(0, 2).unsqueeze(0) : all.transpose(0, 1).flatten(1, 2);
    }
    case LayerCollectiveKind::kReduceScatter: {
      const torch::Tensor sent =
          own.size(0) > 1 ? own.unflatten(1, {ranks, -1}).transpose(0, 1).contiguous() : own;
      return own.narrow(1, 0, own.size(1) / ranks).clone();
    }
    case LayerCollectiveKind::kShift:
    case LayerCollectiveKind::kAllToAll:
      return own.contiguous().clone();
    default:
      return own;
  }
}

std::unique_ptr<torch::optim::Optimizer> TorchModel::make_optimizer(
    const std::vector<torch::Tensor>& tensors) const {
  const Optimizer& settings = model_.optimizer;
  if (settings.kind == "sgd")
    return std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(settings.learning_rate)
                                                            .momentum(settings.momentum)
                                                            .weight_decay(settings.weight_decay));
  if (settings.kind == "adam")
    return std::make_unique<torch::optim::Adam>(
        tensors, torch::optim::AdamOptions(settings.learning_rate).weight_decay(settings.weight_decay));
  throw InputError(model_.path + ": " + unknown_name("optimizer", settings.kind, {"adam", "sgd"}));
}

TorchModel::TorchModel(const Model& model, const TrainingDtypes& dtypes, unsigned seed,
                       const std::optional<std::vector<int>>& held, const ModelPart& part)
    : model_(model), dtypes_(dtypes), part_(part), masks_(dtypes.generator(seed + 1)) {
  if (model.has_fixed_times())
    throw InputError(model.path + ": model '" + model.name +
                     "' declares its times; there is nothing to compute");
  if (model.transformer_engine())
    throw CapabilityError("{}: transformer_engine=1 is forecast, and not trained: layers here are PyTorch's",
                          model.specification);
  const auto setting = [&](const char* name) { return value_or(model.settings, name, 0); };
  if (const int sequence = setting("sequence");
      setting("window") > 0 && (sequence == 0 || setting("window") < sequence))
    throw CapabilityError("{}: attention in a window is forecast, and not trained", model.specification);
  if (setting("mtp") > 0)
    throw CapabilityError("{}: multi-token prediction is forecast, and not trained", model.specification);
  if (model.loss.chunks > 1)
    throw CapabilityError("{}: a loss in chunks is forecast, and not trained", model.specification);
  LayerBuilder builder(*this, seed);
  const std::vector<int> all = whole_numbers(0, model.segments.size());
  const std::vector<int>& kept = held ? *held : all;
  for (const int segment : all) {
    segments_.push_back(builder.chain(model.segments[segment].layers));
    drop_unless_held(segment, kept, all);
  }
  builder.check_complete();
  for (const int segment : all) drop_unless_held(segment, kept, kept);
  masters_ = parameters_;
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (model.parameters[i].frozen) masters_[i].reset();
  if (dtypes.master) {
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    for (torch::Tensor& master : masters_)
      if (master.defined()) master = master.detach().to(torch::kFloat32).requires_grad_();
  }
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    std::vector<torch::Tensor> tensors;
    for (const int index : model.segments[i].parameters)
      if (masters_[index].defined() && !model.by_muon(model.parameters[index]))
        tensors.push_back(masters_[index]);
    optimizers_.push_back(tensors.empty() ? nullptr : make_optimizer(tensors));
  }
  momenta_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!masters_[i].defined()) continue;
    add_gradient_hook(static_cast<int>(i));
    const MemoryScope scope(MemoryCategory::kOptimizerState);
    if (model.by_muon(model.parameters[i])) momenta_[i] = torch::zeros_like(masters_[i].detach());
  }
}

/// Frees parameters of segments that are not on this rank. All segments are drawn, so that every rank draws
/// the same; parameters that a later segment needs stay until then.
void TorchModel::drop_unless_held(int segment, const std::vector<int>& held, const std::vector<int>& users) {
  if (std::ranges::find(held, segment) != held.end()) return;
  std::set<int> kept;
  for (const int user : users) {
    for (const std::vector<int>* tied : {&model_.segments[user].tied, &model_.segments[user].frozen.tied})
      kept.insert(tied->begin(), tied->end());
  }
  segments_[segment].clear();
  for (const int index : model_.segments[segment].all_parameters())
    if (!kept.contains(index)) parameters_[index].reset();
}

void TorchModel::add_gradient_hook(int index) {
  using Variables = torch::autograd::variable_list;
  const auto call = [this, index](const Variables& outputs, const Variables&) {
    if (gradient_hook_) gradient_hook_(index);
    return outputs;
  };
  accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters_[index]));
  accumulators_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(call));
}

FinalState TorchModel::final_state() const {
  const auto values = [](const torch::Tensor& tensor) {
    if (!tensor.defined()) return std::vector<double>();
    const torch::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous();
    return std::vector<double>(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  };
  return {transformed(parameters_, values), transformed(buffers_, values)};
}

void TorchModel::free_master(int parameter) const {
  if (dtypes_.master) free_memory(masters_[parameter]);
}

torch::Tensor TorchModel::forward(std::size_t segment, const torch::Tensor& input) const {
  return run(segments_[segment], input);
}

torch::Tensor TorchModel::forward(const torch::Tensor& input) const {
  torch::Tensor value = input;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) value = forward(segment, value);
  return value;
}

MemoryBytes TorchModel::resident_bytes() const {
  MemoryBytes bytes{};
  const auto add = [&bytes](MemoryCategory category, const torch::Tensor& tensor) {
    if (tensor.defined()) bytes[category] += static_cast<double>(tensor.nbytes());
  };
  for (const torch::Tensor& flat : flat_buffers_) add(MemoryCategory::kParameters, flat);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    add(MemoryCategory::kParameters, parameters_[i]);
    if (dtypes_.master) add(MemoryCategory::kOptimizerState, masters_[i]);
    if (masters_[i].defined()) add(MemoryCategory::kGradients, parameters_[i].grad());
    for (int state = 0; masters_[i].defined() && state < model_.states_of(model_.parameters[i]); ++state)
      add(MemoryCategory::kOptimizerState, masters_[i]);
  }
  return bytes;
}

torch::Tensor TorchModel::loss(const torch::Tensor& stored, const torch::Tensor& wanted) const {
  const auto whole = [this](const torch::Tensor& tensor) {
    return dtypes_.master && tensor.is_floating_point() ? tensor.to(torch::kFloat32) : tensor;
  };
  const torch::Tensor output = whole(stored), target = whole(wanted);
  if (model_.shares_classes())
    return SharedCrossEntropy::apply(output.flatten(0, 1), target.flatten(), this, part_.share);
  if (model_.loss.kind == "cross_entropy")
    return output.dim() == 3 ? torch::cross_entropy_loss(output.flatten(0, 1), target.flatten())
                             : torch::cross_entropy_loss(output, target);
  if (model_.loss.kind == "binary_cross_entropy")
    return torch::binary_cross_entropy_with_logits(output, target);
  if (model_.loss.kind == "mean_square") return output.square().mean();
  if (model_.loss.kind == "own") return output;
  throw InputError(model_.path + ": " +
                   unknown_name("loss", model_.loss.kind,
                                {"binary_cross_entropy", "cross_entropy", "mean_square", "own"}));
}

void TorchModel::zero_grad(std::optional<std::size_t> segment) {
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segment.value_or(i) != i) continue;
    for (const int index : model_.segments[i].parameters)
      if (const torch::Tensor& parameter = parameters_[index]; parameter.defined())
        parameter.mutable_grad().zero_();  // in place: the optimizer's own way detaches, which views refuse
  }
}

/// As models/muon.hpp, with the coefficients of Jordan et al.
void TorchModel::step_muon(int index) {
  constexpr double kLinear = 3.4445, kCubic = -4.7750, kQuintic = 2.0315, kLeastNorm = 1e-7, kScale = 0.2;
  const Optimizer& settings = model_.optimizer;
  torch::Tensor weight = masters_[index], momentum = momenta_[index];
  momentum.lerp_(weight.grad(), 1.0 - muon::kMomentum);
  const torch::Tensor update = weight.grad().lerp(momentum, muon::kMomentum);
  const bool is_tall = weight.size(0) > weight.size(1);
  torch::Tensor x = update.to(dtypes_.dtype);
  if (is_tall) x = x.t();
  x = x / x.norm().clamp_min(kLeastNorm);
  for (int i = 0; i < muon::kIterations; ++i) {
    const torch::Tensor gram = x.mm(x.t());
    x = torch::addmm(x, torch::addmm(gram, gram, gram, kCubic, kQuintic), x, kLinear);
  }
  const auto longest = static_cast<double>(std::max(weight.size(0), weight.size(1)));
  weight.mul_(1.0 - settings.learning_rate * settings.weight_decay);
  weight.sub_(is_tall ? x.t() : x, kScale * std::sqrt(longest) * settings.learning_rate);
}

void TorchModel::optimizer_step(std::optional<std::size_t> segment) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segment.value_or(i) != i) continue;
    const auto with_masters = [&](const auto& act) {
      if (!dtypes_.master) return;
      for (const int index : model_.segments[i].parameters)
        if (parameters_[index].defined()) act(parameters_[index], masters_[index]);
    };
    with_masters([](const torch::Tensor& parameter, torch::Tensor& master) {
      master.mutable_grad() = parameter.grad().to(torch::kFloat32);
    });
    if (optimizers_[i] != nullptr) optimizers_[i]->step();
    for (const int index : model_.segments[i].parameters)
      if (momenta_[index].defined()) step_muon(index);
    with_masters([](torch::Tensor& parameter, torch::Tensor& master) {
      parameter.copy_(master);
      master.mutable_grad().reset();
    });
  }
}

}  // namespace stepcast

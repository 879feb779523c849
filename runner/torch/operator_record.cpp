#include "runner/torch/operator_record.hpp"

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>

#include "models/operators.hpp"

namespace stepcast {
namespace {

using Memory = const c10::StorageImpl*;

c10::Storage storage_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage() : c10::Storage();
}

Memory memory_of(const torch::Tensor& tensor) { return storage_of(tensor).unsafeGetStorageImpl(); }

class OperatorRecord {
 public:
  OperatorRecord(double batch, const std::vector<torch::Tensor>& weights,
                 const std::vector<torch::Tensor>& apart)
      : batch_(batch) {
    for (const torch::Tensor& weight : weights) weights_.insert(memory_of(weight));
    for (const torch::Tensor& tensor : apart) kept_.emplace(memory_of(tensor), storage_of(tensor));
  }

  void begin(const at::RecordFunction& function) {
    Frame frame;
    const std::string name = function.name();
    const std::size_t colons = name.find("::");
    frame.call.name = colons == std::string::npos ? name : name.substr(colons + 2);
    frame.known = knows_operator(frame.call.name);
    if (!open_.empty()) {
      open_.back().has_inner = true;
      frame.within = open_.back().within || open_.back().known;
    }
    // The interpreter hands over its whole stack, at whose end the inputs are, and later the outputs.
    const auto inputs = function.inputs();
    const std::size_t count = std::min(inputs.size(), function.num_inputs());
    if (!frame.within)
      for (const c10::IValue& value : inputs.slice(inputs.size() - count)) add_input(value, frame);
    open_.push_back(std::move(frame));
  }

  void end(const at::RecordFunction& function) {
    Frame frame = std::move(open_.back());
    open_.pop_back();
    if (frame.within || (frame.has_inner && !frame.known)) return;
    const auto outputs = function.outputs();
    const std::size_t count = function.num_outputs();
    if (count == 0 || outputs.size() < count || !outputs[outputs.size() - count].isTensor()) return;
    const torch::Tensor& output = outputs[outputs.size() - count].toTensor();
    const c10::Storage storage = storage_of(output);
    const bool in_place = frame.call.name.ends_with("_");
    const bool view = !in_place && std::ranges::any_of(frame.memory, [&](const c10::Storage& one) {
      return one.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    });
    frame.call.output = as_operand(output);
    if (view && frame.call.output.weight) return;
    OperatorCost cost = cost_of(frame.call, batch_);
    if (cost.view || view) return;
    const auto keep = [&](const c10::Storage& what, const OperatorTensor& tensor) {
      if (tensor.weight || !what || !kept_.emplace(what.unsafeGetStorageImpl(), what).second) return;
      cost.kernel.kept.size += Bytes(4.0 * tensor.numbers / batch_);
    };
    if (cost.kept == Kept::kOutput) keep(storage, frame.call.output);
    if (cost.kept == Kept::kInput)
      for (std::size_t i = 0; i < frame.memory.size(); ++i) keep(frame.memory[i], frame.call.inputs[i]);
    operators_.push_back({frame.call.name, cost.kernel, cost.weights});
  }

  [[nodiscard]] std::vector<GivenOperator> take() { return std::move(operators_); }

 private:
  struct Frame {
    OperatorCall call;
    std::vector<c10::Storage> memory;  ///< of the inputs
    bool known = false, has_inner = false;
    bool within = false;  ///< of a call that counts
  };

  void add_input(const c10::IValue& value, Frame& frame) {
    if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) add_input(tensor, frame);
    } else if (value.isTensor() && value.toTensor().defined()) {
      frame.call.inputs.push_back(as_operand(value.toTensor()));
      frame.memory.push_back(storage_of(value.toTensor()));
    } else if (value.isBool() && frame.call.name == "scaled_dot_product_attention") {
      frame.call.causal = frame.call.causal || value.toBool();
    }
  }

  [[nodiscard]] OperatorTensor as_operand(const torch::Tensor& tensor) const {
    const double width = tensor.scalar_type() == torch::kBool ? 0.25 : tensor.is_floating_point() ? 1.0 : 2.0;
    return {tensor.sizes().vec(), width * static_cast<double>(tensor.numel()),
            weights_.contains(memory_of(tensor))};
  }

  double batch_;
  std::set<Memory> weights_;
  std::map<Memory, c10::Storage> kept_;  ///< held, or another tensor could come to lie there
  std::vector<Frame> open_;
  std::vector<GivenOperator> operators_;
};

thread_local OperatorRecord* recording = nullptr;

std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& function) {
  if (recording != nullptr) recording->begin(function);
  return nullptr;
}

void end_call(const at::RecordFunction& function, at::ObserverContext* /*none*/) {
  if (recording != nullptr) recording->end(function);
}

}  // namespace

std::vector<GivenOperator> record_operators(double batch, const std::vector<torch::Tensor>& weights,
                                            const std::vector<torch::Tensor>& apart,
                                            const std::function<void()>& run) {
  OperatorRecord record(batch, weights, apart);
  recording = &record;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(begin_call, end_call)
                                                     .needsInputs(true)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  recording = nullptr;
  return record.take();
}

}  // namespace stepcast

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/kineto/imported.hpp"

namespace stepcast::tests {

/// A profile of a training on one CPU thread, written event by event. Microseconds; the clock begins far from
/// 0, as PyTorch's does.
class CpuProfile {
 public:
  /// Everything up to the next call of mark() is one step of the profiler.
  void mark() {
    if (begin_ > 0.0)
      events_.push_back(
          slice("user_annotation", "ProfilerStep#" + std::to_string(++steps_), 100, begin_, now_ - begin_));
    begin_ = now_;
  }
  void pass(double time) { now_ += time; }
  [[nodiscard]] double now() const { return now_; }

  void operation(const std::string& name, double time, nlohmann::json args = nlohmann::json::object()) {
    events_.push_back(slice("cpu_op", name, 100, now_, time, std::move(args)));
    now_ += time;
  }
  /// A layer of the forward. \returns the number of its node
  int layer(const std::vector<int>& weight, double time = 100.0, int batch = 16,
            const std::string& type = "float") {
    operation("aten::linear", time,
              {{"Sequence number", ++sequence_},
               {"Fwd thread id", 0},
               {"Input Dims", {{batch, weight.back()}, weight}},
               {"Input type", {type, type}}});
    return sequence_;
  }
  /// A node of the backward, and the gradient that it leads to; empty: none.
  void node(int number, const std::vector<int>& gradient = {}, double time = 100.0,
            const std::string& type = "float") {
    operation("autograd::engine::evaluate_function: AddmmBackward0", time,
              {{"Sequence number", number}, {"Fwd thread id", 1}});
    if (gradient.empty()) return;
    const double begin = now_;
    operation("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 2.0);
    events_.push_back(slice("cpu_op", "torch::autograd::AccumulateGrad", 100, begin + 0.5, 1.0,
                            {{"Input Dims", {gradient}}, {"Input type", {type}}}));
  }
  /// Forward and backward of two layers.
  void train(double time = 100.0, int batch = 16, const std::string& type = "float") {
    const int first = layer({32, 16}, time, batch, type), second = layer({8, 32}, time, batch, type);
    node(second, {8, 32}, time, type);
    node(first, {32, 16}, time, type);
  }
  /// `Optimizer.step#`, with operations on tensors of these shapes.
  void update(const std::vector<std::vector<int>>& shapes = {{32, 16}, {8, 32}}, double time = 50.0,
              const std::string& name = "SGD", const std::string& operation_name = "aten::add_") {
    events_.push_back(slice("user_annotation", "Optimizer.step#" + name + ".step", 100, now_,
                            time * static_cast<double>(shapes.size())));
    for (const auto& shape : shapes)
      operation(operation_name, time, {{"Input Dims", {shape}}, {"Input type", {"float"}}});
  }
  /// A collective of Gloo, for which the thread waits. \param thread 100: the main one, as with send and recv
  void wait_for(const std::string& name, double time, int thread = 103) {
    events_.push_back(slice("user_annotation", "gloo:" + name, thread, now_ + 1.0, time,
                            {{"Input Dims", {{768}}}, {"Input type", {"float"}}}));
    operation("c10d::" + name + "_", 3.0);
    now_ += time + 5.0;
  }
  [[nodiscard]] nlohmann::json json(int ranks = 1) const {
    nlohmann::json file{{"schemaVersion", 1}, {"deviceProperties", nlohmann::json::array()}};
    if (ranks > 1) file["distributedInfo"] = {{"backend", "gloo"}, {"rank", 0}, {"world_size", ranks}};
    file["traceEvents"] = events_;
    return file;
  }
  /// An event that overlaps others.
  void add(nlohmann::json event) { events_.push_back(std::move(event)); }

 private:
  nlohmann::json events_ = nlohmann::json::array();
  double now_ = 5e9, begin_ = 0.0;
  int steps_ = 0, sequence_ = 0;
};

}  // namespace stepcast::tests

#include "tests/kineto/written_profile.hpp"

#include <numeric>

namespace stepcast::tests {
namespace {

using nlohmann::json;

constexpr int kProcess = 100, kMain = 100, kEngine = 101, kCompute = 7, kNetwork = 20;

/// Appends events; every launch has its kernel.
class Writer {
 public:
  explicit Writer(const WrittenProfile& profile) : profile_(profile) {}

  json run() {
    double begin = 1000.0;
    for (int step = 0; step < profile_.steps; ++step) begin = add_step(step, begin);
    return std::move(events_);
  }

 private:
  void slice(const std::string& category, const std::string& name, int thread, double begin, double duration,
             json args = json::object(), int process = kProcess) {
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", process},
                       {"tid", thread},
                       {"ts", begin},
                       {"dur", duration},
                       {"args", std::move(args)}});
  }

  /// A launch at `begin`, and its kernel when the stream is free. \returns the kernel's end
  double kernel(const std::string& name, int thread, int stream, double begin, double duration,
                json args = json::object()) {
    slice("cuda_runtime", "cudaLaunchKernel", thread, begin, 1.0, {{"correlation", ++correlation_}});
    double& free = stream == kCompute ? compute_free_ : network_free_;
    const double start = std::max(free, begin + 2.0);
    args["correlation"] = correlation_;
    slice(profile_.kernel_category, name, stream, start, duration, std::move(args), 0);
    return free = start + duration;
  }

  /// Returns the end of the call, which waits for its copy.
  double copy_input(double begin) {
    const double end = std::max(compute_free_, begin) + 1.0;
    slice("cpu_op", "aten::copy_", kMain, begin, end - begin + 0.4);
    slice("cuda_runtime", "cudaMemcpyAsync", kMain, begin + 0.1, end - begin + 0.2,
          {{"correlation", ++correlation_}});
    slice("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", kCompute, end - 0.5, 0.5,
          {{"correlation", correlation_}}, 0);
    compute_free_ = end;
    return end + 1.0;
  }

  /// Returns its end. \param numbers of the layers' nodes: filled
  double add_forward(double now, std::vector<int>& numbers) {
    const double launch = profile_.launch;
    for (const WrittenLayer& layer : profile_.layers) {
      numbers.push_back(++sequence_);
      slice("cpu_op", "aten::linear", kMain, now, launch - 1.0,
            {{"Sequence number", sequence_},
             {"Fwd thread id", 0},
             {"Input Dims", {{16, layer.weight[1]}, layer.weight, json::array()}},
             {"Input type", {"float", "float", ""}}});
      kernel("gemm", kMain, kCompute, now + 1.0, layer.forward);
      now += launch;
      if (numbers.size() == profile_.loss_after)
        slice("cpu_op", "aten::mse_loss", kMain, now - 0.8, 0.5,
              {{"Sequence number", ++sequence_}, {"Fwd thread id", 0}});
    }
    return now;
  }

  double add_backward(double now, const std::vector<int>& numbers) {
    const double launch = profile_.launch;
    for (std::size_t i = profile_.layers.size(); i-- > 0;) {
      const WrittenLayer& layer = profile_.layers[i];
      slice("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", kEngine, now, launch - 3.0,
            {{"Sequence number", numbers[i]}, {"Fwd thread id", 1}});
      kernel("gemm_backward", kEngine, kCompute, now + 0.5, layer.backward);
      const double accumulated = now + launch - 2.5;
      slice("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", kEngine,
            accumulated, 1.5);
      slice("cpu_op", "torch::autograd::AccumulateGrad", kEngine, accumulated + 0.2, 1.0,
            {{"Input Dims", {layer.weight}}, {"Input type", {"float"}}});
      now += launch;
    }
    return now;
  }

  double add_step(int step, double begin) {
    double now = begin + (step == 1 ? profile_.delay : 0.0);
    const std::size_t at = events_.size();
    const double launch = profile_.launch;
    if (profile_.pageable) now = copy_input(now);
    std::vector<std::vector<int>> numbers(profile_.forwards);
    for (std::vector<int>& each : numbers) now = add_forward(now, each);
    for (const std::vector<int>& each : numbers) now = add_backward(now, each);
    double end = compute_free_;
    const bool updates = (step + 1) % profile_.accumulate == 0;
    if (profile_.all_reduce > 0.0 && updates) {
      slice("cpu_op", "record_param_comms", kEngine, now, launch - 1.0,
            {{"Collective name", "allreduce"},
             {"dtype", "Float"},
             {"In msg nelems", elements()},
             {"Out msg nelems", elements()},
             {"Group size", profile_.ranks},
             {"Process Group Name", "0"}});
      network_free_ = std::max(network_free_, compute_free_ - profile_.late);
      end = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", kEngine,
                   kNetwork, now + 1.0, profile_.all_reduce + profile_.late);
      compute_free_ = std::max(compute_free_, end);
      now += launch;
    }
    if (updates) {
      slice("user_annotation", "Optimizer.step#SGD.step", kMain, now, launch - 1.0);
      end = kernel("sgd", kMain, kCompute, now + 1.0, profile_.optimizer);
      now += launch;
    }
    if (profile_.waits) {
      const double wait = std::max(0.0, end - now) + 1.0;
      slice("cuda_runtime", "cudaStreamSynchronize", kMain, now, wait, {{"correlation", ++correlation_}});
      now += wait + 1.0;
    }
    slice("user_annotation", "ProfilerStep#" + std::to_string(step + 3), kMain, begin, now - begin);
    std::rotate(events_.begin() + static_cast<long>(at), events_.end() - 1, events_.end());
    return now;
  }

  [[nodiscard]] std::int64_t elements() const {
    std::int64_t sum = 0;
    for (const WrittenLayer& layer : profile_.layers)
      sum += std::accumulate(layer.weight.begin(), layer.weight.end(), std::int64_t{1}, std::multiplies<>());
    return sum;
  }

  const WrittenProfile& profile_;
  json events_ = json::array();
  int correlation_ = 0, sequence_ = 0;
  double compute_free_ = 0.0, network_free_ = 0.0;
};

}  // namespace

double WrittenProfile::device_step() const {
  double sum = optimizer + all_reduce;
  for (const WrittenLayer& layer : layers) sum += layer.forward + layer.backward;
  return sum;
}

json WrittenProfile::json() const {
  return {{"schemaVersion", 1},
          {"deviceProperties", {{{"id", 0}, {"name", "NVIDIA H100 80GB HBM3"}}}},
          {"distributedInfo", {{"backend", "nccl"}, {"rank", rank}, {"world_size", ranks}}},
          {"host_name", "secret-host"},
          {"traceEvents", Writer(*this).run()},
          {"traceName", user}};
}

}  // namespace stepcast::tests

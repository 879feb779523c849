#include "runner/torch/layer_builder.hpp"

namespace stepcast {
namespace {

LayerFunction build_conv(LayerBuilder& builder, const Layer& layer) {
  const auto [weight, bias] = builder.weights(layer);
  return [weight = weight, bias = bias, stride = layer.sizes.at("stride"),
          padding = layer.sizes.at("padding")](const torch::Tensor& x) {
    return torch::conv2d(x, weight, bias, stride, padding);
  };
}

LayerFunction build_linear(LayerBuilder& builder, const Layer& layer) {
  const auto [weight, bias] = builder.weights(layer);
  return builder.adapted(layer.name, [weight = weight, bias = bias](const torch::Tensor& x) {
    return torch::linear(x, weight, bias);
  });
}

LayerFunction build_batch_norm(LayerBuilder& builder, const Layer& layer) {
  constexpr double kMomentum = 0.1, kEpsilon = 1e-5;
  const torch::Tensor weight = builder.ones(layer.name + ".weight");
  const torch::Tensor bias = builder.parameter(layer.name + ".bias");
  const torch::Tensor mean = builder.buffer(layer.name + ".running_mean");
  const torch::Tensor variance = builder.buffer(layer.name + ".running_var").fill_(1.0);
  torch::Tensor tracked = builder.buffer(layer.name + ".num_batches_tracked");
  return [=](const torch::Tensor& x) {
    tracked.add_(1);
    return torch::batch_norm(x, weight, bias, mean, variance, true, kMomentum, kEpsilon, false);
  };
}

LayerFunction build_max_pool(LayerBuilder& /*builder*/, const Layer& layer) {
  return [kernel = layer.sizes.at("kernel"), stride = layer.sizes.at("stride"),
          padding = layer.sizes.at("padding")](const torch::Tensor& x) {
    return torch::max_pool2d(x, kernel, stride, padding);
  };
}

LayerFunction build_average_pool(LayerBuilder& /*builder*/, const Layer& layer) {
  return [out = layer.sizes.at("out")](const torch::Tensor& x) {
    return torch::adaptive_avg_pool2d(x, {out, out});
  };
}

LayerFunction build_residual(LayerBuilder& builder, const Layer& layer) {
  return
      [body = builder.chain(layer.body), shortcut = builder.chain(layer.shortcut)](const torch::Tensor& x) {
        const torch::Tensor y = run(body, x);
        return y + run(shortcut, x);
      };
}

LayerFunction build_product(LayerBuilder& builder, const Layer& layer) {
  return [gate = builder.chain(layer.body), value = builder.chain(layer.shortcut)](const torch::Tensor& x) {
    const torch::Tensor factor = run(gate, x);
    return factor * run(value, x);
  };
}

}  // namespace

const LayerTable kImageLayers{{"conv", &build_conv},
                              {"linear", &build_linear},
                              {"batch_norm", &build_batch_norm},
                              {"max_pool", &build_max_pool},
                              {"adaptive_avg_pool", &build_average_pool},
                              {"residual", &build_residual},
                              {"product", &build_product}};

}  // namespace stepcast

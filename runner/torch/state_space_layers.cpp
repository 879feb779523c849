#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "models/layer.hpp"
#include "runner/torch/layer_builder.hpp"

namespace stepcast {
namespace {

/// Sizes of a scan; arrays are [batch, chunks, positions of a chunk, ...].
struct ScanForm {
  std::int64_t heads, head, state, groups, chunk;
};

/// The scan of Mamba 2 chunk by chunk, as in `ssd_minimal_discrete` of its paper. Decays of a position are
/// exp(sum of dt A) from the start of its chunk. Scores within a chunk, then the states that chunks add, and
/// what the state before a chunk adds. \param b, c [..., groups, state] \param decay log of one step's decay
torch::Tensor scan_chunks(const ScanForm& form, const torch::Tensor& x, const torch::Tensor& dt,
                          const torch::Tensor& decay, const torch::Tensor& b, const torch::Tensor& c) {
  const std::int64_t each = form.heads / form.groups;
  const torch::Tensor sum = decay.cumsum(2), weighted = dt.unsqueeze(-1) * x;
  const torch::Tensor keys = b.repeat_interleave(each, 3), queries = c.repeat_interleave(each, 3);
  const torch::Tensor between = (sum.unsqueeze(3) - sum.unsqueeze(2)).permute({0, 1, 4, 2, 3});
  const torch::Tensor upper =
      torch::ones({form.chunk, form.chunk}, between.options().dtype(torch::kBool)).triu(1);
  const torch::Tensor reach = between.masked_fill(upper, -std::numeric_limits<double>::infinity()).exp();
  const torch::Tensor scores = torch::einsum("bnihs,bnjhs->bnhij", {queries, keys}) * reach;
  const torch::Tensor inside = torch::einsum("bnhij,bnjhp->bnihp", {scores, weighted});
  const torch::Tensor last = sum.select(2, form.chunk - 1);
  const torch::Tensor left = (last.unsqueeze(2) - sum).exp();
  const torch::Tensor added = torch::einsum("bnjh,bnjhs,bnjhp->bnhps", {left, keys, weighted});
  std::vector<torch::Tensor> before{torch::zeros_like(added.select(1, 0))};
  for (std::int64_t i = 0; i + 1 < added.size(1); ++i)
    before.push_back(last.select(1, i).exp().unsqueeze(-1).unsqueeze(-1) * before.back() +
                     added.select(1, i));
  const torch::Tensor outside =
      torch::einsum("bnihs,bnhps,bnih->bnihp", {queries, torch::stack(before, 1), sum.exp()});
  return inside + outside;
}

/// A layer of Mamba 2 (models/state_space_layers.cpp). Parameters are used in the order of registration.
LayerFunction build_mamba(LayerBuilder& builder, const Layer& layer) {
  constexpr double kEpsilon = 1e-5;
  if (builder.model().parallel.tensor > 1)
    throw CapabilityError("state-space layers that ranks share are forecast, not trained");
  const auto size = [&](const char* key) { return layer.sizes.at(key); };
  const auto name = [&](const char* suffix) { return full_name(layer, suffix); };
  const ScanForm form{size("heads"), size("head_size"), size("state"), size("groups"),
                      std::min(size("chunk"), layer.input.at(0))};
  if (layer.input.at(0) % form.chunk != 0)
    throw InputError("{}: sequence {} is no multiple of chunk {}", layer.name, layer.input.at(0), form.chunk);
  const std::int64_t inner = form.heads * form.head, shared = form.groups * form.state, taps = size("conv");
  const LayerFunction project = builder.projection(name("in_proj"));
  const torch::Tensor bias = builder.parameter(name("conv1d.bias")),
                      weight = builder.normal(name("conv1d.weight")),
                      dt_bias = builder.parameter(name("dt_bias")), a_log = builder.parameter(name("A_log")),
                      skip = builder.ones(name("D")), scale = builder.ones(name("norm.weight"));
  {
    const torch::NoGradGuard no_grad;
    a_log.copy_(torch::arange(1, form.heads + 1, builder.on_device(torch::kFloat64)).log());
  }
  return [=](const torch::Tensor& u) {
    const std::vector<torch::Tensor> parts =
        project(u).split_with_sizes({inner, inner + 2 * shared, form.heads}, -1);
    const torch::Tensor convolved =
        torch::silu(torch::conv1d(parts[1].transpose(1, 2), weight, bias, 1, taps - 1, 1, inner + 2 * shared)
                        .narrow(2, 0, u.size(1))
                        .transpose(1, 2));
    const torch::Tensor dt = torch::softplus(parts[2] + dt_bias), decay = dt * -a_log.exp();
    const auto chunked = [&](const torch::Tensor& all, std::int64_t outer, std::int64_t last) {
      return all.reshape({u.size(0), -1, form.chunk, outer, last});
    };
    const std::vector<torch::Tensor> xbc = convolved.split_with_sizes({inner, shared, shared}, -1);
    const torch::Tensor x = chunked(xbc[0], form.heads, form.head);
    const torch::Tensor scanned = scan_chunks(
        form, x, chunked(dt, form.heads, 1).squeeze(-1), chunked(decay, form.heads, 1).squeeze(-1),
        chunked(xbc[1], form.groups, form.state), chunked(xbc[2], form.groups, form.state));
    const torch::Tensor y = (scanned + skip.unsqueeze(-1) * x).reshape({u.size(0), u.size(1), inner});
    const torch::Tensor gated = (y * torch::silu(parts[0])).unflatten(-1, {form.groups, -1});
    return (gated * torch::rsqrt(gated.square().mean(-1, true) + kEpsilon)).flatten(-2) * scale;
  };
}

}  // namespace

const LayerTable kStateSpaceLayers{{"mamba", &build_mamba}};

}  // namespace stepcast

#include <algorithm>

#include "models/layer_kinds.hpp"

/// State-space layers (Mamba 2); H heads of P features, a state of N, G groups, chunks of Q positions.
namespace stepcast {
namespace {

/// Widths of a position.
struct ScanWidths {
  double inner;   ///< d = H P
  double shared;  ///< G N, of B and of C
  [[nodiscard]] double convolved() const { return inner + 2.0 * shared; }
};

ScanWidths widths(const Layer& layer) {
  return {number(layer, "heads") * number(layer, "head_size"),
          number(layer, "groups") * number(layer, "state")};
}

double projected(const Layer& layer) {
  const ScanWidths w = widths(layer);
  return w.inner + w.convolved() + number(layer, "heads");
}

Shape mamba_output(const Layer& layer) {
  if (size(layer, "context") > 1)
    throw InputError(
        "context={}: a state-space layer hands its state from part to part of a sequence, or exchanges heads "
        "(Megatron), neither of which is modelled; take context=1",
        size(layer, "context"));
  if (size(layer, "heads") % size(layer, "groups") != 0)
    throw InputError("groups {} do not divide heads {}", size(layer, "groups"), size(layer, "heads"));
  return {layer.input[0], size(layer, "heads") * size(layer, "head_size")};
}

std::vector<LayerTensor> mamba_parameters(const Layer& layer) {
  const auto convolved = static_cast<std::int64_t>(widths(layer).convolved());
  const std::int64_t heads = size(layer, "heads");
  return {{"in_proj.weight", {static_cast<std::int64_t>(projected(layer)), layer.input[1]}},
          {"conv1d.bias", {convolved}},
          {"conv1d.weight", {convolved, 1, size(layer, "conv")}},
          {"dt_bias", {heads}},
          {"A_log", {heads}},
          {"D", {heads}},
          {"norm.weight", {heads * size(layer, "head_size")}}};
}

/// Mamba 2 (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060) as Megatron's MambaMixer, without the
/// output projection that follows: z, x, B, C, dt = in_proj(u); x, B, C = silu(conv1d(x, B, C));
/// h_t = exp(dt A) h_(t-1) + dt B x; y = (C h + D x) silu(z); and a norm of each group of y.
///
/// In chunks a head computes scores C B^T, which its group shares, (L * scores) x, of which kernels skip the
/// half above the diagonal, states B^T x of each chunk, and C h from the state before it:
///
///     flop = 2 s h (2 d + 2 G N + H) + 2 s (Q G N + Q d / 2 + 2 N d) + 2 s k c + 4 s d,  c = d + 2 G N
///
/// with k taps of the convolution. Traffic in elements per position, of the kernels of mamba_ssm (ssd_*.py in
/// mamba_ssm/ops/triton), with S = N d / Q for the states of chunks and K = Q G for scores, both in fp32
/// except states after they were passed on:
///
///     convolution   2 c, backward 5 c (it runs again first)
///     scan          5 d + 4 G N + 2 S, and in fp32 2 S + 2 K + 6 H
///     backward      17 d + 11 G N + 5 S, and in fp32 6 S + 6 K + 4 G N + 12 H: scores and states are
///                   computed again
///     norm          2 d, backward 6.7 d: 3 d, for each of which it takes 1.8 to 2.8 times as long as most
///                   kernels (docs/hybrids.md)
///
/// Saved, as `mamba_split_conv1d_scan_combined` does: u, what in_proj returns, y before its gate, and the
/// norm's input with a number per group. Several samples are copied before and after the scan, since
/// Megatron's arrays are sequence-first. Left out: flop of the repetition.
void add_mamba(const Layer& layer, LayerCost& cost) {
  constexpr int kScanLaunches = 8, kScanLaunchesBackward = 20;
  const auto s = static_cast<double>(layer.input[0]);
  const auto [d, b] = widths(layer);
  const double heads = number(layer, "heads"), state = number(layer, "state"),
               groups = number(layer, "groups");
  const double c = d + 2.0 * b, chunk = std::min(number(layer, "chunk"), s);
  const double states = state * d / chunk, scores = chunk * groups, all = projected(layer);
  Kernel project = multiplies({s, all, static_cast<double>(layer.input[1])});
  keep(s * all, project);
  Kernel convolve = moves(2.0 * s * c, 5.0 * s * c, 1, 2);
  convolve.flop = Flop(2.0 * s * number(layer, "conv") * c);
  Kernel scan = moves(s * (5.0 * d + 4.0 * b + 2.0 * states), s * (17.0 * d + 11.0 * b + 5.0 * states),
                      kScanLaunches, kScanLaunchesBackward, Moved::kCompute, KernelRole::kScan);
  scan.flop = Flop(2.0 * s * (chunk * b + chunk * d / 2.0 + 2.0 * state * d));
  keep(s * d, scan);
  const Kernel wide = moves(s * (2.0 * states + 2.0 * scores + 6.0 * heads),
                            s * (6.0 * states + 6.0 * scores + 4.0 * b + 12.0 * heads), 0, 0, Moved::kFloat32,
                            KernelRole::kScan);
  Kernel norm = moves(2.0 * s * d, 6.7 * s * d, 1, 2);
  norm.flop = Flop(4.0 * s * d);
  keep(s * d, norm);
  keep_in_float32(s * groups, norm);
  const Kernel copies =
      moves(2.0 * s * (all + d), 2.0 * s * (all + d), 0, 0, Moved::kCompute, KernelRole::kBatchFirst);
  cost.kernels = {project, convolve, scan, wide, norm, copies};
  // Beside its input a kernel holds x, B and C, and states in fp32 (two elements) and as they are passed on;
  // in the backward also the gradient of what in_proj returns, that of y, and both kinds of states twice.
  cost.workspace = {float32_bytes(s * (c + 3.0 * states)), float32_bytes(s * (c + all + d + 6.0 * states))};
}

}  // namespace

std::vector<LayerKind> state_space_kinds() { return {{"mamba", mamba_output, mamba_parameters, add_mamba}}; }

}  // namespace stepcast

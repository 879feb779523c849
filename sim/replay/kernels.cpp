#include "sim/replay/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

struct Tile {
  double rows, columns;
};
constexpr std::array<Tile, 6> kTiles{{{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}}};
constexpr std::array<double, 4> kParts{1, 2, 4, 8};
constexpr double kLargeTile = 256.0 * 128.0 / (256.0 + 128.0);

double norm4(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

double output_element(const KernelRates& rates) { return rates.output > 0.0 ? rates.output : rates.element; }

double traffic(double m, double n, double k, double count, const KernelRates& rates) {
  if (rates.output == 0.0) return rates.element * count * (m * k + k * n + m * n);
  return count * (rates.element * (m * k + k * n) + rates.output * m * n);
}

/// Part of the rate that operands with rows of `columns` and `depth` elements reach, in the forward and in
/// the gradients.
double alignment_part(double columns, double depth, const KernelRates& rates) {
  if (rates.element != 2.0) return 1.0;
  double length = 1.0;
  for (const double part : rates.parameters->misaligned) {
    length *= 2.0;
    if (std::fmod(columns, length) != 0.0 || std::fmod(depth, length) != 0.0) return part;
  }
  return 1.0;
}

double attention_traffic(const FusedAttention& a, bool forward, double samples, const KernelRates& rates) {
  const double once = (a.heads * a.rows + a.kv_heads * a.keys) * (a.head_size + a.value_size);
  return (forward ? 1.0 : 2.0) * rates.element * samples * once;
}

AttentionRate attention_rate(const AttentionTable& table, double head_size,
                             AttentionRate AttentionParameters::*rate) {
  auto above = table.lower_bound(static_cast<int>(std::lround(head_size)));
  if (above == table.begin()) return above->second.*rate;
  if (above == table.end()) return table.rbegin()->second.*rate;
  const auto below = std::prev(above);
  const double part =
      std::log(head_size / below->first) / std::log(static_cast<double>(above->first) / below->first);
  const AttentionRate &a = below->second.*rate, &b = above->second.*rate;
  return {std::lerp(a.part, b.part, part), std::lerp(a.half, b.half, part)};
}

/// Why a kind of 8 bit has no rates for the attention of this model: no recipe of 8 bit, a window, which its
/// backward ignores, or heads of sizes that nobody measured; "" if it has.
std::string attention_problem(const Model& model, const std::string& kind, const AttentionTable& table) {
  if (!kind.ends_with("fp8")) return "";
  if (model.precision.products == "none")
    return fmt::format("--attention {} requires a --precision with GEMMs in 8 bit, as fp8; take cudnn", kind);
  for (const Segment& segment : model.segments)
    for (const LayerWork& work : segment.work)
      for (const Kernel& kernel : work.kernels) {
        const FusedAttention* one = kernel.attention();
        if (one == nullptr) continue;
        if (one->window > 0.0) return fmt::format("--attention {}: no rates with windows; take cudnn", kind);
        const double size = (one->head_size + one->value_size) / 2.0;
        if (size < table.begin()->first || size > table.rbegin()->first)
          return fmt::format("--attention {}: no rates of heads of {} elements, but of {} to {}; take cudnn",
                             kind, size, table.begin()->first, table.rbegin()->first);
      }
  return "";
}

}  // namespace

std::string attention_kind(const DeviceModel& device, const std::string& preference, const Model* model) {
  const bool wide =
      model != nullptr && bytes_of(model->precision.compute) > 2.0 && device.peak.contains("tf32");
  if (wide && device.kernels.attention.contains("efficient")) return "efficient";
  std::string problem;
  for (const std::string& kind : split(preference, '+')) {
    const auto table = device.kernels.attention.find(kind);
    if (table == device.kernels.attention.end()) continue;
    const std::string own = model == nullptr ? "" : attention_problem(*model, kind, table->second);
    if (own.empty()) return kind;
    problem = own;
  }
  if (!problem.empty()) throw InputError("{}", problem);
  throw InputError("--attention {}: {} has rates of {}", preference, device.name,
                   joined(filtered(names_of(device.kernels.attention), [](const std::string& kind) {
                     return kind != "efficient";  // taken in fp32, not chosen
                   })));
}

Seconds product_time(double m, double n, double k, double count, const KernelRates& rates) {
  const KernelParameters& kernels = *rates.parameters;
  const double read = traffic(m, n, k, count, rates) / rates.memory.count();
  const auto gain = [&](double a) { return a / (a + kernels.tile); };
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double reached =
        rates.reached * gain(tile.rows * tile.columns / (tile.rows + tile.columns)) / gain(kLargeTile);
    const double tiles = count * std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    for (const double parts : kParts) {
      const double u = parts * tiles / rates.multiprocessors;
      const double waves = std::max(1.0, (1.0 - kernels.waves) * u + kernels.waves * std::ceil(u));
      const double compute = waves * 2.0 * tile.rows * tile.columns * (k / parts + rates.depth) *
                             rates.multiprocessors / (reached * rates.peak.count());
      const double summed = parts > 1.0 ? 4.0 * output_element(rates) * kernels.split * parts * m * n *
                                              count / rates.memory_peak.count()
                                        : 0.0;
      best = std::min(best, norm4(compute, read + summed));
    }
  }
  return kernels.start + Seconds(best);
}

Seconds attention_time(const FusedAttention& attention, bool forward, double samples,
                       const KernelRates& rates) {
  if (attention.documents > 1.0) {  // blocks are skipped, so that a mask never costs
    FusedAttention one = attention;
    one.keys /= std::exchange(one.documents, 1.0);
    FusedAttention all = attention;
    all.documents = 1.0;
    return std::min(
        std::max(attention_time(one, forward, samples, rates),
                 rates.parameters->start +
                     Seconds(attention_traffic(attention, forward, samples, rates) / rates.memory.count())),
        attention_time(all, forward, samples, rates));
  }
  using Rates = AttentionParameters;
  constexpr double kHalfBlock = 64.0;
  const double size = (attention.head_size + attention.value_size) / 2.0;
  const AttentionRate fitted =
      attention_rate(*rates.attention_table, size,
                     forward ? (attention.causal ? &Rates::causal : &Rates::full)
                             : (attention.causal ? &Rates::backward_causal : &Rates::backward_full));
  const bool windowed = attention.window > 0.0 && attention.window < attention.keys;
  const double keys =
      windowed ? std::min(2.0 * (attention.window + kHalfBlock), attention.keys) : attention.keys;
  FusedAttention whole = attention;
  whole.window = 0.0;
  const double seen = windowed ? std::min(attention.seen() + kHalfBlock, whole.seen()) : attention.seen();
  const double flop = 4.0 * (forward ? 1.0 : 2.5) * samples * attention.heads * attention.rows * seen * size;
  const double rate = rates.attention * fitted.part * rates.peak.count() / (1.0 + fitted.half / keys);
  const double outputs =
      2.0 * rates.element * samples * attention.heads * attention.rows * attention.value_size;
  const double sinks = forward || !attention.sinks ? 0.0 : outputs / (kSinksPart * rates.memory_peak.count());
  return rates.parameters->start +
         Seconds(sinks + std::max(flop / rate, attention_traffic(attention, forward, samples, rates) /
                                                   rates.memory.count()));
}

Seconds KernelTimes::of_product(const KernelShape& shape) {
  return cached(products_, shape, [&] {
    KernelRates rates = shape.low ? low_ : rates_;
    rates.reached *= shape.aligned;
    if (shape.grouped) rates.reached *= shape.low ? rates.parameters->grouped_low : rates.parameters->grouped;
    if (shape.gradient && options_.gradient > 0.0) rates.output = options_.gradient;
    return product_time(shape.m, shape.n, shape.k, shape.count, rates);
  });
}

std::pair<KernelShape, double> KernelTimes::kernel(const Gemm& gemm, GemmPass pass, double samples) const {
  const bool joined = options_.joins_experts && gemm.expert && gemm.times > 1.0;
  const double m = gemm.heads > 0.0 ? gemm.rows : gemm.rows * samples;
  const bool low = gemm.low && !(options_.exact_gradients && pass == GemmPass::kWeights);
  KernelShape shape{m,   gemm.columns, gemm.depth, joined ? gemm.times : 1.0,
                    1.0, low,          false,      gemm.expert && gemm.times > 1.0};
  if (gemm.heads > 0.0) shape.count = gemm.heads * samples;
  if (!low) shape.aligned = alignment_part(gemm.columns, gemm.depth, rates_);
  if (pass == GemmPass::kInput) std::swap(shape.n, shape.k);
  if (pass == GemmPass::kWeights) {
    std::swap(shape.m, shape.k);
    shape.gradient = gemm.has_weight();
  }
  return {shape, joined ? 1.0 : gemm.times};
}

Seconds KernelTimes::of_gemms(const LayerWork& work, GemmPass pass, double samples) {
  Seconds time(0);
  if (work.gradients < (pass == GemmPass::kForward ? 0.0 : pass == GemmPass::kWeights ? 1.0 : 2.0))
    return time;
  work.for_each_gemm([&](const Gemm& one) {
    if (!(pass == GemmPass::kWeights ? one.trains_weight() : one.has_weight())) return;
    const auto [shape, times] = kernel(one, pass, samples);
    time += times * of_product(shape);
  });
  return time;
}

BytesPerSecond KernelTimes::rate(const Kernel& kernel, bool forward, double samples) const {
  if (kernel.is(KernelRole::kBatchFirst) && samples <= 1.0) return BytesPerSecond(HUGE_VAL);
  if (kernel.moved == Moved::kQuantized) return options_.casts;
  if (kernel.moved == Moved::kTransposed) return kTransposedPart * rates_.memory;
  if (kernel.moved == Moved::kStrided) return kStridedPart * rates_.memory;
  if (kernel.is(KernelRole::kScan)) return rates_.parameters->scans * rates_.memory;
  const bool slow = kernel.is(KernelRole::kNorm) && !forward && !options_.engine;
  return (slow ? kNormBackwardPart : 1.0) * rates_.memory;
}

Seconds KernelTimes::of(const LayerWork& work, bool forward, double samples) {
  const Bytes weights = forward ? work.forward_weights : work.backward_weights;
  if (!forward && work.gradients == 0.0) return weights / rates_.memory;
  Seconds time(0);
  double kernels = work.launches(forward);
  double bytes = samples * work.traffic(forward).count() + weights.count();
  for (const Kernel& one : work.kernels) {
    if (const BytesPerSecond own = rate(one, forward, samples); own != rates_.memory) {
      const Bytes moved = samples * (forward ? one.forward : one.backward);
      bytes -= moved.count();
      time += moved / own;
    }
    if (const FusedAttention* fused = one.attention()) {
      time += attention_time(*fused, forward, samples, rates_);
      bytes -= attention_traffic(*fused, forward, samples, rates_);
      kernels -= 1.0;
    } else if (const Gemm* gemm = one.gemm()) {
      for (const GemmPass pass : {GemmPass::kForward, GemmPass::kWeights, GemmPass::kInput}) {
        if (forward != (pass == GemmPass::kForward) || (pass == GemmPass::kWeights && gemm->frozen)) continue;
        if (pass == GemmPass::kInput && work.gradients < 2.0 && gemm->has_weight()) continue;
        const auto [shape, times] = kernel(*gemm, pass, samples);
        time += times * of_product(shape);
        bytes -= times * traffic(shape.m, shape.n, shape.k, shape.count, rates_);
        kernels -= times;
      }
    }
  }
  return time + std::max(0.0, kernels) * rates_.parameters->start +
         Bytes(std::max(0.0, bytes)) / rates_.memory;
}

}  // namespace stepcast

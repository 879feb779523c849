#include "sim/study/amdahl.hpp"

#include <algorithm>

namespace stepcast {
namespace {

/// With t(1) given: t(n)/measured - 1 = f u - w, with u = t(1) (1 - 1/n)/measured and w = 1 - t(1)/(n
/// measured).
AmdahlFit anchored(const std::vector<RanksAndTime>& points, double one_rank_s) {
  double uu = 0.0, uw = 0.0;
  for (const RanksAndTime& one : points) {
    const double u = one_rank_s * (1.0 - 1.0 / one.ranks) / one.sample_time_s;
    uu += u * u;
    uw += u * (1.0 - one_rank_s / (one.ranks * one.sample_time_s));
  }
  const double fraction = std::clamp(uw / uu, 0.0, 1.0);
  return {fraction * one_rank_s, (1.0 - fraction) * one_rank_s};
}

}  // namespace

std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points) {
  if (std::ranges::all_of(points, [&](const RanksAndTime& one) { return one.ranks == points.front().ranks; }))
    return std::nullopt;
  const auto one_rank = std::ranges::find(points, 1.0, &RanksAndTime::ranks);
  if (one_rank != points.end()) return anchored(points, one_rank->sample_time_s);
  // Normal equations of serial * u + parallel * v = 1 with u = 1/t and v = 1/(n t).
  double uu = 0.0, uv = 0.0, vv = 0.0, u1 = 0.0, v1 = 0.0;
  for (const RanksAndTime& one : points) {
    const double u = 1.0 / one.sample_time_s, v = u / one.ranks;
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u1 += u;
    v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  AmdahlFit fit{(u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant};
  if (fit.serial_s < 0.0) fit = {0.0, v1 / vv};
  if (fit.parallel_s < 0.0) fit = {u1 / uu, 0.0};
  return fit;
}

}  // namespace stepcast

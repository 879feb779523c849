#include "sim/study/amdahl.hpp"

#include <algorithm>

#include "calibration/fit.hpp"

namespace stepcast {

std::optional<AmdahlFit> fit_amdahl(const std::vector<RanksAndTime>& points) {
  if (std::ranges::all_of(points, [&](const RanksAndTime& one) { return one.ranks == points.front().ranks; }))
    return std::nullopt;
  const auto first = std::ranges::find(points, 1.0, &RanksAndTime::ranks);
  const double one_rank_s = first != points.end() ? first->sample_time_s : 0.0;  // 0 s: unknown
  std::vector<std::vector<double>> rows;
  std::vector<double> targets;
  for (const auto& [ranks, time_s] : points) {
    if (one_rank_s > 0.0) {  // serial fraction f: t(n) = t(1) f (1 - 1/n) + t(1)/n
      rows.push_back({one_rank_s * (1.0 - 1.0 / ranks) / time_s});
      targets.push_back(1.0 - one_rank_s / (ranks * time_s));
    } else {
      rows.push_back({1.0 / time_s, 1.0 / (ranks * time_s)});
      targets.push_back(1.0);
    }
  }
  const std::vector<double> fitted = fit_non_negative(rows, targets);
  if (one_rank_s <= 0.0) return AmdahlFit{fitted[0], fitted[1]};
  const double fraction = std::min(fitted[0], 1.0);
  return AmdahlFit{fraction * one_rank_s, (1.0 - fraction) * one_rank_s};
}

}  // namespace stepcast

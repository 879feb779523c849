#include "sim/replay/trivial_predictors.hpp"

#include <algorithm>
#include <map>
#include <variant>

#include "calibration/fit.hpp"
#include "core/ranges.hpp"
#include "sim/collectives/algorithm.hpp"
#include "sim/replay/costs.hpp"
#include "topologies/paths.hpp"

namespace stepcast {

AlphaBeta fit_alpha_beta(const PiecewiseCost& cost) {
  // Least squares of (alpha + beta n - t) / t: rows (1/t, n/t) against 1.
  std::vector<std::vector<double>> rows;
  for (const auto& knot : cost.knots)
    if (knot.time_s > 0.0) rows.push_back({1.0 / knot.time_s, knot.bytes / knot.time_s});
  if (rows.empty()) return {};
  const std::vector<double> line = fit_non_negative(rows, std::vector<double>(rows.size(), 1.0));
  return {line[0], line[1]};
}

AlphaBeta message_line(const Calibration* calibration, Routes& routes) {
  const Cluster& cluster = routes.cluster();
  AlphaBeta line;
  if (calibration != nullptr && !calibration->paths.empty())
    line = fit_alpha_beta(calibration->paths.front().latency);
  if (cluster.links.empty()) return line;
  const std::vector<int> places = cluster.places();
  if (cluster.has_devices() && places.size() > 1) {
    const Path& path = routes.between(places.front(), places.back());
    line.alpha_s += latency(cluster, path).count();
    line.beta_s_per_byte += 1.0 / bandwidth(cluster, path).count();
    return line;
  }
  const auto slowest = std::ranges::min_element(cluster.links, {}, &Link::bandwidth);
  line.alpha_s += 2.0 * slowest->latency.count();
  line.beta_s_per_byte += 1.0 / slowest->bandwidth.count();
  return line;
}

namespace {

/// Time of one collective that runs alone, as rank 0 calls it: the closed form of the ideal algorithm of its
/// kind. Left out: reduction arithmetic, CPU time and contention.
Seconds alpha_beta_time(const Schedule& schedule, const Collective& collective, const AlphaBeta& line) {
  const Group& group = schedule.groups[schedule.group_index(collective.group, 0)];
  const CollectiveCall call{collective.message, static_cast<int>(group.ranks.size()), collective.root};
  if (call.ranks == 1) return Seconds(0);
  const LinkCost link{Seconds(line.alpha_s), BytesPerSecond(1.0 / line.beta_s_per_byte)};
  return algorithm_for(collective.kind, "").time(call, link);
}

}  // namespace

Seconds alpha_beta_step_time(const Schedule& schedule, const AlphaBeta& line, Seconds single) {
  Seconds total = single;
  for (const Op& op : schedule.program(0).ops) {
    if (const auto* send = std::get_if<Send>(&op.action)) total += line.time(send->message);
    if (const auto* collective = std::get_if<Collective>(&op.action))
      total += alpha_beta_time(schedule, *collective, line);
  }
  return total;
}

std::optional<Seconds> overlap_step_time(const ReplayInput& input, const AlphaBeta& line) {
  const Schedule& schedule = *input.schedule;
  const Program& program = schedule.program(0);
  const auto is_exchange = [](const Op& op) {
    return operation_of(op).time == TimeSource::kTransfer && !std::holds_alternative<Collective>(op.action);
  };
  if (!communicates(schedule) || std::ranges::any_of(program.ops, is_exchange)) return std::nullopt;
  const auto speed = [&](int node) { return input.cluster->host_of(node).speed; };
  const auto slowest = std::ranges::min_element(input.node_of_rank, {}, speed);
  const auto rank = static_cast<int>(slowest - input.node_of_rank.begin());
  constexpr double kMedian = -1.0;
  const Costs costs(input);
  const std::vector<char> follows = followers(program);
  std::map<Stream, double> free;
  std::vector<double> start(program.ops.size()), work(program.ops.size()), end(program.ops.size());
  double last = 0.0;
  for (const auto [i, op] : enumerated(program.ops)) {
    const auto* collective = std::get_if<Collective>(&op.action);
    work[i] = collective == nullptr ? costs.job(op, rank, kMedian, follows[i] != 0).seconds
                                    : alpha_beta_time(schedule, *collective, line).count();
    for (const int before : op.after)
      if (before != op.within) start[i] = std::max(start[i], end[before]);
    if (op.within >= 0) {  // suspends its parent, which was suspended for end - start - work so far
      const double paused = end[op.within] - start[op.within] - work[op.within];
      const double ready = start[op.within] + paused + costs.phases().hook_fraction(op) * work[op.within];
      start[i] = std::max(start[i], ready);
      end[i] = start[i] + work[i];
      if (is_shift(op)) continue;
      free[op.stream] = end[op.within] += end[i] - ready;
    } else {
      start[i] = std::max(start[i], free[op.stream]);
      free[op.stream] = end[i] = start[i] + work[i];
    }
    last = std::max(last, free[op.stream]);
  }
  return Seconds(last + costs.rest_of_step(rank, kMedian).seconds);
}

}  // namespace stepcast

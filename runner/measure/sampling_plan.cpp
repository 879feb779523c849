#include "runner/measure/sampling_plan.hpp"

#include <algorithm>
#include <numeric>

namespace stepcast {

std::vector<int> rounds_within(const std::vector<double>& cost_s, int rounds, int least, double left_s) {
  std::vector<int> result(cost_s.size(), rounds);
  double sum_s = rounds * std::accumulate(cost_s.begin(), cost_s.end(), 0.0);
  while (sum_s > left_s) {
    std::size_t longest = cost_s.size();
    for (std::size_t i = 0; i < cost_s.size(); ++i)
      if (result[i] > least &&
          (longest == cost_s.size() || result[i] * cost_s[i] > result[longest] * cost_s[longest]))
        longest = i;
    if (longest == cost_s.size()) break;
    --result[longest];
    sum_s -= cost_s[longest];
  }
  return result;
}

std::vector<std::size_t> items_to_repeat(const std::vector<std::size_t>& lacking,
                                         const std::vector<double>& cost_s,
                                         const std::vector<double>& spent_s, double turn_s, double left_s) {
  std::vector<std::size_t> order = lacking;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return spent_s[a] < spent_s[b]; });
  std::vector<std::size_t> turn;
  double sum_s = 0.0;
  for (const std::size_t item : order) {
    sum_s += cost_s[item];
    if (sum_s > left_s || (!turn.empty() && sum_s > turn_s)) break;
    turn.push_back(item);
  }
  return turn;
}

}  // namespace stepcast

#include "sim/kineto/micro_batches.hpp"

#include <algorithm>
#include <utility>

namespace stepcast {

void split_forwards(ProfiledStep& step) {
  std::vector<std::pair<double, int>> begun;
  for (int i = 0; i < static_cast<int>(step.operations.size()); ++i)
    if (step.operations[i].node_begin < 1e300) begun.emplace_back(step.operations[i].node_begin, i);
  std::ranges::sort(begun);
  std::vector<int> lasts;
  for (const auto& [time, operation] : begun)
    if (lasts.empty() || operation > lasts.back()) lasts.push_back(operation);
  if (std::ssize(lasts) <= step.micro_batches) return;
  std::vector<std::size_t> gradients(lasts.size());
  std::vector<int> numbers;
  for (const ProfiledOperation& each : step.operations) {
    const auto last = std::ranges::lower_bound(lasts, static_cast<int>(numbers.size()));
    numbers.push_back(static_cast<int>(std::min(last, lasts.end() - 1) - lasts.begin()));
    gradients[numbers.back()] += each.gradients.size();
  }
  if (gradients[0] == 0 || std::ranges::count(gradients, gradients[0]) != std::ssize(lasts)) return;
  for (std::size_t i = 0; i < numbers.size(); ++i) step.operations[i].micro_batch = numbers[i];
  step.micro_batches = static_cast<int>(lasts.size());
}

void drop_input_gradients(const KinetoFile& file, int batch, ProfiledStep& step) {
  if (step.operations.empty()) return;
  const double begin = file.events[step.operations.front().event].begin;
  const bool receives = std::ranges::any_of(
      step.collectives, [&](const auto& call) { return call.kind == "recv" && call.called < begin; });
  int micro_batch = -1;
  for (ProfiledOperation& each : step.operations) {
    if (std::exchange(micro_batch, each.micro_batch) == each.micro_batch) continue;
    const auto dims = dims_of(file, file.events[each.event]);
    const auto input = std::ranges::find_if_not(dims, [](const auto& extents) { return extents.empty(); });
    if (input == dims.end() || (!receives && input->front() != batch)) continue;
    const double size = elements_of(*input);
    const auto found = std::ranges::find(each.gradients, size, &ReadyGradient::elements);
    if (found == each.gradients.end() ||
        std::ranges::count(dims, size, elements_of) >
            std::ranges::count(each.gradients, size, &ReadyGradient::elements))
      continue;
    each.gradients.erase(found);
    --step.gradients;
  }
}

}  // namespace stepcast

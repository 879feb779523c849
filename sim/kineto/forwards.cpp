#include "sim/kineto/forwards.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/ranges.hpp"

namespace stepcast {

void join_forwards(const KinetoFile& file, ProfiledStep& step) {
  std::vector<int> firsts = whole_numbers(0, step.micro_batches);  // that each is joined to
  for (const ProfiledOperation& each : filtered(step.operations, &ProfiledOperation::reruns))
    for (const ProfiledOperation& later : step.operations)
      if (file.events[later.event].begin < each.rerun_begin)
        firsts[later.micro_batch] = std::min(firsts[later.micro_batch], firsts[each.micro_batch]);
  const std::set<int> left(firsts.begin(), firsts.end());
  for (ProfiledOperation& each : step.operations)
    each.micro_batch = static_cast<int>(std::distance(left.begin(), left.find(firsts[each.micro_batch])));
  step.micro_batches = static_cast<int>(left.size());
}

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

UpdateOperations update_operations(const KinetoFile& file) {
  UpdateOperations result;
  std::set<int> seen;
  const KinetoEvent* update = nullptr;
  for (const KinetoEvent& event : file.events) {
    if (file.name(event).starts_with("Optimizer.step#")) update = &event;
    if (update == nullptr || event.track != update->track || event.begin >= update->end) continue;
    result.names.insert(file.name(event));
    if (event.category == KinetoCategory::kOperation && seen.insert(event.arguments).second)
      for (auto& extents : dims_of(file, event)) result.shapes.insert(std::move(extents));
  }
  return result;
}

void drop_input_gradients(const KinetoFile& file, int batch, const Shapes& updated, ProfiledStep& step) {
  if (step.operations.empty()) return;
  const double begin = file.events[step.operations.front().event].begin;
  const bool receives = std::ranges::any_of(
      step.collectives, [&](const auto& call) { return call.kind == "recv" && call.called < begin; });
  Shapes inputs;
  int micro_batch = -1;
  for (ProfiledOperation& each : step.operations) {
    const bool is_first = std::exchange(micro_batch, each.micro_batch) != each.micro_batch;
    const auto dims = dims_of(file, file.events[each.event]);
    const auto input = std::ranges::find_if_not(dims, &std::vector<std::int64_t>::empty);
    if (input == dims.end() || (!receives && input->front() != batch)) continue;
    inputs.insert(*input);
    const double size = elements_of(*input);
    const auto alike = std::ranges::count(dims, size, elements_of);
    if (!is_first || (alike == 1 && updated.contains(*input))) continue;
    const auto found = std::ranges::find(each.gradients, size, &ReadyGradient::elements);
    if (found != each.gradients.end() &&
        alike <= std::ranges::count(each.gradients, size, &ReadyGradient::elements))
      each.gradients.erase(found), --step.gradients;
  }
  if (updated.empty()) return;
  for (ProfiledOperation& each : step.operations)
    step.gradients -= std::erase_if(each.gradients, [&](const ReadyGradient& ready) {
      return inputs.contains(ready.extents) && !updated.contains(ready.extents);
    });
}

void choose_forwards(ProfiledStep& step) {
  std::map<int, std::pair<double, std::vector<double>>> sizes;  // by micro-batch: elements, of each gradient
  for (const ProfiledOperation& each : step.operations)
    for (auto& [sum, own] = sizes[each.micro_batch]; const ReadyGradient& ready : each.gradients) {
      sum += ready.elements;
      own.push_back(ready.elements);
    }
  for (auto& [micro_batch, own] : sizes) std::ranges::sort(own.second);
  if (sizes.empty()) return;
  const auto most = std::ranges::max_element(sizes, {}, [](const auto& each) {
                      return std::pair(each.second.first, each.second.second.size());
                    })->second;
  std::map<int, int> numbers;
  for (const auto& [micro_batch, own] : sizes)
    if (own == most) numbers.emplace(micro_batch, static_cast<int>(numbers.size()));
  for (ProfiledOperation& each : step.operations) each.micro_batch = value_or(numbers, each.micro_batch, -1);
  step.micro_batches = static_cast<int>(numbers.size());
}

}  // namespace stepcast

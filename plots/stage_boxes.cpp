#include "plots/stage_boxes.hpp"

#include <algorithm>
#include <map>

#include "core/ranges.hpp"

namespace stepcast {
namespace {

/// 0 for computation without a number: there is one micro-batch.
int micro_batch_of(const Span& span, StageWork work) {
  return work > StageWork::kRecompute ? -1 : std::max(0, split_micro_batch(span.name).second);
}

/// Segments of one action follow each other at once. Between two actions on one micro-batch (two virtual
/// stages) it passes all other ranks, which takes longer than either action. Communication continues if it
/// overlaps.
bool continues(const StageBox& box, const StageBox& next) {
  if (next.work == StageWork::kCommunication) return next.start_s <= box.end_s;
  const double gap = next.start_s - box.end_s;
  return box.work == next.work && box.micro_batch == next.micro_batch &&
         gap < std::max(box.end_s - box.start_s, next.end_s - next.start_s);
}

/// Computation or communication of one rank. \param spans sorted by their start
std::vector<StageBox> boxes_of(const std::vector<const Span*>& spans, bool communication) {
  std::vector<StageBox> boxes;
  for (const Span* span : spans) {
    const StageWork work = work_of(*span);
    if ((work == StageWork::kCommunication) != communication) continue;
    StageBox next{span->rank, work, micro_batch_of(*span, work), span->start_s, span->end_s};
    if (!communication && !boxes.empty()) next.start_s = std::max(next.start_s, boxes.back().end_s);
    if (next.end_s <= next.start_s) continue;
    if (!boxes.empty() && continues(boxes.back(), next))
      boxes.back().end_s = std::max(boxes.back().end_s, next.end_s);
    else
      boxes.push_back(next);
  }
  return boxes;
}

}  // namespace

StageWork work_of(const Span& span) {
  static const std::map<SpanKind, StageWork> kOthers{{SpanKind::kCommunication, StageWork::kCommunication},
                                                     {SpanKind::kInputAndHost, StageWork::kInput},
                                                     {SpanKind::kOptimizerAndCopies, StageWork::kUpdate},
                                                     {SpanKind::kWait, StageWork::kWait}};
  if (const auto other = optional_at(kOthers, span.kind)) return *other;
  if (span.name.starts_with("backward_weight")) return StageWork::kBackwardWeights;
  if (span.name.starts_with("backward")) return StageWork::kBackward;
  return span.name.starts_with("recompute") ? StageWork::kRecompute : StageWork::kForward;
}

bool passes_micro_batches(const Result& result) {
  const bool pipeline = result.configuration.strategy == "pipeline";
  return std::ranges::any_of(result.spans, [&](const Span& span) {
    return split_micro_batch(span.name).second >= 0 && (pipeline || span.name.starts_with("send/"));
  });
}

std::vector<StageBox> stage_boxes(const Result& result) {
  std::map<int, std::vector<const Span*>> ranks;
  for (const Span& span : result.spans)
    if (span.kind != SpanKind::kWait) ranks[span.rank].push_back(&span);
  std::vector<StageBox> all;
  for (auto& [rank, spans] : ranks) {
    std::ranges::stable_sort(spans, {}, [](const Span* one) { return std::pair(one->start_s, -one->end_s); });
    for (const auto& boxes : {boxes_of(spans, false), boxes_of(spans, true)})
      all.insert(all.end(), boxes.begin(), boxes.end());
  }
  return all;
}

}  // namespace stepcast

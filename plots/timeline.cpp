#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "core/enum_table.hpp"
#include "core/error.hpp"
#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/stage_boxes.hpp"

/// One step as a Gantt chart: a lane per rank and stream. Pipelines have a lane per rank, with a box per
/// action and micro-batch. Predicted and measured steps share one time axis.
namespace stepcast::timeline_figure {
namespace {

constexpr int kMaxRanks = 8, kMaxStages = 16;
constexpr std::size_t kMaxResults = 6;
constexpr int kWidth = 1200, kLeft = 130, kRight = 20;
constexpr int kLaneHeight = 34, kPanelTitle = 30, kTimeAxis = 60;
constexpr double kCharacterWidth = 5.6;  // points, of the labels' font
constexpr std::size_t kShortestLabel = 4;
constexpr double kHalfBox = 0.42, kInnerTop = 0.05;        // of a lane's height, downwards
constexpr double kWorkBottom = 0.22, kMessagesTop = 0.28;  // of a stage
constexpr double kLabelMargin = 3.0;                       // points beside a number in its box
constexpr std::size_t kStepTitleCharacters = 145;

struct WorkKind {
  StageWork value;
  const char* label;
  std::string_view colour;
};
constexpr std::array kKinds{WorkKind{StageWork::kForward, "forward and loss", style::kCyan},
                            WorkKind{StageWork::kBackward, "backward", style::kBlue},
                            WorkKind{StageWork::kBackwardWeights, "gradients of weights", style::kGrey},
                            WorkKind{StageWork::kRecompute, "recompute", style::kPurple},
                            WorkKind{StageWork::kCommunication, "communication", style::kRed},
                            WorkKind{StageWork::kUpdate, "optimizer and copies", style::kGreen},
                            WorkKind{StageWork::kInput, "input and host", style::kYellow},
                            WorkKind{StageWork::kWait, "waiting", "#EEEEEE"}};
static_assert(is_in_order(kKinds));

/// A span that begins during another of its lane is drawn lower: a copy inside a backward, a second
/// collective in flight.
struct SpanBox {
  const Span* span;
  std::size_t lane;  // from the top: rank by rank, stream by stream
  double low;        // of the lane's height
};

std::vector<SpanBox> boxes_of(const Result& result) {
  std::vector<const Span*> spans;
  for (const Span& span : result.spans)
    if (span.rank < kMaxRanks) spans.push_back(&span);
  std::ranges::stable_sort(spans, {}, [](const Span* one) {
    return std::tuple(one->rank, one->stream, one->start_s, -one->end_s);
  });
  std::vector<SpanBox> boxes;
  std::map<std::pair<int, Stream>, double> busy_until;  // by lane
  for (const Span* span : spans) {
    const auto [busy, is_first] = busy_until.try_emplace({span->rank, span->stream}, span->end_s);
    boxes.push_back(
        {span, busy_until.size() - 1, !is_first && span->start_s < busy->second ? kInnerTop : -kHalfBox});
    busy->second = std::max(busy->second, span->end_s);
  }
  return boxes;
}

std::string label_of(const Span& span, double points) {
  const auto room = static_cast<std::size_t>(std::max(0.0, points / kCharacterWidth - 1.0));
  std::string name = span.name;
  if (name.size() > room) name = name.substr(name.find('/') + 1);
  if (name.size() > room) name = name.substr(0, room);
  return name.size() < std::min(kShortestLabel, span.name.size()) ? "" : name;
}

/// Points that `length_s` of the axis takes.
double points_of(double time_s, double length_s) { return time_s / length_s * (kWidth - kLeft - kRight); }

/// A box in a row; `low` and `high` are fractions of the row's height.
style::Box box_in(double row, double start_s, double end_s, double low, double high,
                  const std::string& more) {
  return {kMilli * start_s, kMilli * end_s, row + low, row + high, more};
}

/// A text in the middle of its box.
style::Text text_in(double row, double start_s, double end_s, const std::string& text,
                    const std::string& more = "") {
  return {0.5 * kMilli * (start_s + end_s), row, text, more};
}

/// Rows from the top, and the panel's height for them.
void set_rows(style::Panel& panel, const std::vector<std::string>& rows) {
  std::vector<style::Tic> tics;
  for (const std::string& row : rows) tics.push_back({static_cast<double>(tics.size()), row});
  panel.axes = style::fill("set ytics {}\nset yrange [{}:-0.6]\nset title offset 0,-0.6 font ',10'\n",
                           {style::tics(tics), static_cast<double>(rows.size()) - 0.4});
  panel.height = kPanelTitle + kLaneHeight * static_cast<int>(rows.size());
}

style::Panel panel_of_streams(const Result& result, double length_s) {
  std::map<StageWork, std::vector<style::Box>> boxes;
  std::vector<style::Text> labels;
  std::vector<std::string> rows;
  for (const SpanBox& box : boxes_of(result)) {
    const Span& span = *box.span;
    const auto row = static_cast<double>(box.lane);
    if (box.lane == rows.size()) rows.push_back(fmt::format("rank {} {}", span.rank, to_text(span.stream)));
    boxes[work_of(span)].push_back(
        box_in(row, span.start_s, span.end_s, box.low, kHalfBox, style::cell(span.name)));
    const std::string label = label_of(span, points_of(span.end_s - span.start_s, length_s));
    if (!label.empty() && box.low < 0.0) labels.push_back(text_in(row, span.start_s, span.end_s, label));
  }
  style::Panel panel;
  set_rows(panel, rows);
  for (const WorkKind& kind : kKinds)
    style::draw_boxes(panel, kind.label, boxes[kind.value],
                      style::fill("fs solid 1.0 border lc rgb '#ffffff' fc rgb {q}", {kind.colour}));
  style::draw_texts(panel, labels, "font ',8' textcolor rgb '#111111'");
  return panel;
}

using style::Rgb, style::rgb;
constexpr Rgb kWhite{255.0, 255.0, 255.0}, kBlack{0.0, 0.0, 0.0};

/// The first micro-batch is the lightest. Shades of forwards are lighter than the colour, those of backwards
/// darker, so that they differ.
Rgb shade(const StageBox& box, int micro_batches) {
  const Rgb base = rgb(row_of(kKinds, box.work).colour);
  if (box.micro_batch < 0) return base;
  const double late = micro_batches < 2 ? 0.5 : box.micro_batch / (micro_batches - 1.0);
  if (box.work == StageWork::kBackward || box.work == StageWork::kBackwardWeights)
    return base.mixed(kBlack, 0.5 * late);
  return base.mixed(kWhite, 0.6 * (1.0 - late));
}

style::Panel panel_of_stages(const Result& result, double length_s) {
  const std::vector<StageBox> boxes = stage_boxes(result);
  const int micro_batches = 1 + largest_of(boxes, &StageBox::micro_batch);
  std::map<int, double> rows;
  std::vector<std::string> names;
  std::vector<style::Box> drawn;
  std::vector<style::Text> labels;
  for (const StageBox& box : boxes) {
    if (box.rank >= kMaxStages) continue;
    const auto [row, is_new] = rows.emplace(box.rank, static_cast<double>(rows.size()));
    if (is_new) names.push_back("rank " + std::to_string(box.rank));
    const bool thin = box.work == StageWork::kCommunication;
    const Rgb colour = shade(box, micro_batches);
    drawn.push_back(box_in(row->second, box.start_s, box.end_s, thin ? kMessagesTop : -kHalfBox,
                           thin ? kHalfBox : kWorkBottom, std::to_string(colour.number())));
    const std::string text = std::to_string(box.micro_batch);
    const double room = points_of(box.end_s - box.start_s, length_s);
    if (box.micro_batch < 0 || room < kCharacterWidth * static_cast<double>(text.size()) + kLabelMargin)
      continue;
    labels.push_back(text_in(row->second + 0.5 * (kWorkBottom - kHalfBox), box.start_s, box.end_s, text,
                             std::to_string((colour.dark() ? kWhite : kBlack).number())));
  }
  style::Panel panel;
  set_rows(panel, names);
  style::draw_boxes(panel, "actions", drawn, "fs solid 1.0 border lc rgb '#ffffff' fc rgb variable");
  style::draw_texts(panel, labels, "font ',8' textcolor rgb variable");
  return panel;
}

/// The kinds in the panels. Pipelines show no waiting.
std::vector<style::Entry> legend_of(const std::vector<const Result*>& results) {
  bool streams = false;
  std::set<StageWork> seen;
  for (const Result* result : results) {
    streams = streams || !passes_micro_batches(*result);
    for (const Span& span : result->spans) seen.insert(work_of(span));
  }
  std::vector<style::Entry> entries;
  for (const auto& [work, label, colour] : kKinds) {
    const bool rare = work == StageWork::kRecompute || work == StageWork::kBackwardWeights;
    if (rare ? seen.contains(work) : streams || work != StageWork::kWait)
      entries.push_back({style::fill("with boxes fc rgb {q}", {colour}), label});
  }
  return entries;
}

std::string title_of(const Result& result) {
  const int shown = passes_micro_batches(result) ? kMaxStages : kMaxRanks;
  const std::string text =
      (result.origin == Origin::kMeasured ? "measured: " : "predicted: ") + describe(result.configuration) +
      (shown < result.configuration.world_size ? style::fill(" (the first {} ranks)", {shown}) : "");
  return shortened(text, kStepTitleCharacters);
}

/// The time axis. Late stages of a pipeline begin their step long before rank 0 and then wait for messages;
/// that is left out.
std::pair<double, double> range_of(const std::vector<const Result*>& results) {
  double start_s = 0.0, end_s = 0.0;
  for (const Result* result : results) {
    const bool stages = passes_micro_batches(*result);
    for (const Span& span : result->spans) {
      if (stages && (span.end_s <= 0.0 || span.kind == SpanKind::kWait)) continue;
      start_s = std::min(start_s, span.start_s);
      end_s = std::max(end_s, span.end_s);
    }
  }
  return {start_s, end_s};
}

Drawing draw(const FigureInput& input) {
  std::vector<const Result*> results;
  for (const ResultFile& file : input.results)
    if (!file.result.spans.empty()) results.push_back(&file.result);
  if (results.empty())
    throw InputError("nothing to draw: give a result file that contains the spans of a step");
  const bool any_stages =
      std::ranges::any_of(results, [](const Result* result) { return passes_micro_batches(*result); });
  std::string title =
      any_stages ? "One training step; numbers and shades are micro-batches" : "One training step";
  if (results.size() > kMaxResults) {
    title += style::fill(" (the first {} of {} files)", {kMaxResults, results.size()});
    results.resize(kMaxResults);
  }
  const auto [start_s, end_s] = range_of(results);
  style::Sheet sheet{.title = title,
                     .legend = legend_of(results),
                     .setup = style::fill("unset grid\nset grid xtics lc rgb '#dddddd' lt 1\nset border 1\n"
                                          "set xrange [{}:{}]\nset format x ''\n",
                                          {kMilli * start_s, kMilli * end_s}),
                     .columns = 1,
                     .width = kWidth,
                     .left = kLeft,
                     .right = kRight,
                     .top = kPanelTitle,
                     .bottom = 0,
                     .foot = kTimeAxis};
  for (const Result* result : results) {
    const auto panel_of = passes_micro_batches(*result) ? panel_of_stages : panel_of_streams;
    sheet.panels.push_back(panel_of(*result, end_s - start_s));
    sheet.panels.back().title = title_of(*result);
  }
  sheet.panels.back().axes += "set format x '%g'\nset xlabel 'time since rank 0 began the step (ms)'\n";
  return sheet.drawing();
}

const Registration<Figure> kTimeline{figures(), "timeline", draw, 14};

}  // namespace
}  // namespace stepcast::timeline_figure

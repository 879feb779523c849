#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/stage_boxes.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// One step as a Gantt chart: a lane per rank and stream, or of a pipeline a lane per rank with a box per
/// action and micro-batch; predicted and measured above each other on one time axis.
namespace stepcast {
namespace {

constexpr int kMostRanks = 8, kMostStages = 16;
constexpr std::size_t kMostResults = 6;
constexpr int kWidth = 1200, kLeft = 130, kRight = 20;
constexpr int kLaneHeight = 34, kPanelTitle = 30, kFoot = 60;
constexpr double kCharacterWidth = 5.6;  // points, of the labels' font
constexpr std::size_t kShortestLabel = 4;
constexpr double kHalfBox = 0.42, kInnerTop = 0.05;        // of a lane's height, downwards
constexpr double kWorkBottom = 0.22, kMessagesTop = 0.28;  // of a stage
constexpr double kLabelMargin = 3.0;                       // points beside a number in its box
constexpr std::size_t kTitleCharacters = 145;

struct Kind {
  const char* label;
  std::string_view colour;
};
/// In the order of StageWork.
constexpr std::array<Kind, 7> kKinds = {{{"forward and loss", style::kCyan},
                                         {"backward", style::kBlue},
                                         {"recompute", style::kPurple},
                                         {"communication", style::kRed},
                                         {"optimizer and copies", style::kGreen},
                                         {"input and host", style::kYellow},
                                         {"waiting", "#EEEEEE"}}};
constexpr std::size_t kRecompute = 2, kWaiting = 6;

std::size_t kind_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::kCompute:
      if (span.name.starts_with("recompute")) return kRecompute;
      return span.name.starts_with("backward") ? 1 : 0;
    case SpanKind::kCommunication:
      return 3;
    case SpanKind::kOptimizerAndCopies:
      return 4;
    case SpanKind::kInputAndHost:
      return 5;
    case SpanKind::kWait:
      return kWaiting;
  }
  return kWaiting;
}

/// One of the charts above each other.
struct Panel {
  const Result* result;
  std::vector<std::string> rows;  ///< their labels, from the top
  std::string data;
  std::size_t blocks;  ///< of `data`
  std::string (*plot)(std::size_t first_block);
};

using Lane = std::pair<int, Stream>;

/// Rows from the top: rank by rank, stream by stream.
std::map<Lane, int> lanes_of(const Result& result) {
  std::map<Lane, int> lanes;
  for (const Span& span : result.spans)
    if (span.rank < kMostRanks) lanes.emplace(Lane{span.rank, span.stream}, 0);
  int row = 0;
  for (auto& [lane, index] : lanes) index = row++;
  return lanes;
}

/// A span that begins inside another of its lane is drawn lower: a copy inside a backward, a second
/// collective in flight.
struct Box {
  const Span* span;
  double low, high;  // of the lane's height
};

std::vector<Box> boxes_of(const Result& result, const std::map<Lane, int>& lanes) {
  std::vector<const Span*> spans;
  for (const Span& span : result.spans)
    if (lanes.count({span.rank, span.stream}) != 0) spans.push_back(&span);
  std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
    return std::tuple(a->rank, a->stream, a->start_s, -a->end_s) <
           std::tuple(b->rank, b->stream, b->start_s, -b->end_s);
  });
  std::vector<Box> boxes;
  constexpr double kNever =
      std::numeric_limits<double>::lowest();  // other ranks may begin before rank 0 does
  double busy_until = kNever;
  Lane current{-1, Stream::kCompute};
  for (const Span* span : spans) {
    const Lane lane{span->rank, span->stream};
    if (lane != current) busy_until = kNever;
    current = lane;
    const bool inside = span->start_s < busy_until;
    boxes.push_back({span, inside ? kInnerTop : -kHalfBox, kHalfBox});
    busy_until = std::max(busy_until, span->end_s);
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

/// One block per kind, one with labels.
std::string blocks(const Result& result, const std::map<Lane, int>& lanes, double length_s) {
  const std::vector<Box> boxes = boxes_of(result, lanes);
  std::array<std::string, kKinds.size()> kinds;
  std::string labels;
  for (const Box& box : boxes) {
    const Span& span = *box.span;
    const double row = lanes.at({span.rank, span.stream});
    kinds[kind_of(span)] += style::number(kMilli * span.start_s) + " " + style::number(row) + " " +
                            style::number(kMilli * span.start_s) + " " + style::number(kMilli * span.end_s) +
                            " " + style::number(row + box.low) + " " + style::number(row + box.high) + " " +
                            style::cell(span.name) + "\n";
    const std::string label =
        label_of(span, (span.end_s - span.start_s) / length_s * (kWidth - kLeft - kRight));
    if (!label.empty() && box.low < 0.0)
      labels += style::number(0.5 * kMilli * (span.start_s + span.end_s)) + " " + style::number(row) + " " +
                style::cell(label) + "\n";
  }
  std::string data;
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    data += std::string("# ") + kKinds[k].label + ": x y start_ms end_ms low high name\n" +
            (kinds[k].empty() ? "NaN NaN NaN NaN NaN NaN \"\"\n" : kinds[k]) + "\n\n";
  return data + "# x y label\n" + (labels.empty() ? "NaN NaN \"\"\n" : labels) + "\n\n";
}

std::string plot_streams(std::size_t first_block) {
  std::string plot;
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    plot += (k == 0 ? "plot " : ", ") + std::string("data index ") + std::to_string(first_block + k) +
            " using 1:2:3:4:5:6 with boxxyerror fs solid 1.0 border lc rgb '#ffffff' fc rgb " +
            style::quote(kKinds[k].colour);
  return plot + ", data index " + std::to_string(first_block + kKinds.size()) +
         " using 1:2:3 with labels font ',8' textcolor rgb '#111111'\n";
}

Panel panel_of_streams(const Result& result, double length_s) {
  const auto lanes = lanes_of(result);
  Panel panel{&result, {}, blocks(result, lanes, length_s), kKinds.size() + 1, plot_streams};
  for (const auto& [lane, row] : lanes)
    panel.rows.push_back("rank " + std::to_string(lane.first) + " " + to_text(lane.second));
  return panel;
}

struct Rgb {
  double red, green, blue;  // 0 to 1
  [[nodiscard]] Rgb mixed(const Rgb& other, double share) const {
    const auto mix = [share](double a, double b) { return a + share * (b - a); };
    return {mix(red, other.red), mix(green, other.green), mix(blue, other.blue)};
  }
  [[nodiscard]] bool dark() const { return 0.3 * red + 0.59 * green + 0.11 * blue < 0.5; }
  /// For a data file.
  [[nodiscard]] std::string number() const {
    const auto part = [](double value) { return static_cast<int>(std::lround(255.0 * value)); };
    return std::to_string(65536 * part(red) + 256 * part(green) + part(blue));
  }
};
constexpr Rgb kWhite{1.0, 1.0, 1.0}, kBlack{0.0, 0.0, 0.0};

Rgb rgb(std::string_view colour) {
  const auto part = [&](std::size_t at) {
    return std::stoi(std::string(colour.substr(at, 2)), nullptr, 16) / 255.0;
  };
  return {part(1), part(3), part(5)};
}

/// The first micro-batch is the lightest. Forward becomes lighter than its colour and backward darker, so
/// that no shade of one is taken for a shade of the other.
Rgb shade(const StageBox& box, int micro_batches) {
  const Rgb base = rgb(kKinds[static_cast<std::size_t>(box.work)].colour);
  if (box.micro_batch < 0) return base;
  const double late = micro_batches < 2 ? 0.5 : box.micro_batch / (micro_batches - 1.0);
  if (box.work == StageWork::kBackward) return base.mixed(kBlack, 0.5 * late);
  return base.mixed(kWhite, 0.6 * (1.0 - late));
}

std::string plot_stages(std::size_t first_block) {
  return "plot data index " + std::to_string(first_block) +
         " using 1:2:3:4:5:6:7 with boxxyerror fs solid 1.0 border lc rgb '#ffffff' fc rgb variable, data "
         "index " +
         std::to_string(first_block + 1) + " using 1:2:3:4 with labels font ',8' textcolor rgb variable\n";
}

Panel panel_of_stages(const Result& result, double length_s) {
  const std::vector<StageBox> boxes = stage_boxes(result);
  int micro_batches = 1;
  for (const StageBox& box : boxes) micro_batches = std::max(micro_batches, box.micro_batch + 1);
  Panel panel{&result, {}, "# x y start_ms end_ms low high rgb\n", 2, plot_stages};
  std::map<int, std::size_t> rows;
  std::string labels = "# x y micro_batch rgb\nNaN NaN \"\" 0\n";
  for (const StageBox& box : boxes) {
    if (box.rank >= kMostStages) continue;
    const auto [row, is_new] = rows.emplace(box.rank, rows.size());
    if (is_new) panel.rows.push_back("rank " + std::to_string(box.rank));
    const auto y = static_cast<double>(row->second);
    const bool thin = box.work == StageWork::kCommunication;
    const Rgb colour = shade(box, micro_batches);
    panel.data += style::number(kMilli * box.start_s) + " " + style::number(y) + " " +
                  style::number(kMilli * box.start_s) + " " + style::number(kMilli * box.end_s) + " " +
                  style::number(y + (thin ? kMessagesTop : -kHalfBox)) + " " +
                  style::number(y + (thin ? kHalfBox : kWorkBottom)) + " " + colour.number() + "\n";
    const std::string text = std::to_string(box.micro_batch);
    const double points = (box.end_s - box.start_s) / length_s * (kWidth - kLeft - kRight);
    if (box.micro_batch < 0 || points < kCharacterWidth * static_cast<double>(text.size()) + kLabelMargin)
      continue;
    labels += style::number(0.5 * kMilli * (box.start_s + box.end_s)) + " " +
              style::number(y + 0.5 * (kWorkBottom - kHalfBox)) + " " + style::cell(text) + " " +
              (colour.dark() ? kWhite : kBlack).number() + "\n";
  }
  panel.data += "\n\n" + labels + "\n\n";
  return panel;
}

/// The kinds that the panels hold: of pipelines no waiting, of others recomputation only where there is any.
std::vector<std::string> legend(const std::vector<const Result*>& results) {
  bool recomputes = false, streams = false;
  for (const Result* result : results) {
    streams = streams || !passes_micro_batches(*result);
    for (const Span& span : result->spans) recomputes = recomputes || kind_of(span) == kRecompute;
  }
  std::vector<std::string> entries;
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    if ((k != kRecompute || recomputes) && (k != kWaiting || streams))
      entries.push_back("with boxes fc rgb " + style::quote(kKinds[k].colour) + " title " +
                        style::quote(kKinds[k].label));
  return entries;
}

std::string tics(const std::vector<std::string>& rows) {
  std::string text;
  for (std::size_t row = 0; row < rows.size(); ++row)
    text += (row == 0 ? "" : ", ") + style::quote(rows[row]) + " " + std::to_string(row);
  return "set ytics (" + text + ")\nset yrange [" + style::number(static_cast<double>(rows.size()) - 0.4) +
         ":-0.6]\n";
}

std::string title_of(const Panel& panel) {
  Configuration plain = panel.result->configuration;
  plain.extra.clear();
  const int shown = panel.plot == plot_stages ? kMostStages : kMostRanks;
  std::string text = (panel.result->origin == Origin::kMeasured ? "measured: " : "predicted: ") +
                     describe(plain) +
                     (shown < plain.world_size ? " (the first " + std::to_string(shown) + " ranks)" : "");
  const auto room = kTitleCharacters - std::min(kTitleCharacters, text.size() + 2);
  const std::string options = options_text(panel.result->configuration.extra, room);
  return shortened(text, kTitleCharacters) + (options.empty() ? "" : ", " + options);
}

/// Of what matters. A late stage begins its step long before rank 0 does, with receives and gradients to
/// clear, and then waits: of pipelines that is left out.
std::pair<double, double> range_of(const std::vector<const Result*>& results) {
  double start_s = 0.0, end_s = 0.0;
  for (const Result* result : results) {
    const bool stages = passes_micro_batches(*result);
    for (const Span& span : result->spans) {
      if (stages && span.end_s <= 0.0) continue;
      if (stages && span.kind == SpanKind::kWait) continue;
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
  if (results.empty()) throw InputError("nothing to draw: give a result file that holds the spans of a step");
  const bool any_stages = std::any_of(results.begin(), results.end(),
                                      [](const Result* result) { return passes_micro_batches(*result); });
  std::string title =
      any_stages ? "One training step; numbers and shades are micro-batches" : "One training step";
  if (results.size() > kMostResults) {
    title +=
        " (the first " + std::to_string(kMostResults) + " of " + std::to_string(results.size()) + " files)";
    results.resize(kMostResults);
  }
  const auto [start_s, end_s] = range_of(results);
  int height = style::kHeadHeight + kFoot;
  std::vector<Panel> panels;
  for (const Result* result : results) {
    panels.push_back(
        (passes_micro_batches(*result) ? panel_of_stages : panel_of_streams)(*result, end_s - start_s));
    height += kPanelTitle + kLaneHeight * static_cast<int>(panels.back().rows.size());
  }
  Drawing drawing{"", "", kWidth, height};
  const double w = kWidth, h = height;
  drawing.script += style::head(title, legend(results), kWidth, height, kLeft) +
                    "unset grid\nset grid xtics lc rgb '#dddddd' lt 1\nset border 1\nset xrange [" +
                    style::number(kMilli * start_s) + ":" + style::number(kMilli * end_s) +
                    "]\nset lmargin at screen " + style::number(kLeft / w) + "\nset rmargin at screen " +
                    style::number(1.0 - kRight / w) + "\nset format x ''\n";
  double top = h - style::kHeadHeight;
  std::size_t block = 0;
  for (const Panel& panel : panels) {
    const double bottom = top - kPanelTitle - kLaneHeight * static_cast<double>(panel.rows.size());
    drawing.data += panel.data;
    if (&panel == &panels.back())
      drawing.script += "set format x '%g'\nset xlabel 'time since rank 0 began the step (ms)'\n";
    drawing.script += "set tmargin at screen " + style::number((top - kPanelTitle) / h) +
                      "\nset bmargin at screen " + style::number(bottom / h) + "\nset title " +
                      style::quote(title_of(panel)) + " offset 0,-0.6 font ',10'\n" + tics(panel.rows) +
                      panel.plot(block);
    block += panel.blocks;
    top = bottom;
  }
  drawing.script += "unset multiplot\n";
  return drawing;
}

const Registration<Figure> kTimeline{
    figures(),
    {.name = "timeline",
     .description =
         "The operations of one step on every rank and stream, of a pipeline by stage and micro-batch; "
         "several files above each other.",
     .thing = {draw},
     .order = 14}};

}  // namespace
}  // namespace stepcast

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"

/// One step as a Gantt chart: a lane per rank and stream, predicted and measured above each other on one time
/// axis.
namespace stepcast {
namespace {

constexpr int kMostRanks = 8;
constexpr std::size_t kMostResults = 6;
constexpr int kWidth = 1200, kLeft = 130, kRight = 20;
constexpr int kLaneHeight = 34, kPanelTitle = 30, kFoot = 60;
constexpr double kCharacterWidth = 5.6;  // points, of the labels' font
constexpr std::size_t kShortestLabel = 4;
constexpr double kHalfBox = 0.42, kInnerTop = 0.05;  // of a lane's height, downwards

struct Kind {
  const char* label;
  std::string_view colour;
};
constexpr std::array<Kind, 6> kKinds = {{{"forward and loss", style::kCyan},
                                         {"backward", style::kBlue},
                                         {"communication", style::kRed},
                                         {"optimizer and copies", style::kGreen},
                                         {"input and host", style::kYellow},
                                         {"waiting", "#EEEEEE"}}};

std::size_t kind_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::kCompute:
      return span.name.starts_with("backward") ? 1 : 0;
    case SpanKind::kCommunication:
      return 2;
    case SpanKind::kOptimizerAndCopies:
      return 3;
    case SpanKind::kInputAndHost:
      return 4;
    case SpanKind::kWait:
      return 5;
  }
  return 5;
}

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

std::string tics(const std::map<Lane, int>& lanes) {
  std::string text;
  for (const auto& [lane, row] : lanes)
    text += (text.empty() ? "" : ", ") +
            style::quote("rank " + std::to_string(lane.first) + " " + to_text(lane.second)) + " " +
            std::to_string(row);
  return "set ytics (" + text + ")\nset yrange [" + style::number(static_cast<double>(lanes.size()) - 0.4) +
         ":-0.6]\n";
}

std::vector<std::string> legend() {
  std::vector<std::string> entries;
  entries.reserve(kKinds.size());
  for (const Kind& kind : kKinds)
    entries.push_back("with boxes fc rgb " + style::quote(kind.colour) + " title " +
                      style::quote(kind.label));
  return entries;
}

std::string plot_command(std::size_t first_block) {
  std::string plot;
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    plot += (k == 0 ? "plot " : ", ") + std::string("data index ") + std::to_string(first_block + k) +
            " using 1:2:3:4:5:6 with boxxyerror fs solid 1.0 border lc rgb '#ffffff' fc rgb " +
            style::quote(kKinds[k].colour);
  return plot + ", data index " + std::to_string(first_block + kKinds.size()) +
         " using 1:2:3 with labels font ',8' textcolor rgb '#111111'\n";
}

std::string title_of(const Result& result, std::size_t ranks) {
  const int all = result.configuration.world_size;
  return std::string(result.origin == Origin::kMeasured ? "measured: " : "predicted: ") +
         describe(result.configuration) +
         (static_cast<int>(ranks) < all ? " (the first " + std::to_string(ranks) + " ranks)" : "");
}

Drawing draw(const FigureInput& input) {
  std::vector<const Result*> results;
  for (const ResultFile& file : input.results)
    if (!file.result.spans.empty()) results.push_back(&file.result);
  if (results.empty()) throw InputError("nothing to draw: give a result file that holds the spans of a step");
  std::string title = "One training step";
  if (results.size() > kMostResults) {
    title +=
        " (the first " + std::to_string(kMostResults) + " of " + std::to_string(results.size()) + " files)";
    results.resize(kMostResults);
  }
  double start_s = 0.0, end_s = 0.0;
  int height = style::kHeadHeight + kFoot;
  for (const Result* result : results) {
    for (const Span& span : result->spans) {
      start_s = std::min(start_s, span.start_s);
      end_s = std::max(end_s, span.end_s);
    }
    height += kPanelTitle + kLaneHeight * static_cast<int>(lanes_of(*result).size());
  }
  Drawing drawing{"", "", kWidth, height};
  const double w = kWidth, h = height;
  drawing.script += style::head(title, legend(), kWidth, height, kLeft) +
                    "unset grid\nset grid xtics lc rgb '#dddddd' lt 1\nset border 1\nset xrange [" +
                    style::number(kMilli * start_s) + ":" + style::number(kMilli * end_s) +
                    "]\nset lmargin at screen " + style::number(kLeft / w) + "\nset rmargin at screen " +
                    style::number(1.0 - kRight / w) + "\nset format x ''\n";
  double top = h - style::kHeadHeight;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto lanes = lanes_of(*results[i]);
    const double bottom = top - kPanelTitle - kLaneHeight * static_cast<double>(lanes.size());
    drawing.data += blocks(*results[i], lanes, end_s - start_s);
    if (i + 1 == results.size())
      drawing.script += "set format x '%g'\nset xlabel 'time since rank 0 began the step (ms)'\n";
    const auto ranks = std::min(kMostRanks, results[i]->configuration.world_size);
    drawing.script += "set tmargin at screen " + style::number((top - kPanelTitle) / h) +
                      "\nset bmargin at screen " + style::number(bottom / h) + "\nset title " +
                      style::quote(title_of(*results[i], static_cast<std::size_t>(ranks))) +
                      " offset 0,-0.6 font ',11'\n" + tics(lanes) + plot_command(i * (kKinds.size() + 1));
    top = bottom;
  }
  drawing.script += "unset multiplot\n";
  return drawing;
}

const Registration<Figure> kTimeline{
    figures(),
    {.name = "timeline",
     .description = "The operations of one step on every rank and stream; several files above each other.",
     .thing = {draw},
     .order = 14}};

}  // namespace
}  // namespace stepcast

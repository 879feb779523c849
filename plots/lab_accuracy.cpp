#include <algorithm>
#include <cmath>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/lab_cases.hpp"
#include "plots/style.hpp"
#include "sim/core/table.hpp"

/// Predicted against measured step times of the lab, and beside it their signed errors with what the launches
/// leave open: from predicted over the slowest launch to predicted over the fastest, minus 1. A point whose
/// range crosses zero was predicted inside its range of launches.
namespace stepcast {
namespace {

constexpr style::PanelSize kPanel{.width = 540, .height = 500};
constexpr double kBand = 0.05, kPercent = 100.0;
constexpr double kLeastErrorShown = 8.0;  // per cent: half of the height of the right panel
constexpr std::size_t kLabelled = 3, kLabelCharacters = 170;
constexpr int kLabelRow = 15;  // points
constexpr int kTextLeft = 84;  // points, where panels begin
constexpr const char* kBandStyle = "with filledcurves fs noborder lc rgb '#dddddd'";
constexpr const char* kLineStyle = "with lines lc rgb '#888888'";

std::string marker(LabCompute compute, std::string_view colour) {
  return std::string(compute == LabCompute::kReplayed ? "pt 7" : "pt 6 lw 1.6") + " ps 1 lc rgb " +
         style::quote(colour);
}

std::string_view colour_of(LabDistance distance) {
  return style::series_colour(static_cast<std::size_t>(distance));
}

std::vector<std::string> legend(const std::vector<LabCase>& cases) {
  std::vector<std::string> entries;
  for (const LabGroup& group : group_errors(cases)) {
    const std::string entry = "with points " + marker(LabCompute::kReplayed, colour_of(group.distance)) +
                              " title " + style::quote(to_text(group.distance));
    if (std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.push_back(entry);
  }
  for (const LabCompute compute : kLabComputes)
    if (summarize(cases, compute).cases > 0)
      entries.push_back("with points " + marker(compute, "#333333") + " title '" + to_text(compute) +
                        " compute'");
  entries.push_back(std::string(kBandStyle) + " title 'within 5 %'");
  entries.emplace_back("with lines lc rgb '#999999' title 'range of the launches'");
  return entries;
}

std::vector<const LabCase*> worst_of(const std::vector<LabCase>& cases) {
  std::vector<const LabCase*> all;
  all.reserve(cases.size());
  for (const LabCase& one : cases) all.push_back(&one);
  std::stable_sort(all.begin(), all.end(), [](const LabCase* a, const LabCase* b) {
    return std::abs(a->relative_error()) > std::abs(b->relative_error());
  });
  all.resize(std::min(all.size(), kLabelled));
  return all;
}

std::string row(const LabCase& one) {
  const double predicted = one.predicted_step_time_s;
  return style::number(kMilli * one.measured_step_time_s) + " " + style::number(kMilli * predicted) + " " +
         style::number(kPercent * one.relative_error()) + " " +
         style::number(kPercent * (predicted / one.measured_high_s - 1.0)) + " " +
         style::number(kPercent * (predicted / one.measured_low_s - 1.0));
}

/// What both axes of the scatter span, in milliseconds.
struct Extent {
  double low = 0.0;
  double high = 0.0;
};
Extent span_of(const std::vector<LabCase>& cases) {
  constexpr double kMargin = 1.25;
  Extent span{kMilli * cases.front().measured_step_time_s, 0.0};
  for (const LabCase& one : cases) {
    const auto [low, high] = std::minmax(one.measured_step_time_s, one.predicted_step_time_s);
    span = {std::min(span.low, kMilli * low), std::max(span.high, kMilli * high)};
  }
  return {span.low / kMargin, span.high * kMargin};
}

/// Blocks: one per compute mode and distance, the labelled cases, the band.
std::string data_of(const std::vector<LabCase>& cases, const Extent& span) {
  std::string data;
  for (const LabCompute compute : kLabComputes)
    for (const LabDistance distance : kLabDistances) {
      data += "# " + to_text(compute) + " compute, " + to_text(distance) +
              ": measured_ms predicted_ms error_percent low high\n" + empty_row(5);
      for (const LabCase& one : cases)
        if (one.compute == compute && one.distance == distance) data += row(one) + "\n";
      data += "\n\n";
    }
  data += "# worst: measured_ms predicted_ms error_percent low high number\n";
  int number = 0;
  for (const LabCase* one : worst_of(cases))
    data += row(*one) + " " + style::cell(std::to_string(++number)) + "\n";
  data += "\n\n# band: x_ms below_ms above_ms below_percent above_percent\n";
  for (const double x : {span.low, span.high})
    data += style::number(x) + " " + style::number((1.0 - kBand) * x) + " " +
            style::number((1.0 + kBand) * x) + " " + style::number(-kPercent * kBand) + " " +
            style::number(kPercent * kBand) + "\n";
  return data;
}

constexpr std::size_t kGroups = kLabComputes.size() * kLabDistances.size();

/// `y` is the column that is drawn over the measured time: 2, predicted, or 3, the error.
std::string plot_command(int y) {
  const auto block = [](std::size_t i) { return "data index " + std::to_string(i); };
  const bool errors = y == 3;
  std::string plot = "plot " + block(kGroups + 1) + " using 1:" + (errors ? "4:5 " : "2:3 ") + kBandStyle +
                     (errors ? ", 0 " : ", x ") + kLineStyle;
  const std::string columns = " using 1:" + std::to_string(y);
  if (errors)
    for (std::size_t g = 0; g < kGroups; ++g)
      plot += ", " + block(g) + columns + ":4:5 with yerrorbars pt -1 lw 0.7 lc rgb '#999999'";
  for (std::size_t g = 0; g < kGroups; ++g)
    plot += ", " + block(g) + columns + " with points " +
            marker(kLabComputes.at(g / kLabDistances.size()),
                   colour_of(kLabDistances.at(g % kLabDistances.size())));
  plot += ", " + block(kGroups) + columns + " with points pt 6 ps 1.8 lw 1.4 lc rgb '#222222'";
  // Away from the diagonal: below it where the prediction is too short, else above.
  const auto labels = [&](const char* side, const char* offset) {
    return ", " + block(kGroups) + " using ($3" + side + "?$1:NaN):" + std::to_string(y) +
           ":6 with labels offset " + offset + " font ',10'";
  };
  return plot + labels("<0", "1.1,-0.8") + labels(">=0", "-1.1,0.8") + "\n";
}

/// The worst cases in words, under the legend.
std::string labels(const std::vector<LabCase>& cases, int legend_height, const style::Panels& panels) {
  std::string script;
  int number = 0;
  for (const LabCase* one : worst_of(cases)) {
    ++number;
    const std::string text = std::to_string(number) + ": " + signed_percent_text(one->relative_error()) +
                             "  " + describe(*one) + " (" + to_text(one->compute) + " compute, " +
                             to_text(one->distance) +
                             (one->inside_launch_range() ? ", inside its range of launches)" : ")");
    const double top = legend_height + kLabelRow * number - 12.0;
    script += "set label " + std::to_string(9 + number) + " " +
              style::quote(shortened(text, kLabelCharacters)) + " at screen " +
              style::number(static_cast<double>(kTextLeft) / panels.width()) + "," +
              style::number(1.0 - top / panels.height()) + " left font ',9'\n";
  }
  return script;
}

Drawing draw(const FigureInput& input) {
  const std::vector<LabCase>& cases = lab_of(input).cases;
  const std::vector<std::string> entries = legend(cases);
  const int legend_height =
      style::head_height(entries.size(), std::string("seen rate, seen size").size(), 2 * kPanel.width);
  style::PanelSize size = kPanel;
  size.head = legend_height + kLabelRow * static_cast<int>(kLabelled);
  const style::Panels panels(2, 2, size);
  const Extent span = span_of(cases);
  const std::string both = "[" + style::number(span.low) + ":" + style::number(span.high) + "]\n";
  const std::string tics = log_tics(span.low, span.high);
  double largest = kLeastErrorShown;
  for (const LabCase* one : worst_of(cases))
    largest = std::max(largest, 1.2 * kPercent * std::abs(one->relative_error()));
  Drawing drawing{data_of(cases, span),
                  panels.begin("Step times of the lab, predicted and measured", entries), panels.width(),
                  panels.height()};
  drawing.script += labels(cases, legend_height, panels) + panels.panel(0, "predicted against measured") +
                    "set logscale xy\nset xlabel 'measured step time (ms)' offset 0,0.4\n"
                    "set ylabel 'predicted step time (ms)' offset 1,0\nset xrange " +
                    both + "set yrange " + both + "set xtics " + tics + "\nset ytics " + tics + "\n" +
                    plot_command(2);
  for (std::size_t i = 1; i <= kLabelled; ++i)
    drawing.script += "unset label " + std::to_string(9 + i) + "\n";
  drawing.script += panels.panel(1, "error of the prediction") +
                    "unset logscale y\nset errorbars small\nset ylabel 'predicted over measured - 1 (%)' "
                    "offset 1,0\nset yrange [" +
                    style::number(-largest) + ":" + style::number(largest) + "]\nset ytics auto\n" +
                    plot_command(3) + panels.end();
  return drawing;
}

const Registration<Figure> kLabAccuracy{
    figures(),
    {.name = "lab-accuracy",
     .description =
         "Predicted against measured step times of 'lab validate' by their distance from the calibration, "
         "the worst three named.",
     .thing = {draw},
     .order = 20}};

}  // namespace
}  // namespace stepcast

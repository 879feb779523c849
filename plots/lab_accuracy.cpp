#include <cmath>

#include "core/table.hpp"
#include "plots/cases.hpp"

/// Predicted against measured step times of the lab, and beside it their signed errors with what the launches
/// leave open: from predicted over the slowest launch to predicted over the fastest, minus 1. A point whose
/// range crosses zero was predicted inside its range of launches.
namespace stepcast {
namespace {

constexpr double kBand = 0.05;
constexpr double kLeastErrorShown = 8.0;  // per cent: half of the height of the right panel
constexpr std::size_t kLabelled = 3, kLabelCharacters = 170;
constexpr const char *kBandLook = "with filledcurves fs noborder lc rgb '#dddddd'",
                     *kRangeLook = "lc rgb '#999999'";

std::vector<style::Entry> legend_of(const std::vector<Case>& cases) {
  std::vector<style::Entry> entries;
  for (std::size_t d = 0; d < kLabDistances.size(); ++d)
    if (std::any_of(cases.begin(), cases.end(),
                    [d](const Case& one) { return one.distance == kLabDistances.at(d); }))
      entries.push_back({compute_look("replayed", style::series_colour(d)), kLabDistances.at(d)});
  for (const std::string compute : kLabComputes)
    if (errors_of(cases, compute).count > 0)
      entries.push_back({compute_look(compute, "#333333"), compute + " compute"});
  entries.push_back({kBandLook, "within 5 %"});
  entries.push_back({std::string("with lines ") + kRangeLook, "range of the launches"});
  return entries;
}

std::string case_row(const Case& one) {
  const double predicted = one.predicted->value;
  return style::row({kMilli * one.measured->value, kMilli * predicted, kPercent * one.relative_error(),
                     kPercent * (predicted / one.measured->high - 1.0),
                     kPercent * (predicted / one.measured->low - 1.0)});
}

/// What both axes of the scatter span, in milliseconds.
Estimate extent_of(const std::vector<Case>& cases) {
  constexpr double kMargin = 1.25;
  Estimate extent{0.0, cases.front().measured->value, 0.0};
  for (const Case& one : cases) {
    const auto [low, high] = std::minmax(one.measured->value, one.predicted->value);
    extent = {0.0, std::min(extent.low, low), std::max(extent.high, high)};
  }
  return {0.0, kMilli * extent.low / kMargin, kMilli * extent.high * kMargin};
}

/// The band, one block per compute mode and distance, the worst cases. `y` is the column that is drawn over
/// the measured time: 2, predicted, or 3, the error.
void draw_cases(style::Panel& panel, const std::vector<Case>& cases, const std::vector<Case>& worst,
                const Estimate& extent, int y) {
  const bool errors = y == 3;
  std::vector<std::string> band;
  for (const double x : {extent.low, extent.high})
    band.push_back(style::row(
        {x, errors ? -kPercent * kBand : (1.0 - kBand) * x, errors ? kPercent * kBand : (1.0 + kBand) * x}));
  panel.draw(panel.block("band: x_ms below above", band), std::string("using 1:2:3 ") + kBandLook);
  panel.draw(std::string(errors ? "0" : "x") + " with lines lc rgb '#888888'");
  std::vector<std::pair<std::size_t, std::string>> points;  // block, look
  const std::string columns = ": measured_ms predicted_ms error_percent low high";
  for (const std::string compute : kLabComputes)
    for (std::size_t d = 0; d < kLabDistances.size(); ++d) {
      std::vector<std::string> rows;
      for (const Case& one : cases)
        if (one.configuration.compute == compute && one.distance == kLabDistances.at(d))
          rows.push_back(case_row(one));
      points.emplace_back(panel.block(compute + " compute, " + kLabDistances.at(d) + columns, rows),
                          compute_look(compute, style::series_colour(d)));
    }
  if (errors)
    for (const auto& [block, look] : points)
      panel.draw(block, std::string("using 1:3:4:5 with yerrorbars pt -1 lw 0.7 ") + kRangeLook);
  for (const auto& [block, look] : points) panel.draw(block, style::fill("using 1:{} {}", {y, look}));
  std::vector<std::string> rows;
  for (const Case& one : worst)
    rows.push_back(case_row(one) + " " + style::cell(std::to_string(rows.size() + 1)));
  const std::size_t block = panel.block("worst" + columns + " number", rows);
  panel.draw(block, style::fill("using 1:{} with points pt 6 ps 1.8 lw 1.4 lc rgb '#222222'", {y}));
  // Away from the diagonal: below it where the prediction is too short, else above.
  for (const auto& [side, offset] : {std::pair{"<0", "1.1,-0.8"}, {">=0", "-1.1,0.8"}})
    panel.draw(block,
               style::fill("using ($3{}?$1:NaN):{}:6 with labels offset {} font ',10'", {side, y, offset}));
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case>& cases = lab_of(input).cases;
  std::vector<Case> worst = worst_first(cases);
  worst.resize(std::min(worst.size(), kLabelled));
  const Estimate extent = extent_of(cases);
  const double largest =
      std::max(kLeastErrorShown, 1.2 * kPercent * std::abs(worst.front().relative_error()));
  style::Sheet sheet{.title = "Step times of the lab, predicted and measured",
                     .legend = legend_of(cases),
                     .width = 540,
                     .height = 500};
  for (const Case& one : worst)
    sheet.notes.push_back(
        shortened(std::to_string(sheet.notes.size() + 1) + ": " + signed_percent_text(one.relative_error()) +
                      "  " + describe_in_lab(one) + " (" + one.configuration.compute + " compute, " +
                      one.distance + (one.inside_launch_range() ? ", inside its range of launches)" : ")"),
                  kLabelCharacters));
  const std::string tics = style::log_tics(extent.low, extent.high);
  sheet.panels = {
      {.title = "predicted against measured",
       .axes = style::fill("set logscale xy\nset xlabel 'measured step time (ms)' offset 0,0.4\n"
                           "set ylabel 'predicted step time (ms)' offset 1,0\nset xrange [{}:{}]\n"
                           "set yrange [{}:{}]\nset xtics {}\nset ytics {}\n",
                           {extent.low, extent.high, extent.low, extent.high, tics, tics})},
      {.title = "error of the prediction",
       .axes =
           style::fill("unset logscale y\nset errorbars small\nset ylabel 'predicted over measured - 1 (%)' "
                       "offset 1,0\nset yrange [{}:{}]\nset ytics auto\n",
                       {-largest, largest})}};
  draw_cases(sheet.panels[0], cases, worst, extent, 2);
  draw_cases(sheet.panels[1], cases, worst, extent, 3);
  return sheet.drawing();
}

const Registration<Figure> kLabAccuracy{
    figures(),
    {.name = "lab-accuracy",
     .description =
         "Predicted against measured step times of 'lab validate' by their distance from the calibration, "
         "the worst three named.",
     .value = {draw},
     .order = 20}};

}  // namespace
}  // namespace stepcast

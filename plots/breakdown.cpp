#include <algorithm>

#include "core/text.hpp"
#include "plots/cases.hpp"

/// Parts of the step as stacked bars, measured next to predicted. Overlapped communication is not part of the
/// sum; it is hatched over the top of the compute that hides it.
namespace stepcast::breakdown_figure {
namespace {

constexpr double kOffset = 0.2;      // of a bar from the middle of its pair
constexpr double kHalfWidth = 0.18;  // of a bar

const std::vector<style::Part> kStackParts{{"compute", style::kBlue},
                                           {"exposed communication", style::kRed},
                                           {"input and host", style::kYellow},
                                           {"optimizer and copies", style::kGreen},
                                           {"idle", style::kGrey}};

/// Milliseconds by phase: measured (median over the launches) or predicted.
std::map<std::string, double> times_of(const Case& one, bool predicted) {
  std::map<std::string, double> times;
  for (const PhaseError& phase : one.phases)
    times[spaced(phase.name)] = kMilli * (predicted ? phase.predicted_s : phase.measured_s);
  return times;
}

style::Panel panel_of(const std::string& title, const std::vector<const Case*>& cases) {
  std::vector<style::Part> parts = kStackParts;
  std::vector<style::StackedBar> bars;
  std::vector<style::Box> hidden;
  std::vector<style::Tic> tics;
  for (const Case* one : cases) {
    tics.push_back({static_cast<double>(tics.size() + 1), case_label(*one)});
    for (const bool predicted : {false, true}) {
      std::map<std::string, double> times = times_of(*one, predicted);
      const double x = tics.back().at + (predicted ? kOffset : -kOffset), compute = times["compute"];
      bars.push_back({x, kHalfWidth, predicted ? "pred." : "meas."});
      for (style::Part& part : parts) part.heights.push_back(times[std::string(part.name)]);
      hidden.push_back({x - kHalfWidth, x + kHalfWidth,
                        std::max(0.0, compute - times["overlapped communication"]), compute});
    }
  }
  style::Panel panel{.title = title};
  const double tallest = style::draw_stack(panel, bars, parts);
  style::draw_boxes(panel, "overlapped communication", hidden,
                    "fs transparent pattern 4 noborder fc rgb '#ffffff'");
  panel.axes = style::fill(
      "set xrange [0.4:{}]\nset yrange [0:{}]\nset xtics {}\n",
      {static_cast<double>(cases.size()) + 0.6, 1.1 * std::max(1e-6, tallest), style::tics(tics)});
  return panel;
}

Drawing draw(const FigureInput& input) {
  style::Sheet sheet{.title = "Where the step goes, measured (left) and predicted (right)",
                     .legend = style::stack_legend(kStackParts),
                     .setup = "set ylabel 'time per step (ms)' offset 1,0\n"};
  sheet.legend.push_back(
      {"with boxes fs pattern 4 noborder lc rgb '#4477AA'", "communication hidden by compute"});
  return draw_by_model(sheet, input, panel_of);
}

const Registration<Figure> kBreakdown{figures(), "breakdown", draw, 11};

}  // namespace
}  // namespace stepcast::breakdown_figure

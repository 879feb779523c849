#include <algorithm>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"
#include "sim/core/table.hpp"

/// Measured and predicted step times as paired bars, whiskers over the launches, the signed error above each
/// pair.
namespace stepcast {
namespace {

std::vector<std::string> legend() {
  return {"with boxes fc rgb " + style::quote(style::kBlue) + " title 'measured, median over launches'",
          "with boxes fc rgb " + style::quote(style::kRed) + " title 'predicted'",
          "with lines lw 1.4 lc rgb '#222222' title 'fastest to slowest launch'"};
}

/// Room for `cases` pairs of bars, and above the tallest for its error.
std::string axes(std::size_t cases, double tallest_ms) {
  return "set xrange [0.4:" + style::number(static_cast<double>(cases) + 0.6) +
         "]\nset yrange [0:" + style::number(1.15 * tallest_ms) + "]\n";
}

std::string plot_command(const std::string& block) {
  return "plot " + block + " using ($1-0.2):2:(0.38) with boxes fc rgb " + style::quote(style::kBlue) + ", " +
         block + " using ($1+0.2):5:(0.38) with boxes fc rgb " + style::quote(style::kRed) + ", " + block +
         " using ($1-0.2):3:(0):($4-$3) with vectors heads size graph 0.012,90 lw 1.4 lc rgb '#222222', " +
         block + " using 1:8:7 with labels offset 0,0.7 font ',9', " + block +
         " using 1:(0):xtic(6) with points pt -1\n";
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = complete_cases(input);
  const auto models = by_model(cases);
  const style::Panels panels(models.size(), 2);
  Drawing drawing{"# x measured_ms low_ms high_ms predicted_ms label error label_height_ms\n",
                  panels.begin("Step time, measured and predicted", legend()) +
                      "set ylabel 'step time (ms)' offset 1,0\n",
                  panels.width(), panels.height()};
  for (std::size_t m = 0; m < models.size(); ++m) {
    double tallest = 0.0;
    for (std::size_t i = 0; i < models[m].cases.size(); ++i) {
      const Case& one = *models[m].cases[i];
      const double high = kMilli * std::max(one.measured_high_s(), one.predicted_step_time_s());
      tallest = std::max(tallest, high);
      drawing.data +=
          std::to_string(i + 1) + " " + style::number(kMilli * one.measured_step_time_s()) + " " +
          style::number(kMilli * one.measured_low_s()) + " " + style::number(kMilli * one.measured_high_s()) +
          " " + style::number(kMilli * one.predicted_step_time_s()) + " " + style::cell(case_label(one)) +
          " " + style::cell(signed_percent_text(one.relative_error())) + " " + style::number(high) + "\n";
    }
    drawing.data += "\n\n";
    drawing.script += panels.panel(m, models[m].title);
    drawing.script += axes(models[m].cases.size(), tallest) + plot_command("data index " + std::to_string(m));
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kAccuracy{
    figures(),
    {.name = "accuracy",
     .description = "Measured and predicted step times with signed error and launch-to-launch whiskers.",
     .thing = {draw},
     .order = 10}};

}  // namespace
}  // namespace stepcast

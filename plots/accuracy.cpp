#include <algorithm>

#include "core/table.hpp"
#include "plots/cases.hpp"

/// Measured and predicted step times as paired bars, whiskers over the launches, the signed error above each
/// pair.
namespace stepcast::accuracy_figure {
namespace {

constexpr const char *kMeasuredBar = "with boxes fc rgb '#4477AA'",
                     *kPredictedBar = "with boxes fc rgb '#EE6677'", *kWhisker = "lw 1.4 lc rgb '#222222'";

style::Panel panel_of(const std::string& title, const std::vector<const Case*>& cases) {
  style::Panel panel{.title = title};
  double tallest = 0.0;
  std::vector<std::string> rows;
  for (const Case* one : cases) {
    const Estimate& measured = *one->measured;
    const double high = kMilli * std::max(measured.high, *one->predicted);
    tallest = std::max(tallest, high);
    rows.push_back(
        style::row({rows.size() + 1, kMilli * measured.value, kMilli * measured.low, kMilli * measured.high,
                    kMilli * *one->predicted, style::cell(case_label(*one)),
                    style::cell(signed_percent_text(one->relative_error())), high}));
  }
  const std::size_t block =
      panel.block("x measured_ms low_ms high_ms predicted_ms label error label_height_ms", rows);
  // Above the tallest is room for its error.
  panel.axes = style::fill("set xrange [0.4:{}]\nset yrange [0:{}]\n",
                           {static_cast<double>(cases.size()) + 0.6, 1.15 * tallest});
  panel.draw(block, std::string("using ($1-0.2):2:(0.38) ") + kMeasuredBar);
  panel.draw(block, std::string("using ($1+0.2):5:(0.38) ") + kPredictedBar);
  panel.draw(block,
             std::string("using ($1-0.2):3:(0):($4-$3) with vectors heads size graph 0.012,90 ") + kWhisker);
  panel.draw(block, "using 1:8:7 with labels offset 0,0.7 font ',9'");
  panel.draw(block, "using 1:(0):xtic(6) with points pt -1");
  return panel;
}

Drawing draw(const FigureInput& input) {
  return draw_by_model({.title = "Step time, measured and predicted",
                        .legend = {{kMeasuredBar, "measured, median over launches"},
                                   {kPredictedBar, "predicted"},
                                   {std::string("with lines ") + kWhisker, "fastest to slowest launch"}},
                        .setup = "set ylabel 'step time (ms)' offset 1,0\n"},
                       input, panel_of);
}

const Registration<Figure> kAccuracy{figures(), "accuracy", draw, 10};

}  // namespace
}  // namespace stepcast::accuracy_figure

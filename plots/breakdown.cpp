#include <algorithm>
#include <array>

#include "plots/cases.hpp"
#include "plots/figure.hpp"
#include "plots/style.hpp"

/// Where the step goes: stacked bars, measured beside predicted. Overlapped communication is no part of the
/// sum; it is hatched over the top of the compute that hides it.
namespace stepcast {
namespace {

struct Part {
  double Breakdown::*time;
  const char* label;
  std::string_view colour;
};
constexpr std::array<Part, 5> kStack = {
    {{&Breakdown::compute_s, "compute", style::kBlue},
     {&Breakdown::exposed_communication_s, "exposed communication", style::kRed},
     {&Breakdown::input_and_host_s, "input and host", style::kYellow},
     {&Breakdown::optimizer_and_copies_s, "optimizer and copies", style::kGreen},
     {&Breakdown::idle_s, "idle", style::kGrey}}};
constexpr double kOffset = 0.2;      // of a bar from the middle of its pair
constexpr double kHalfWidth = 0.18;  // of a bar

/// Measured (median over the launches) or predicted.
Breakdown side_of(const std::vector<PhaseError>& phases, bool predicted) {
  Breakdown breakdown;
  for (std::size_t i = 0; i < phases.size(); ++i)
    breakdown.*breakdown_parts()[i].second = predicted ? phases[i].predicted_s : phases[i].measured_s;
  return breakdown;
}

std::string box(double x, double low_s, double high_s) {
  return style::number(x) + " " + style::number(x - kHalfWidth) + " " + style::number(x + kHalfWidth) + " " +
         style::number(kMilli * low_s) + " " + style::number(kMilli * high_s) + "\n";
}

double total(const Breakdown& bar) {
  double sum = 0.0;
  for (const Part& part : kStack) sum += bar.*part.time;
  return sum;
}

struct Bar {
  double x;
  bool predicted;
  Breakdown breakdown;
};

/// One block per part of the stack, one for overlapped communication, one with labels.
std::string blocks(const std::vector<Bar>& bars, const ModelCases& model) {
  std::string data;
  for (std::size_t p = 0; p < kStack.size(); ++p) {
    data += std::string("# ") + kStack[p].label + ": x x_low x_high low_ms high_ms\n";
    for (const Bar& bar : bars) {
      double low = 0.0;
      for (std::size_t q = 0; q < p; ++q) low += bar.breakdown.*kStack[q].time;
      data += box(bar.x, low, low + bar.breakdown.*kStack[p].time);
    }
    data += "\n\n";
  }
  data += "# overlapped communication\n";
  for (const Bar& bar : bars)
    data += box(bar.x, std::max(0.0, bar.breakdown.compute_s - bar.breakdown.overlapped_communication_s),
                bar.breakdown.compute_s);
  data += "\n\n# x height_ms label\n";
  for (const Bar& bar : bars)
    data += style::number(bar.x) + " " + style::number(kMilli * total(bar.breakdown)) + " " +
            style::cell(bar.predicted ? "pred." : "meas.") + "\n";
  data += "\n\n# x label\n";
  for (std::size_t i = 0; i < model.cases.size(); ++i)
    data += std::to_string(i + 1) + " 0 " + style::cell(case_label(*model.cases[i])) + "\n";
  return data + "\n\n";
}
constexpr std::size_t kBlocksPerPanel = kStack.size() + 3;

std::vector<std::string> legend() {
  std::vector<std::string> entries;
  entries.reserve(kStack.size() + 1);
  for (const Part& part : kStack)
    entries.push_back("with boxes fs solid 1.0 noborder fc rgb " + style::quote(part.colour) + " title " +
                      style::quote(part.label));
  entries.emplace_back(
      "with boxes fs pattern 4 noborder lc rgb '#4477AA' title 'communication hidden by compute'");
  return entries;
}

std::string plot_command(std::size_t first_block) {
  std::string plot = "plot ";
  const auto block = [&](std::size_t i) { return "data index " + std::to_string(first_block + i); };
  for (std::size_t p = 0; p < kStack.size(); ++p)
    plot += block(p) + " using 1:5:2:3:4:5 with boxxyerror fs solid 1.0 noborder fc rgb " +
            style::quote(kStack[p].colour) + ", ";
  plot += block(kStack.size()) +
          " using 1:5:2:3:4:5 with boxxyerror fs transparent pattern 4 noborder fc rgb '#ffffff', ";
  plot += block(kStack.size() + 1) + " using 1:2:3 with labels offset 0,0.6 font ',8', ";
  plot += block(kStack.size() + 2) + " using 1:2:xtic(3) with points pt -1\n";
  return plot;
}

Drawing draw(const FigureInput& input) {
  const std::vector<Case> cases = complete_cases(input);
  const auto models = by_model(cases);
  const style::Panels panels(models.size(), 2);
  Drawing drawing{"", panels.begin("Where the step goes, measured (left) and predicted (right)", legend()),
                  panels.width(), panels.height()};
  drawing.script += "set ylabel 'time per step (ms)' offset 1,0\n";
  for (std::size_t m = 0; m < models.size(); ++m) {
    std::vector<Bar> bars;
    double tallest = 0.0;
    for (std::size_t i = 0; i < models[m].cases.size(); ++i) {
      const auto phases = phase_errors(*models[m].cases[i]);
      for (const bool predicted : {false, true}) {
        bars.push_back({static_cast<double>(i + 1) + (predicted ? kOffset : -kOffset), predicted,
                        side_of(phases, predicted)});
        tallest = std::max(tallest, total(bars.back().breakdown));
      }
    }
    drawing.data += blocks(bars, models[m]);
    drawing.script += panels.panel(m, models[m].title) +
                      "set xrange [0.4:" + style::number(static_cast<double>(models[m].cases.size()) + 0.6) +
                      "]\nset yrange [0:" + style::number(1.1 * kMilli * std::max(tallest, 1e-9)) + "]\n" +
                      plot_command(m * kBlocksPerPanel);
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kBreakdown{
    figures(),
    {.name = "breakdown",
     .description =
         "Compute, exposed and hidden communication, input, optimizer and idle time as stacked bars.",
     .thing = {draw},
     .order = 11}};

}  // namespace
}  // namespace stepcast

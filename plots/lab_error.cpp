#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "plots/figure.hpp"
#include "plots/lab_cases.hpp"
#include "plots/style.hpp"

/// How errors grow with the distance from what was calibrated: the absolute error of every case of the lab
/// against its world size and against the rate of its links, with what the calibration saw marked.
namespace stepcast {
namespace {

constexpr style::PanelSize kPanel{.width = 560, .height = 440};
constexpr double kPercent = 100.0;
constexpr double kSpread = 0.7;  // of the distance between two values that their cases take
constexpr double kGoal = 5.0, kLimit = 20.0;
constexpr double kHeadroom = 1.2;

/// What cases are sorted by.
struct Axis {
  std::string title;
  std::string label;
  std::function<double(const LabCase&)> value;
  std::function<std::string(double)> name;
  double calibrated = 0.0;
};

std::vector<Axis> axes_of(const LabCalibration& calibration) {
  return {{"by number of ranks", "ranks", [](const LabCase& one) -> double { return one.world_size; },
           [](double ranks) { return style::number(ranks); }, static_cast<double>(calibration.world_size)},
          {"by rate of the links", "rate of a host's link",
           [](const LabCase& one) { return one.link_rate_bytes_per_s; }, link_rate_text,
           calibration.link_rate_bytes_per_s}};
}

/// The values that an axis shows at 0, 1, 2, ...: those of the cases and the calibrated one.
std::vector<double> places_of(const Axis& axis, const std::vector<LabCase>& cases) {
  std::set<double> values{axis.calibrated};
  for (const LabCase& one : cases) values.insert(axis.value(one));
  return {values.begin(), values.end()};
}

std::vector<std::string> strategies_of(const std::vector<LabCase>& cases) {
  std::set<std::string> names;
  for (const LabCase& one : cases) names.insert(one.strategy);
  return {names.begin(), names.end()};
}

double absolute_percent(const LabCase& one) { return kPercent * std::abs(one.relative_error()); }

/// Beside each other at one place: `s` of `count`.
double offset(std::size_t s, std::size_t count) {
  return kSpread * ((static_cast<double>(s) + 0.5) / static_cast<double>(count) - 0.5);
}

/// Blocks: one per compute mode and strategy, then the medians per compute mode.
std::string blocks(const Axis& axis, const std::vector<LabCase>& cases) {
  const std::vector<double> places = places_of(axis, cases);
  const std::vector<std::string> strategies = strategies_of(cases);
  std::string data, medians;
  for (const LabCompute compute : kLabComputes) {
    std::map<std::size_t, std::vector<double>> errors;
    for (std::size_t s = 0; s < strategies.size(); ++s) {
      data +=
          "# " + to_text(compute) + " compute, " + strategies[s] + ": place error_percent\n" + empty_row(2);
      for (const LabCase& one : cases) {
        if (one.compute != compute || one.strategy != strategies[s]) continue;
        const auto place = static_cast<std::size_t>(std::find(places.begin(), places.end(), axis.value(one)) -
                                                    places.begin());
        errors[place].push_back(absolute_percent(one));
        data += style::number(static_cast<double>(place) + offset(s, strategies.size())) + " " +
                style::number(absolute_percent(one)) + "\n";
      }
      data += "\n\n";
    }
    medians += "# " + to_text(compute) + " compute: place median_percent\n" + empty_row(2);
    for (const auto& [place, all] : errors)
      medians += std::to_string(place) + " " + style::number(median(all)) + "\n";
    medians += "\n\n";
  }
  return data + medians;
}

std::string point(LabCompute compute, std::string_view colour) {
  return std::string("with points ps 1 ") + (compute == LabCompute::kReplayed ? "pt 7" : "pt 6 lw 1.6") +
         " lc rgb " + style::quote(colour);
}

std::string median_line(LabCompute compute) {
  return std::string("with linespoints lw 1.8 lc rgb '#222222' ps 1 ") +
         (compute == LabCompute::kReplayed ? "pt 13" : "dt 2 pt 12");
}

std::vector<std::string> legend(const std::vector<LabCase>& cases) {
  std::vector<std::string> entries;
  const std::vector<std::string> strategies = strategies_of(cases);
  for (std::size_t s = 0; s < strategies.size(); ++s)
    entries.push_back(point(LabCompute::kReplayed, style::series_colour(s)) + " title " +
                      style::quote(strategies[s]));
  for (const LabCompute compute : kLabComputes) {
    if (summarize(cases, compute).cases == 0) continue;
    const bool replayed = compute == LabCompute::kReplayed;
    entries.push_back(median_line(compute) + " title 'median, " + to_text(compute) + " compute'");
    if (!replayed) entries.push_back(point(compute, "#333333") + " title 'real compute'");
  }
  return entries;
}

std::string plot_command(std::size_t strategies, std::size_t first_block) {
  const auto block = [&](std::size_t i) { return "data index " + std::to_string(first_block + i); };
  std::string plot = "plot " + style::number(kGoal) + " with lines dt 2 lc rgb '#666666', " +
                     style::number(kLimit) + " with lines dt 2 lc rgb '#666666'";
  for (std::size_t i = 0; i < kLabComputes.size() * strategies; ++i)
    plot += ", " + block(i) + " using 1:2 " +
            point(kLabComputes.at(i / strategies), style::series_colour(i % strategies));
  for (std::size_t c = 0; c < kLabComputes.size(); ++c)
    plot +=
        ", " + block(kLabComputes.size() * strategies + c) + " using 1:2 " + median_line(kLabComputes.at(c));
  return plot + "\n";
}

/// The calibration as a vertical line, with its words on the side that has more room.
std::string frame(const Axis& axis, const std::vector<LabCase>& cases, const LabCalibration& calibration) {
  const std::vector<double> places = places_of(axis, cases);
  double top = kLimit;
  for (const LabCase& one : cases) top = std::max(top, absolute_percent(one));
  std::string tics;
  for (std::size_t i = 0; i < places.size(); ++i)
    tics += (i == 0 ? "" : ", ") + style::quote(axis.name(places[i])) + " " + std::to_string(i);
  const auto at =
      static_cast<std::size_t>(std::find(places.begin(), places.end(), axis.calibrated) - places.begin());
  const bool right = 2 * at < places.size();
  const std::string x = std::to_string(at);
  const std::string end = style::number(static_cast<double>(places.size()) - 0.5 + 0.02);
  return "set xrange [-0.6:" + style::number(static_cast<double>(places.size()) - 0.2) +
         "]\nset yrange [0:" + style::number(kHeadroom * top) + "]\nset xtics (" + tics +
         ") nomirror\nset xlabel " + style::quote(axis.label) + " offset 0,0.4\nset arrow 1 from " + x +
         ", graph 0 to " + x + ", graph 1 nohead dt 4 lw 1.6 lc rgb '#AA3377' back\nset label 3 " +
         style::quote("calibrated here: " + std::to_string(calibration.world_size) + " hosts, " +
                      link_rate_text(calibration.link_rate_bytes_per_s)) +
         " at " + x + ", graph 0.965 " + (right ? "left offset 0.7,0" : "right offset -0.7,0") +
         " font ',9' textcolor rgb '#AA3377'\nset label 4 '5 %' at " + end + "," + style::number(kGoal) +
         " left offset 0,0.5 font ',8'\nset label 5 '20 %' at " + end + "," + style::number(kLimit) +
         " left offset 0,0.5 font ',8'\n";
}

Drawing draw(const FigureInput& input) {
  const LabReport& lab = lab_of(input);
  const std::vector<Axis> axes = axes_of(lab.calibration);
  const std::vector<std::string> entries = legend(lab.cases);
  const std::size_t strategies = strategies_of(lab.cases).size();
  style::PanelSize size = kPanel;
  size.head = style::head_height(entries.size(), std::string("median, replayed compute").size(),
                                 static_cast<int>(axes.size()) * size.width);
  const style::Panels panels(axes.size(), axes.size(), size);
  Drawing drawing{"", panels.begin("Absolute error of the step time in the lab", entries), panels.width(),
                  panels.height()};
  drawing.script += "set ylabel 'absolute error (% of the measured step)' offset 1,0\n";
  for (std::size_t i = 0; i < axes.size(); ++i) {
    drawing.data += blocks(axes[i], lab.cases);
    drawing.script += panels.panel(i, axes[i].title) + frame(axes[i], lab.cases, lab.calibration) +
                      plot_command(strategies, i * kLabComputes.size() * (strategies + 1));
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kLabError{
    figures(),
    {.name = "lab-error",
     .description =
         "Absolute error of every case of 'lab validate' against world size and link rate, with what was "
         "calibrated marked.",
     .thing = {draw},
     .order = 22}};

}  // namespace
}  // namespace stepcast

#include <cmath>
#include <functional>
#include <set>

#include "core/statistics.hpp"
#include "plots/cases.hpp"

/// How errors grow with the distance from what was calibrated: the absolute error of every case of the lab
/// against its world size and against the rate of its links, with what the calibration saw marked.
namespace stepcast {
namespace {

constexpr double kSpread = 0.7;  // of the distance between two values that their cases take
constexpr double kGoal = 5.0, kLimit = 20.0;
constexpr double kErrorHeadroom = 1.2;
constexpr std::size_t kMostPlaces = 5;  // whose names stand side by side in the usual size

/// What cases are sorted by.
struct CaseAxis {
  std::string title;
  std::string label;
  std::function<double(const Case&)> value;
  std::function<std::string(double)> name;
  double calibrated = 0.0;
};

/// The nearest of 1, 2 and 5 times the powers of ten, by ratio: 100, 200 and 500 Mbit/s.
double rounded_rate(double bytes_per_s) {
  const double bits = 8.0 * bytes_per_s, power = std::pow(10.0, std::floor(std::log10(bits)));
  double best = power;
  for (const double step : {2.0, 5.0, 10.0})
    if (std::abs(std::log(bits / (step * power))) < std::abs(std::log(bits / best))) best = step * power;
  return best / 8.0;
}

double absolute_percent(const Case& one) { return kPercent * std::abs(one.relative_error()); }

std::string median_look(const std::string& compute) {
  return std::string("with linespoints lw 1.8 lc rgb '#222222' ps 1 ") +
         (compute == "replayed" ? "pt 13" : "dt 2 pt 12");
}

std::string strategy_of(const Case& one) { return one.configuration.strategy; }

/// The calibration as a vertical line, with its words on the side that has more room.
std::string frame(const CaseAxis& axis, const std::vector<double>& places, const LabReport& lab) {
  double top = kLimit;
  for (const Case& one : lab.cases) top = std::max(top, absolute_percent(one));
  std::vector<style::Tic> tics;
  for (const double place : places) tics.push_back({static_cast<double>(tics.size()), axis.name(place)});
  const auto at =
      static_cast<std::size_t>(std::find(places.begin(), places.end(), axis.calibrated) - places.begin());
  const double count = static_cast<double>(places.size()), end = count - 0.48;
  return style::fill(
      "set xrange [-0.6:{}]\nset yrange [0:{}]\nset xtics {} nomirror{}\nset xlabel {q} offset 0,0.4\n"
      "set arrow 1 from {}, graph 0 to {}, graph 1 nohead dt 4 lw 1.6 lc rgb '#AA3377' back\n"
      "set label 3 {q} at {}, graph 0.965 {} font ',9' textcolor rgb '#AA3377'\n"
      "set label 4 '5 %' at {},{} left offset 0,0.5 font ',8'\n"
      "set label 5 '20 %' at {},{} left offset 0,0.5 font ',8'\n",
      {count - 0.2, kErrorHeadroom * top, style::tics(tics), places.size() > kMostPlaces ? " font ',8'" : "",
       axis.label, at, at,
       style::fill("calibrated here: {} hosts, {}",
                   {lab.calibration.world_size, link_rate_text(lab.calibration.link_rate_bytes_per_s)}),
       at, 2 * at < places.size() ? "left offset 0.7,0" : "right offset -0.7,0", end, kGoal, end, kLimit});
}

style::Panel panel_of(const CaseAxis& axis, const LabReport& lab) {
  std::set<double> values{axis.calibrated};  // at 0, 1, 2, ...
  for (const Case& one : lab.cases) values.insert(axis.value(one));
  const std::vector<double> places(values.begin(), values.end());
  const std::vector<std::string> strategies = sorted_names(lab.cases, strategy_of);
  style::Panel panel{.title = axis.title, .axes = frame(axis, places, lab)};
  for (const double limit : {kGoal, kLimit})
    panel.draw(style::fill("{} with lines dt 2 lc rgb '#666666'", {limit}));
  for (const std::string compute : kLabComputes)
    for (std::size_t s = 0; s < strategies.size(); ++s) {
      std::vector<std::string> rows;
      for (const Case& one : lab.cases) {
        if (one.configuration.compute != compute || strategy_of(one) != strategies[s]) continue;
        const auto place = std::find(places.begin(), places.end(), axis.value(one)) - places.begin();
        const double aside =
            kSpread * ((static_cast<double>(s) + 0.5) / static_cast<double>(strategies.size()) - 0.5);
        rows.push_back(style::row({static_cast<double>(place) + aside, absolute_percent(one)}));
      }
      panel.draw(panel.block(compute + " compute, " + strategies[s] + ": place error_percent", rows),
                 "using 1:2 " + compute_look(compute, style::series_colour(s)));
    }
  for (const std::string compute : kLabComputes) {
    std::vector<std::string> rows;
    for (std::size_t place = 0; place < places.size(); ++place) {
      std::vector<double> errors;
      for (const Case& one : lab.cases)
        if (one.configuration.compute == compute && axis.value(one) == places[place])
          errors.push_back(absolute_percent(one));
      if (!errors.empty()) rows.push_back(style::row({place, median(errors)}));
    }
    panel.draw(panel.block(compute + " compute: place median_percent", rows),
               "using 1:2 " + median_look(compute));
  }
  return panel;
}

Drawing draw(const FigureInput& input) {
  const LabReport& lab = lab_of(input);
  constexpr std::size_t kMostRates = 8;  // rates drawn at random are nearly all different
  std::set<double> rates{lab.calibration.link_rate_bytes_per_s};
  for (const Case& one : lab.cases) rates.insert(one.link_rate_bytes_per_s);
  const bool rounds = rates.size() > kMostRates;
  const std::vector<CaseAxis> axes = {
      {"by number of ranks", "ranks",
       [](const Case& one) { return double{1} * one.configuration.world_size; }, style::number,
       static_cast<double>(lab.calibration.world_size)},
      {"by rate of the links", rounds ? "rate of a host's link, about" : "rate of a host's link",
       [rounds](const Case& one) {
         return rounds ? rounded_rate(one.link_rate_bytes_per_s) : one.link_rate_bytes_per_s;
       },
       link_rate_text,
       rounds ? rounded_rate(lab.calibration.link_rate_bytes_per_s) : lab.calibration.link_rate_bytes_per_s}};
  style::Sheet sheet{.title = "Absolute error of the step time in the lab",
                     .setup = "set ylabel 'absolute error (% of the measured step)' offset 1,0\n",
                     .width = 560,
                     .height = 440};
  const std::vector<std::string> strategies = sorted_names(lab.cases, strategy_of);
  for (std::size_t s = 0; s < strategies.size(); ++s)
    sheet.legend.push_back({compute_look("replayed", style::series_colour(s)), strategies[s]});
  for (const std::string compute : kLabComputes) {
    if (errors_of(lab.cases, compute).count == 0) continue;
    sheet.legend.push_back({median_look(compute), "median, " + compute + " compute"});
    if (compute == "real") sheet.legend.push_back({compute_look(compute, "#333333"), "real compute"});
  }
  for (const CaseAxis& axis : axes) sheet.panels.push_back(panel_of(axis, lab));
  return sheet.drawing();
}

const Registration<Figure> kLabError{
    figures(),
    {.name = "lab-error",
     .description =
         "Absolute error of every case of 'lab validate' against world size and link rate, with what was "
         "calibrated marked.",
     .value = {draw},
     .order = 22}};

}  // namespace
}  // namespace stepcast

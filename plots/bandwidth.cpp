#include <algorithm>
#include <cmath>
#include <limits>

#include "plots/figure.hpp"
#include "plots/style.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units.hpp"

/// Bus bandwidth over message size, one panel per collective: measured as markers, predicted as a line.
namespace stepcast {
namespace {

std::vector<std::string> collectives_of(const std::vector<Bench>& benches) {
  std::vector<std::string> names;
  for (const Bench& bench : benches)
    for (const BenchRow& row : bench.rows)
      if (std::find(names.begin(), names.end(), row.collective) == names.end())
        names.push_back(row.collective);
  return names;
}

/// `1.00 GB/s` as `1 GB/s`.
std::string short_text(std::string text) {
  const std::size_t point = text.find('.');
  const std::size_t unit = text.find(' ');
  if (point == std::string::npos ||
      text.substr(point + 1, unit - point - 1).find_first_not_of('0') != std::string::npos)
    return text;
  return text.erase(point, unit - point);
}

std::vector<std::string> legend() {
  return {"with lines lw 2 lc rgb " + style::quote(style::kRed) + " title 'predicted'",
          "with points pt 7 ps 0.8 lc rgb " + style::quote(style::kBlue) +
              " title 'measured (median, p10 to p90)'"};
}

/// `('1 KiB' 1024, ...)` over the sizes present, about six of them.
std::string size_tics(const std::vector<Bench>& benches) {
  std::vector<double> sizes;
  for (const Bench& bench : benches)
    for (const BenchRow& row : bench.rows) sizes.push_back(row.message_bytes);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const std::size_t stride = std::max<std::size_t>(1, (sizes.size() + 5) / 6);
  std::string tics;
  for (std::size_t i = 0; i < sizes.size(); i += stride)
    tics += (tics.empty() ? "" : ", ") + style::quote(short_text(to_text(Bytes(sizes[i])))) + " " +
            style::number(sizes[i]);
  return "(" + tics + ")";
}

/// Decades from 1 kB/s to 10 TB/s with their units.
std::string bandwidth_tics() {
  std::string tics;
  for (int exponent = 3; exponent <= 13; ++exponent)
    tics += (tics.empty() ? "" : ", ") +
            style::quote(short_text(to_text(BytesPerSecond(std::pow(10.0, exponent))))) + " 1e" +
            std::to_string(exponent);
  return "(" + tics + ")";
}

/// Rows of all files of one origin. busbw of the fastest and slowest samples are the whiskers.
std::string block(const std::vector<Bench>& benches, Origin origin, const std::string& collective) {
  std::string data = "# bytes busbw_bytes_per_s p10 p90\n";
  bool empty = true;
  for (const Bench& bench : benches) {
    if (bench.origin != origin) continue;
    const double factor = bus_factor(collective, bench.world_size);
    for (const BenchRow& row : bench.rows) {
      if (row.collective != collective || row.time_s.empty() || row.median_time_s() <= 0.0) continue;
      const auto busbw = [&](double time) { return style::number(factor * row.message_bytes / time); };
      data += style::number(row.message_bytes) + " " + busbw(row.median_time_s()) + " " +
              busbw(quantile(row.time_s, 0.9)) + " " + busbw(quantile(row.time_s, 0.1)) + "\n";
      empty = false;
    }
  }
  return data + (empty ? "NaN NaN NaN NaN\n" : "") + "\n\n";
}

/// Of the i-th panel: a block measured, a block predicted.
std::string plot_command(std::size_t panel) {
  return "plot data index " + std::to_string(2 * panel + 1) + " using 1:2 with lines lw 2 lc rgb " +
         style::quote(style::kRed) + ", data index " + std::to_string(2 * panel) +
         " using 1:2:3:4 with yerrorbars pt 7 ps 0.8 lc rgb " + style::quote(style::kBlue) + "\n";
}

Drawing draw(const FigureInput& input) {
  const std::vector<std::string> names = collectives_of(input.benches);
  if (names.empty())
    throw InputError(
        "nothing to draw: give a file of 'stepcast bench' and one of 'stepcast predict --collectives'");
  const style::Panels panels(names.size(), 3);
  Drawing drawing{"",
                  panels.begin("Bus bandwidth of collectives, world size " +
                                   std::to_string(input.benches.front().world_size),
                               legend()),
                  panels.width(), panels.height()};
  drawing.script +=
      "set logscale x 2\nset logscale y 10\nset offsets graph 0.03, graph 0.03, 0, 0\nset xtics " +
      size_tics(input.benches) + "\nset ytics " + bandwidth_tics() +
      "\nset xlabel 'message size (total array)' offset 0,0.4\nset ylabel 'busbw' offset 1.5,0\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    drawing.data += block(input.benches, Origin::kMeasured, names[i]) +
                    block(input.benches, Origin::kPredicted, names[i]);
    drawing.script += panels.panel(i, names[i]) + plot_command(i);
  }
  drawing.script += panels.end();
  return drawing;
}

const Registration<Figure> kBandwidth{
    figures(),
    {.name = "bandwidth",
     .description = "Bus bandwidth of each collective over message size, measured and predicted.",
     .thing = {draw},
     .order = 12}};

}  // namespace
}  // namespace stepcast

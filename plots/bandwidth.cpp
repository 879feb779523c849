#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"
#include "plots/cases.hpp"

/// Bus bandwidth over message size, one panel per collective: measured as markers, predicted as a line.
namespace stepcast::bandwidth_figure {
namespace {

constexpr const char *kLine = "with lines lw 2 lc rgb '#EE6677'", *kMarker = "pt 7 ps 0.8 lc rgb '#4477AA'";

/// `1.00 GB/s` as `1 GB/s`.
std::string short_text(const std::string& text) {
  return std::regex_replace(text, std::regex("\\.0+ "), " ");
}

/// At about six of the sizes.
std::string size_tics(const std::vector<Bench>& benches) {
  std::set<double> sizes;
  for (const Bench& bench : benches)
    for (const BenchRow& row : bench.rows) sizes.insert(row.message_bytes);
  const std::size_t stride = std::max<std::size_t>(1, (sizes.size() + 5) / 6);
  std::vector<style::Tic> tics;
  std::size_t i = 0;
  for (const double size : sizes)
    if (i++ % stride == 0) tics.push_back({size, short_text(to_text(Bytes(size)))});
  return style::tics(tics);
}

/// Decades from 1 kB/s to 10 TB/s with their units.
std::string bandwidth_tics() {
  return style::tics(transformed(whole_numbers(3, 14), [](int exponent) -> style::Tic {
    const double rate = std::pow(10.0, exponent);
    return {rate, short_text(to_text(BytesPerSecond(rate)))};
  }));
}

/// Rows of all files of one origin, those of each apart, with busbw at the 90th and 10th percentile of the
/// time as whiskers.
std::vector<std::string> rows_of(const std::vector<Bench>& benches, Origin origin, const std::string& name) {
  std::vector<std::string> rows;
  for (const Bench& bench : benches) {
    if (bench.origin != origin) continue;
    if (!rows.empty()) rows.emplace_back();  // ends the line of the file before
    const double factor = bus_factor(name, bench.world_size);
    for (const BenchRow& row : bench.rows) {
      if (row.collective != name || row.time_s.empty() || row.median_time_s() <= 0.0) continue;
      const auto busbw = [&](double time) { return factor * row.message_bytes / time; };
      rows.push_back(style::row({row.message_bytes, busbw(row.median_time_s()),
                                 busbw(quantile(row.time_s, 0.9)), busbw(quantile(row.time_s, 0.1))}));
    }
  }
  return rows;
}

Drawing draw(const FigureInput& input) {
  std::vector<BenchRow> all;
  for (const Bench& bench : input.benches) {
    if (bench.world_size != input.benches.front().world_size)
      throw InputError("benches of {} and of {} ranks; give those of one world size",
                       input.benches.front().world_size, bench.world_size);
    all.insert(all.end(), bench.rows.begin(), bench.rows.end());
  }
  const auto names = grouped(all, &BenchRow::collective);
  if (names.empty())
    throw InputError(
        "nothing to draw: give a file of 'stepcast bench' and one of 'stepcast predict --collectives'");
  style::Sheet sheet{
      .title = style::fill("Bus bandwidth of collectives, world size {}", {input.benches.front().world_size}),
      .legend = {{kLine, "predicted"},
                 {std::string("with points ") + kMarker, "measured (median, p10 to p90)"}},
      .setup =
          style::fill("set logscale x 2\nset logscale y 10\nset offsets graph 0.03, graph 0.03, 0, 0\n"
                      "set xtics {}\nset ytics {}\nset xlabel 'message size (total array)' offset 0,0.4\n"
                      "set ylabel 'busbw' offset 1.5,0\n",
                      {size_tics(input.benches), bandwidth_tics()}),
      .columns = 3,
      .left = 108};  // labels as 100 MB/s
  for (const auto& [name, rows] : names) {
    style::Panel& panel = sheet.panels.emplace_back(style::Panel{.title = name});
    const char* columns = "bytes busbw_bytes_per_s p10 p90";
    panel.draw(panel.block(columns, rows_of(input.benches, Origin::kPredicted, name)),
               std::string("using 1:2 ") + kLine);
    panel.draw(panel.block(columns, rows_of(input.benches, Origin::kMeasured, name)),
               std::string("using 1:2:3:4 with yerrorbars ") + kMarker);
  }
  return sheet.drawing();
}

const Registration<Figure> kBandwidth{figures(), "bandwidth", draw, 12};

}  // namespace
}  // namespace stepcast::bandwidth_figure

#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "core/units.hpp"
#include "records/bench.hpp"
#include "sim/evidence/compare.hpp"
#include "sim/evidence/lab_report.hpp"

/// Figures of Results, Benches and reports of the lab. One file each: it turns inputs into data and a gnuplot
/// script, and `render` does the rest.
namespace stepcast {

struct FigureInput {
  std::vector<ResultFile> results;
  std::vector<Bench> benches;
  bool strong_scaling =
      false;         ///< of figures about speed-up: same global batch instead of same batch per rank
  Bytes capacity{};  ///< of figures about memory: what a device has; 0 B draws no line
  std::vector<LabReport> labs{};
};

/// A gnuplot script and the data file it reads (as `data`, in blocks: `plot data index 3`).
struct Drawing {
  std::string data;
  std::string script;
  int width = 900;  ///< points
  int height = 500;
  /// What the figure shows, in numbers, for people to quote: the header and the rows. Empty: no table is
  /// printed.
  std::vector<std::vector<std::string>> table{};
};

struct Figure {
  /// \throws InputError when the inputs hold nothing to draw; it says what is needed.
  std::function<Drawing(const FigureInput&)> draw;
};

Registry<Figure>& figures();

/// Refuses before any work what `render` would refuse after it.
/// \throws UsageError when the name ends in none of .svg, .png and .pdf; InputError when the figure, its script
/// or its data exist and `force` is false; CapabilityError when gnuplot is not installed.
void check_renderable(const std::filesystem::path& figure, bool force);

/// Writes `fig.gp` and `fig.dat` beside the figure and has gnuplot draw it; `gnuplot fig.gp` draws it again.
/// All three files appear, or none. \throws RunError with gnuplot's own words when it fails or draws nothing.
void render(const Drawing& drawing, const std::filesystem::path& figure, const std::string& caption,
            bool force);

/// The figure as the text of an SVG file, or drawn in characters as wide as the terminal (or 100).
/// \throws CapabilityError, RunError as above
std::string render_text(const Drawing& drawing, const std::string& caption, bool as_svg);

}  // namespace stepcast

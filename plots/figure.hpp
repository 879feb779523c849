#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "core/units.hpp"
#include "records/bench.hpp"
#include "sim/evidence/compare.hpp"

/// Figures of Results and Benches. Each file turns inputs into data and a gnuplot script; render() draws
/// them.
namespace stepcast {

struct FigureInput {
  std::vector<ResultFile> results;
  std::vector<Bench> benches;
  /// Of figures about speed-up: same global batch instead of same batch per rank.
  bool strong_scaling = false;
  Bytes capacity{};  ///< of figures about memory: what a device has; 0 B draws no line
};

/// A gnuplot script and its data file (variable `data`, in blocks: `plot data index 3`).
struct Drawing {
  std::string data, script;
  int width = 900;  ///< points
  int height = 500;
  /// The numbers of the figure: header and rows. Empty: no table is printed.
  std::vector<std::vector<std::string>> table{};
};

/// Draws the inputs. \throws InputError if they contain nothing to draw; the message names what is needed
using Figure = std::function<Drawing(const FigureInput&)>;

Registry<Figure>& figures();

/// Checks early what render() needs.
/// \throws UsageError if the name does not end in .svg, .png or .pdf; InputError if the figure, its script or
/// its data exist and `force` is false; CapabilityError if gnuplot is not installed
void check_renderable(const std::filesystem::path& figure, bool force);

/// Writes `fig.gp` and `fig.dat` next to the figure and draws it with gnuplot; `gnuplot fig.gp` draws it
/// again. All three files appear, or none. \throws RunError with gnuplot's message if it fails or draws
/// nothing
void render(const Drawing& drawing, const std::filesystem::path& figure, const std::string& caption,
            bool force);

/// The figure as the text of an SVG file, or in characters, as wide as the terminal (100 without one).
/// \throws CapabilityError, RunError as above
std::string render_text(const Drawing& drawing, const std::string& caption, bool as_svg);

}  // namespace stepcast

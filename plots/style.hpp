#pragma once

#include <string>
#include <string_view>
#include <vector>

/// What all figures share: colours, text in gnuplot's syntax, and a grid of panels under one legend.
namespace stepcast::style {

/// Paul Tol's bright scheme, distinguishable without colour vision. Source: personal.sron.nl/~pault.
constexpr std::string_view kBlue = "#4477AA", kCyan = "#66CCEE", kGreen = "#228833", kYellow = "#CCBB44",
                           kRed = "#EE6677", kPurple = "#AA3377", kGrey = "#BBBBBB";

/// The colour of the i-th of up to seven series.
std::string_view series_colour(std::size_t i);
/// The colour of the i-th of up to ten series: Paul Tol's muted scheme and black.
std::string_view many_series_colour(std::size_t i);
/// The same half transparent: for what lies under something else.
std::string pale(std::string_view colour);

/// `'text'` for a script.
std::string quote(std::string_view text);
/// `"text"` for a data file; line breaks stay `\n`.
std::string cell(std::string_view text);
/// A number with nine significant digits.
std::string number(double value);

/// Outward ticks in small grey type.
constexpr std::string_view kTics =
    "set tics out scale 0.5 font ',9' textcolor rgb '#333333'\nset xtics nomirror\nset ytics nomirror\n";

/// Points that `head` takes at the top of a figure: the title and two rows of legend.
constexpr int kHeadHeight = 76;

/// The same for `entries` of legend whose longest label has `longest` characters, across `width` points.
int head_height(std::size_t entries, std::size_t longest, int width);

/// Title and legend across a figure of `width` by `height` points, `left` points from its edge; see
/// Panels::begin.
std::string head(std::string_view title, const std::vector<std::string>& legend, int width, int height,
                 int left, int head_height = kHeadHeight);

/// Points of one panel with its axes.
struct PanelSize {
  int width = 470;
  int height = 300;
  int right = 14;  ///< beside the plot: room for a second axis
  int head = kHeadHeight;
};

/// Panels in rows of at most `columns`, under a legend across the top.
class Panels {
 public:
  Panels(std::size_t count, std::size_t columns, PanelSize size = {});
  [[nodiscard]] int width() const;   ///< points
  [[nodiscard]] int height() const;  ///< points
  /// Title and legend. Every entry of `legend` is what follows `NaN` in a plot command:
  /// `with lines lc rgb 'red' title 'predicted'`. Panels plot with `notitle`.
  [[nodiscard]] std::string begin(std::string_view title, const std::vector<std::string>& legend) const;
  /// Margins and title of the i-th panel.
  [[nodiscard]] std::string panel(std::size_t i, std::string_view title) const;
  [[nodiscard]] std::string end() const;

 private:
  std::size_t count_, columns_, rows_;
  PanelSize size_;
};

}  // namespace stepcast::style

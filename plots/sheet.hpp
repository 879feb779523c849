#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plots/figure.hpp"

/// What all figures share: a sheet of panels under one legend, the data and the gnuplot script of it, and
/// colours.
namespace stepcast::style {

/// Paul Tol's bright scheme, distinguishable without colour vision. Source: personal.sron.nl/~pault.
constexpr std::string_view kBlue = "#4477AA", kCyan = "#66CCEE", kGreen = "#228833", kYellow = "#CCBB44",
                           kRed = "#EE6677", kPurple = "#AA3377", kGrey = "#BBBBBB";

/// The colour of the i-th of up to seven series.
std::string_view series_colour(std::size_t i);
/// The colour of the i-th of up to ten series: Paul Tol's muted scheme and black.
std::string_view many_series_colour(std::size_t i);

/// `'text'` for a script.
std::string quote(std::string_view text);
/// A number with nine significant digits.
std::string number(double value);

/// A number or a text in a row of data or in a gap of a pattern.
struct Field {
  Field(double value) : text(number(value)) {}
  Field(int value) : text(std::to_string(value)) {}
  Field(std::size_t value) : text(std::to_string(value)) {}
  Field(std::string_view value) : text(value) {}
  Field(const std::string& value) : text(value) {}
  Field(const char* value) : text(value) {}
  std::string text;
};

/// `pattern` with its gaps `{}` filled in turn; `{q}` quotes.
std::string fill(std::string_view pattern, std::initializer_list<Field> values);

/// `"text"` for a data file; line breaks stay `\n`.
std::string cell(std::string_view text);
/// `'text'`, or a cell where it has several lines.
std::string quote_lines(const std::string& text);
/// Numbers and cells with blanks between.
std::string row(std::initializer_list<Field> values);

/// A place on an axis and what stands there.
struct Tic {
  double at = 0.0;
  std::string label;
};
/// `('a' 1, 'b' 2)`
std::string tics(const std::vector<Tic>& places);
/// Tics that say where they stand.
template <class Numbers>
std::string number_tics(const Numbers& places) {
  std::vector<Tic> all;
  for (const double place : places) all.push_back({place, number(place)});
  return tics(all);
}
/// Tics of a logarithmic axis at 1, 2 and 5 times the powers of ten from `low` to `high`; at finer steps where
/// fewer than four fit. \pre 0 < low
std::string log_tics(double low, double high);

/// Tics at 0, 1, 2, ... whose labels stand side by side where there is room, in two lines where blanks allow it,
/// slanted otherwise; long ones are cut.
struct PlaceTics {
  std::string command;  ///< `set xtics ...`, and where the label of the axis stands then
  int below = 0;        ///< points that they need more than a line of text
  int beside = 0;       ///< points that they need beyond the right end of the axis
};
/// \param room points from one place to the next
PlaceTics place_tics(const std::vector<std::string>& places, double room);
/// `text`, or its first characters with an ellipsis at their end; a character may be several bytes.
std::string shortened(const std::string& text, std::size_t characters);

/// An entry of a legend: how it is drawn (`with lines lc rgb 'red'`) and what it is called.
struct Entry {
  std::string look;
  std::string title{};
};

/// What is drawn in one pair of axes. Nothing of it stands in a panel's own legend.
struct Panel {
  std::string title{};
  std::string axes{};  ///< commands before the plot: ranges, tics, labels
  int height = 0;      ///< points; 0: as the sheet says

  /// Adds a block of data. Its columns, blank-separated, may stand behind `name: `. A block without rows gets
  /// one of NaN, so that it can be drawn. Answers with its number.
  std::size_t block(std::string_view columns, const std::vector<std::string>& rows);
  /// Draws a block, or a function: `using 1:2 with lines`, `x with lines`. Later ones cover earlier ones.
  void draw(std::size_t block, std::string_view how);
  void draw(std::string_view function);

  std::vector<std::string> blocks{};
  struct Plot {
    std::ptrdiff_t block = -1;  ///< -1: a function
    std::string how;
  };
  std::vector<Plot> plots{};
};

/// Panels in rows of at most `columns`, under a title, a legend across the top and notes.
struct Sheet {
  std::string title{};
  std::vector<Entry> legend{};
  std::vector<std::string> notes{};  ///< lines under the legend
  std::string setup{};               ///< commands before the first panel
  std::vector<Panel> panels{};
  std::size_t columns = 2;
  int width = 470, height = 300;  ///< points of one panel with its axes
  /// Points beside the plot, where axes and titles stand, and under all panels.
  int left = 84, right = 14, top = 30, bottom = 56, foot = 26;

  [[nodiscard]] Drawing drawing() const;
};

/// One part of a stacked bar.
struct Part {
  std::string_view name;
  std::string_view colour;
  std::vector<double> heights{};  ///< one per bar
};
struct StackedBar {
  double x = 0.0, half_width = 0.0;
};
/// Draws the parts on each other, a block each: x, both sides, bottom and top.
void draw_stack(Panel& panel, const std::vector<StackedBar>& bars, const std::vector<Part>& parts,
                const std::string& unit);
std::vector<Entry> stack_legend(const std::vector<Part>& parts);

}  // namespace stepcast::style

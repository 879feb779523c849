#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/ranges.hpp"
#include "plots/figure.hpp"

/// Parts of all figures: a sheet of panels under one legend, its data and gnuplot script, and colours.
namespace stepcast::style {

/// Paul Tol's bright scheme, which needs no colour vision. Source: personal.sron.nl/~pault.
constexpr std::string_view kBlue = "#4477AA", kCyan = "#66CCEE", kGreen = "#228833", kYellow = "#CCBB44",
                           kRed = "#EE6677", kPurple = "#AA3377", kGrey = "#BBBBBB";

/// The colour of the i-th of up to ten series: Paul Tol's muted scheme and black.
std::string_view series_colour(std::size_t i);

/// A colour with parts from 0 to 255.
struct Rgb {
  double red, green, blue;
  [[nodiscard]] Rgb mixed(const Rgb& other, double share) const;
  [[nodiscard]] bool dark() const { return 0.3 * red + 0.59 * green + 0.11 * blue < 127.5; }
  /// 0xRRGGBB
  [[nodiscard]] int number() const;
};
/// The colour `#RRGGBB`.
Rgb rgb(std::string_view colour);

/// The least and the greatest of some values; none yet if `low` is above `high`.
struct Range {
  double low = INFINITY, high = -INFINITY;
  void cover(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// `'text'` for a script.
std::string quote(std::string_view text);
/// A number with nine significant digits.
std::string number(double value);

/// A number or a text in a row of data or in a gap of a pattern.
struct Field {
  Field(double value) : text(number(value)) {}
  template <class Value>
  Field(const Value& value) : text(fmt::format("{}", value)) {}
  std::string text;
};

/// Replaces each `{}` of `pattern` by the next value, and each `{q}` by the next value in quotes.
std::string fill(std::string_view pattern, std::initializer_list<Field> values);

/// `"text"` for a data file; line breaks stay `\n`.
std::string cell(std::string_view text);
/// Numbers and cells with blanks between.
std::string row(std::initializer_list<Field> values);

/// Values of a member, each once, in the order in which they appear.
template <class Item, class Value>
std::vector<Value> in_order(const std::vector<Item>& items, Value Item::*member) {
  std::vector<Value> all;
  for (const Item& item : items)
    if (std::ranges::find(all, item.*member) == all.end()) all.push_back(item.*member);
  return all;
}

/// A position on an axis and its label.
struct Tic {
  double at = 0.0;
  std::string label;
};
/// `('a' 1, 'b' 2)`
std::string tics(const std::vector<Tic>& places);
/// Tics labelled with their positions.
template <class Numbers>
std::string number_tics(const Numbers& places) {
  return tics(transformed(places, [](double place) { return Tic{place, number(place)}; }));
}
/// Tics of a logarithmic axis at 1, 2 and 5 times the powers of ten from `low` to `high`; finer steps if
/// fewer than four fit. \pre 0 < low
std::string log_tics(double low, double high);

/// Tics at 0, 1, 2, ... Labels are side by side if there is room, in two lines if blanks allow it, else
/// slanted. Long labels are cut.
struct PlaceTics {
  std::string command;  ///< `set xtics ...`, and the offset of the axis label
  int below = 0;        ///< points that they need in addition to a line of text
  int beside = 0;       ///< points that they need beyond the right end of the axis
};
/// \param room points from one place to the next
PlaceTics place_tics(const std::vector<std::string>& places, double room);
/// `text`, or its first characters with an ellipsis at their end; a character may be several bytes.
std::string shortened(const std::string& text, std::size_t characters);

/// An entry of a legend: gnuplot style (`with lines lc rgb 'red'`) and title.
struct Entry {
  std::string look;
  std::string title{};
};

/// The plots in one pair of axes. The legend belongs to the sheet.
struct Panel {
  std::string title{};
  std::string axes{};  ///< commands before the plot: ranges, tics, labels
  int height = 0;      ///< points; 0: the height of the sheet

  /// Adds a block of data. \param columns separated by blanks, optionally after `name: `. \returns its number
  /// A block without rows gets a row of NaN, so that it can be drawn.
  std::size_t block(std::string_view columns, const std::vector<std::string>& rows);
  /// Draws a block, or a function: `using 1:2 with lines`, `x with lines`. Later plots cover earlier ones.
  void draw(std::size_t block, std::string_view how);
  /// Adds a block and draws it, unless it has no rows.
  void draw_block(std::string_view columns, const std::vector<std::string>& rows, std::string_view how);
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
  /// Points around the plot, for axes and titles, and under all panels.
  int left = 84, right = 14, top = 30, bottom = 56, foot = 26;

  /// Widens every panel for labels below and beside its axes. \param below, beside points
  void make_room(int below, int beside);
  [[nodiscard]] Drawing drawing() const;
};

/// A rectangle, and further columns of its row.
struct Box {
  double x_low = 0.0, x_high = 0.0, y_low = 0.0, y_high = 0.0;
  std::string more{};
};
/// Draws filled boxes, unless there are none. Columns: x, y, x_low, x_high, y_low, y_high, more.
void draw_boxes(Panel& panel, const std::string& name, const std::vector<Box>& boxes,
                const std::string& look);

/// A text at a point, and further columns of its row.
struct Text {
  double x = 0.0, y = 0.0;
  std::string text, more{};
};
void draw_texts(Panel& panel, const std::vector<Text>& texts, const std::string& look);

/// One part of a stacked bar.
struct Part {
  std::string_view name, colour;
  std::vector<double> heights{};  ///< one per bar
};
struct StackedBar {
  double x = 0.0, half_width = 0.0;
  std::string label{};  ///< above the bar
};
/// Draws the parts on each other, a block each, and the labels. \returns the height of the tallest bar
double draw_stack(Panel& panel, const std::vector<StackedBar>& bars, const std::vector<Part>& parts,
                  const std::string& label_look = "offset 0,0.6");
std::vector<Entry> stack_legend(const std::vector<Part>& parts);

}  // namespace stepcast::style

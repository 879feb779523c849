#include "plots/style.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace stepcast::style {
namespace {

constexpr int kFoot = 26;                           // caption
constexpr int kLeft = 84, kTop = 30, kBottom = 56;  // inside a panel
constexpr int kSmallestWidth = 640;

}  // namespace

std::string_view series_colour(std::size_t i) {
  constexpr std::array<std::string_view, 7> colours = {kBlue, kRed, kGreen, kYellow, kPurple, kCyan, kGrey};
  return colours[i % colours.size()];
}

std::string_view many_series_colour(std::size_t i) {
  constexpr std::array<std::string_view, 10> colours = {"#332288", "#CC6677", "#117733", "#DDCC77",
                                                        "#AA4499", "#88CCEE", "#882255", "#44AA99",
                                                        "#999933", "#000000"};
  return colours[i % colours.size()];
}

std::string pale(std::string_view colour) { return "#90" + std::string(colour.substr(1)); }

std::string quote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

std::string cell(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n')
      quoted += "\\n";
    else
      quoted += c == '"' ? '\'' : c;
  }
  return quoted + "\"";
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

int head_height(std::size_t entries, std::size_t longest, int width) {
  constexpr double kCharacter = 7.2, kSample = 46.0, kRow = 14.0;  // as gnuplot reckons in the legend's font
  constexpr std::size_t kRows = 2;                                 // in kHeadHeight
  const double column = kSample + kCharacter * static_cast<double>(longest);
  const auto columns = static_cast<std::size_t>(std::max(1.0, (width - kLeft) / column));
  const std::size_t rows = (entries + columns - 1) / columns;
  return kHeadHeight + (rows > kRows ? static_cast<int>(kRow * static_cast<double>(rows - kRows)) : 0);
}

std::string head(std::string_view title, const std::vector<std::string>& legend, int width, int height,
                 int left, int head_height) {
  const double w = width, h = height;
  // The legend is a plot of its own without axes: a key inside a panel would be as narrow as the panel.
  std::string text = "set multiplot\nset label 1 " + quote(title) + " at screen " + number(left / w) + "," +
                     number(1.0 - 20.0 / h) + " left font ',14'\nset lmargin at screen " + number(left / w) +
                     "\nset rmargin at screen 0.995\nset tmargin at screen " + number(1.0 - 32.0 / h) +
                     "\nset bmargin at screen " + number(1.0 - head_height / h) +
                     "\nset key inside left top horizontal samplen 1.5 spacing 1.0 Left reverse font ',9'\n"
                     "unset border\nunset tics\nunset grid\nplot [0:1][0:1] ";
  for (std::size_t i = 0; i < legend.size(); ++i) text += (i == 0 ? "NaN " : ", NaN ") + legend[i];
  return text + "\nunset label 1\nunset label 2\nunset key\nset border 3\n" + std::string(kTics) +
         "set grid ytics\n";
}

Panels::Panels(std::size_t count, std::size_t columns, PanelSize size)
    : count_(std::max<std::size_t>(count, 1)),
      columns_(std::min(columns, count_)),
      rows_((count_ + columns_ - 1) / columns_),
      size_(size) {}

int Panels::width() const { return std::max(kSmallestWidth, static_cast<int>(columns_) * size_.width); }
int Panels::height() const { return size_.head + kFoot + static_cast<int>(rows_) * size_.height; }

std::string Panels::begin(std::string_view title, const std::vector<std::string>& legend) const {
  return head(title, legend, width(), height(), kLeft, size_.head);
}

std::string Panels::panel(std::size_t i, std::string_view title) const {
  const double w = width(), h = height();
  const double panel_width = w / static_cast<double>(columns_);
  const double left = panel_width * static_cast<double>(i % columns_);
  const std::size_t row = i / columns_;
  const double top = h - size_.head - size_.height * static_cast<double>(row);
  const auto margin = [](const char* which, double at) {
    return std::string("set ") + which + "margin at screen " + number(at) + "\n";
  };
  return margin("l", (left + kLeft) / w) + margin("r", (left + panel_width - size_.right) / w) +
         margin("t", (top - kTop) / h) + margin("b", (top - size_.height + kBottom) / h) + "set title " +
         quote(title) + " offset 0,-0.4 font ',11'\n";
}

std::string Panels::end() const { return "unset multiplot\n"; }

}  // namespace stepcast::style

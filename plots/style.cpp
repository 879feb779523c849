#include "plots/style.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace stepcast::style {
namespace {

constexpr int kPanelWidth = 470, kPanelHeight = 300;
constexpr int kFoot = 26;                                        // caption
constexpr int kLeft = 84, kRight = 14, kTop = 30, kBottom = 56;  // inside a panel
constexpr int kSmallestWidth = 640;

}  // namespace

std::string_view series_colour(std::size_t i) {
  constexpr std::array<std::string_view, 7> colours = {kBlue, kRed, kGreen, kYellow, kPurple, kCyan, kGrey};
  return colours[i % colours.size()];
}

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

std::string head(std::string_view title, const std::vector<std::string>& legend, int width, int height,
                 int left) {
  const double w = width, h = height;
  // The legend is a plot of its own without axes: a key inside a panel would be as narrow as the panel.
  std::string text = "set multiplot\nset label 1 " + quote(title) + " at screen " + number(left / w) + "," +
                     number(1.0 - 20.0 / h) + " left font ',14'\nset lmargin at screen " + number(left / w) +
                     "\nset rmargin at screen 0.995\nset tmargin at screen " + number(1.0 - 32.0 / h) +
                     "\nset bmargin at screen " + number(1.0 - kHeadHeight / h) +
                     "\nset key inside left top horizontal samplen 1.5 spacing 1.0 Left reverse font ',9'\n"
                     "unset border\nunset tics\nunset grid\nplot [0:1][0:1] ";
  for (std::size_t i = 0; i < legend.size(); ++i) text += (i == 0 ? "NaN " : ", NaN ") + legend[i];
  return text + "\nunset label 1\nunset label 2\nunset key\nset border 3\n" + std::string(kTics) +
         "set grid ytics\n";
}

Panels::Panels(std::size_t count, std::size_t columns)
    : count_(std::max<std::size_t>(count, 1)),
      columns_(std::min(columns, count_)),
      rows_((count_ + columns_ - 1) / columns_) {}

int Panels::width() const { return std::max(kSmallestWidth, static_cast<int>(columns_) * kPanelWidth); }
int Panels::height() const { return kHeadHeight + kFoot + static_cast<int>(rows_) * kPanelHeight; }

std::string Panels::begin(std::string_view title, const std::vector<std::string>& legend) const {
  return head(title, legend, width(), height(), kLeft);
}

std::string Panels::panel(std::size_t i, std::string_view title) const {
  const double w = width(), h = height();
  const double panel_width = w / static_cast<double>(columns_);
  const double left = panel_width * static_cast<double>(i % columns_);
  const std::size_t row = i / columns_;
  const double top = h - kHeadHeight - kPanelHeight * static_cast<double>(row);
  const auto margin = [](const char* which, double at) {
    return std::string("set ") + which + "margin at screen " + number(at) + "\n";
  };
  return margin("l", (left + kLeft) / w) + margin("r", (left + panel_width - kRight) / w) +
         margin("t", (top - kTop) / h) + margin("b", (top - kPanelHeight + kBottom) / h) + "set title " +
         quote(title) + " offset 0,-0.4 font ',11'\n";
}

std::string Panels::end() const { return "unset multiplot\n"; }

}  // namespace stepcast::style

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/error.hpp"
#include "plots/chart.hpp"
#include "plots/heatmap.hpp"
#include "plots/sheet.hpp"

/// Data of the figures of studies.
namespace stepcast::study_figures_test {
namespace {

HeatSheet heat() {
  return {.title = "t",
          .x_label = "x",
          .y_label = "y",
          .value_label = "v",
          .log_scale = false,
          .more_is_better = true,
          .cells = {{"", "1", "a", 10.0, "10"},
                    {"", "2", "a", 20.0, "20"},
                    {"", "1", "b", 90.0, "90", false},
                    {"", "2", "b"}},
          .text_of = [](double value) { return std::to_string(static_cast<int>(value)); }};
}

std::string block_of(const Drawing& drawing, const std::string& name) {
  const std::size_t at = drawing.data.find("# " + name);
  if (at == std::string::npos) return "none";
  const std::size_t start = drawing.data.find('\n', at) + 1;
  return drawing.data.substr(start, drawing.data.find("\n\n", start) - start + 1);
}

std::vector<std::string> labels(const std::vector<ChartPoint>& points) {
  std::vector<std::string> result;
  for (const ChartPoint& point : points) result.push_back(point.label);
  return result;
}

Chart front(bool less_x, bool less_y) {
  Chart chart{.title = "t", .x_label = "x", .y_label = "y", .front = Front{less_x, less_y}};
  for (const auto& [label, x, y, fits] : {std::tuple("a", 1.0, 9.0, true),
                                          {"b", 2.0, 5.0, true},
                                          {"c", 3.0, 6.0, true},  // b beats it
                                          {"d", 4.0, 1.0, true},
                                          {"e", 4.0, 2.0, true},   // d beats it
                                          {"f", 0.5, 0.5, false},  // does not fit
                                          {"g", 2.0, 5.0, true}})  // as good as b
    chart.points.push_back({.panel = "", .series = "", .label = label, .x = x, .y = y, .fits = fits});
  return chart;
}

}  // namespace

TEST_CASE("a heatmap colours cells that fit, hatches the others and frames the best", "[plots]") {
  const Drawing drawing = draw_heatmap(heat());
  // Cividis from 0,34,78 to 254,232,56; 90 does not fit and is no part of the scale.
  CHECK(block_of(drawing, "cells") == "0 0 -0.5 0.5 -0.5 0.5 8782 10\n1 0 0.5 1.5 -0.5 0.5 16705592 20\n");
  CHECK(block_of(drawing, "does not fit") == "0 1 -0.5 0.5 0.5 1.5\n");
  CHECK(block_of(drawing, "without answer") == "1 1 0.5 1.5 0.5 1.5\n");
  CHECK(block_of(drawing, "best") == "1 0 0.53 1.47 -0.47 0.47\n");
  HeatSheet less = heat();
  less.more_is_better = false;
  CHECK(block_of(draw_heatmap(less), "best") == "0 0 -0.47 0.47 -0.47 0.47\n");
  less.cells = {{"", "1", "a"}};
  CHECK_THROWS_AS(draw_heatmap(less), InputError);
}

TEST_CASE("a front holds what no other point beats, whichever way is better", "[plots]") {
  using Labels = std::vector<std::string>;
  CHECK(labels(front_of(front(true, true), "")) == Labels{"a", "b", "g", "d"});
  CHECK(labels(front_of(front(true, false), "")) == Labels{"a"});
  CHECK(labels(front_of(front(false, true), "")) == Labels{"d"});
  CHECK(labels(front_of(front(false, false), "")) == Labels{"a", "c", "e"});
  CHECK(front_of(front(true, true), "other").empty());
  const Drawing drawing = draw_chart(front(true, true));
  CHECK(block_of(drawing, "front") == "1 9\n2 5\n2 5\n4 1\n");
  REQUIRE(drawing.table.size() == 5);
  std::string numbers;
  for (const auto& row : drawing.table) numbers += row.front() + row.at(2) + " ";
  CHECK(numbers == "frontpoint 1a 2b 2g 3d ");
  Chart many{.title = "t", .x_label = "x", .y_label = "y", .front = Front{true, true}};
  for (int i = 0; i < 18; ++i)
    many.points.push_back({.panel = "", .series = "", .label = "p", .x = 1.0 * i, .y = -1.0 * i});
  many.points.push_back(many.points.back());
  const Drawing crowded = draw_chart(many);
  CHECK(crowded.table.at(16).front() == "16");
  for (const std::size_t beyond : {17U, 18U, 19U}) CHECK(crowded.table.at(beyond).front().empty());
  CHECK_THAT(crowded.script, Catch::Contains("title '16  p'"));
  CHECK(block_of(drawing, " does not fit") == "0.5 0.5 \"f\"\n");
  Chart none = front(true, true);
  for (ChartPoint& point : none.points) point.fits = false;
  CHECK_THROWS_AS(draw_chart(none), InputError);
}

TEST_CASE("curves have a fitted curve and a target line", "[plots]") {
  Chart sheet{.title = "t",
              .x_label = "x",
              .y_label = "y",
              .places = true,
              .curves = true,
              .target = 0.8,
              .law = "law"};
  sheet.points = {
      {"", "s", "", "1", 0.0, 1.0, 1.0}, {"", "s", "", "2", 0.0, 0.7, 0.75}, {"", "u", "", "1", 0.0, 0.5}};
  const Drawing drawing = draw_chart(sheet);
  CHECK(block_of(drawing, "s, law") == "0 1\n1 0.75\n");
  CHECK(block_of(drawing, "u, law") == "none");
  CHECK(block_of(drawing, "s:") == "0 1\n1 0.7\n");
  CHECK_THAT(drawing.script, Catch::Contains("plot 0.8 with lines") && Catch::Contains("title 'target 0.8'"));
}

TEST_CASE("points of one place are side by side by series, with the median of all", "[plots]") {
  Chart chart{.title = "t", .x_label = "x", .y_label = "y", .places = true};
  chart.points = {
      {"", "s", "", "near", 0.0, 1.0}, {"", "u", "", "near", 0.0, 3.0}, {"", "u", "", "far", 0.0, 4.0}};
  const Drawing drawing = draw_chart(chart);
  CHECK(block_of(drawing, "median") == "0 2\n1 4\n");
  CHECK(block_of(drawing, "s:") == "-0.175 1\n");
  CHECK(block_of(drawing, "u:") == "0.175 3\n1.175 4\n");
}

TEST_CASE("measured values are markers over curves, and a diagonal has equal axes", "[plots]") {
  Chart chart{.title = "t",
              .x_label = "x",
              .y_label = "y",
              .curves = true,
              .markers = "measured",
              .diagonal = "equal"};
  chart.points = {
      {.panel = "", .series = "s", .label = "", .x = 1.0, .y = 2.0, .marker = Estimate{3.0, 3.0, 3.0}},
      {.panel = "", .series = "s", .label = "", .x = 2.0, .y = 4.0}};
  const Drawing drawing = draw_chart(chart);
  CHECK(block_of(drawing, "s, measured") == "1 3 3 3\n");
  CHECK_THAT(drawing.script, Catch::Contains("x with lines") && Catch::Contains("title 'measured'") &&
                                 Catch::Contains("set xrange [0.9:2.1]") &&
                                 Catch::Contains("set yrange [0:4.32]"));
}

TEST_CASE("logarithmic tics are at 1, 2 and 5 times powers of ten, fewer on a short axis", "[plots]") {
  CHECK(style::log_tics(0.4, 12.0) == "('0.5' 0.5, '1' 1, '2' 2, '5' 5, '10' 10)");
  CHECK(style::log_tics(0.7, 1.6) == "('0.8' 0.8, '1' 1, '1.2' 1.2, '1.5' 1.5)");
}

TEST_CASE("a figure can be a PDF, and text for a terminal", "[plots]") {
  const auto path = std::filesystem::temp_directory_path() / "stepcast_study_figures_test.pdf";
  render(draw_heatmap(heat()), path, "caption", true);
  CHECK(std::filesystem::file_size(path) > 1000);
  for (const char* extension : {".pdf", ".gp", ".dat"})
    std::filesystem::remove(std::filesystem::path(path).replace_extension(extension));
  const std::string text = render_text(draw_chart(front(true, true)), "caption", false);
  CHECK_THAT(text, Catch::Contains("no point beats these in both") && !Catch::Contains("<svg"));
  CHECK_THAT(render_text(draw_heatmap(heat()), "caption", true), Catch::Contains("<svg"));
}

}  // namespace stepcast::study_figures_test

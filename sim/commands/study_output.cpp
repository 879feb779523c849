#include "sim/commands/study_output.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <iostream>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "models/model.hpp"
#include "plots/curves.hpp"
#include "plots/heatmap.hpp"
#include "plots/pareto.hpp"
#include "sim/cli/command.hpp"
#include "sim/study/amdahl.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

using Rows = std::map<std::string, StudyRow>;

constexpr const char* kOnAmdahl =
    "Amdahl's law knows one number, the part that more ranks do not shorten, and takes it as constant. It "
    "misleads "
    "where that part grows with the ranks (latencies of a ring), jumps (where ranks leave a host for slower "
    "links) or "
    "hides (behind compute, until it is longer): trust it between the sizes it was fitted to, not beyond.";

/// `ddp, 25MiB` of the point's values for these names.
std::string words_of(const StudyPoint& point, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const std::string* value = point.assigned.find(name);
    if (value != nullptr) text += (text.empty() ? "" : ", ") + *value;
  }
  return text;
}

std::string word_of(const StudyPoint& point, const std::string& name) { return words_of(point, {name}); }

/// The same, with a name before what is but a number: `3-3-3-3, micro-batches 8`.
std::string named_words_of(const StudyPoint& point, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const std::string value = word_of(point, name);
    if (!value.empty())
      text += (text.empty() ? "" : ", ") + (number_in<double>(value) ? name + " " : "") + value;
  }
  return text;
}

std::vector<const StudyPoint*> drawn_points(const Study& study, const StudyFigure& figure) {
  std::vector<const StudyPoint*> points;
  for (const StudyPoint& point : study.points)
    if (!figure.where || figure.where->holds(point.assigned)) points.push_back(&point);
  return points;
}

std::optional<double> value_of(const Rows& rows, const StudyPoint& point, const std::string& column) {
  const auto& values = rows.at(point.key).values;
  const auto found = values.find(column);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

[[noreturn]] void refuse_several(const Study& study, const StudyFigure& figure, const std::string& where) {
  throw InputError(study.path + ": plot: " + figure.file + ": several points have " + where +
                   "; name what else they differ in under series, panels or where");
}

/// A column as an axis: in a unit that keeps numbers short.
struct Axis {
  std::string label;
  double factor = 1.0;
};
Axis axis_of(const std::string& column, double most) {
  const StudyColumn& known = study_column(column);
  const auto in_unit = [&](const char* base, const std::vector<std::pair<double, std::string>>& units) {
    Axis axis{known.label, 1.0};
    const std::string suffix = std::string(" (") + base + ")";
    if (!axis.label.ends_with(suffix)) return axis;
    for (const auto& [unit, name] : units)
      if (most >= unit || unit == units.back().first)
        return Axis{axis.label.substr(0, axis.label.size() - suffix.size()) + " (" + name + ")", 1.0 / unit};
    return axis;
  };
  if (column.ends_with("_s"))
    return in_unit("s", {{86400.0, "days"}, {3600.0, "hours"}, {1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
  return in_unit("bytes", {{kGibi, "GiB"}, {kMebi, "MiB"}, {kKibi, "KiB"}, {1.0, "bytes"}});
}
Axis axis_of(const std::string& column, const Rows& rows, const std::vector<const StudyPoint*>& points) {
  double most = 0.0;
  for (const StudyPoint* point : points)
    most = std::max(most, std::abs(value_of(rows, *point, column).value_or(0.0)));
  return axis_of(column, most);
}

struct StudyDrawing {
  Drawing drawing;
  std::string caption, note;
};

/// Fits Amdahl's law to each curve of the sheet, whose `points` these are, and sets what it says.
void add_amdahl(CurveSheet& sheet, const StudyFigure& figure, const Rows& rows,
                const std::vector<const StudyPoint*>& points, StudyDrawing& drawn) {
  sheet.law = "Amdahl's law, fitted";
  std::vector<std::pair<std::pair<std::string, std::string>, std::vector<RanksAndTime>>> curves;
  std::vector<RanksAndTime> times;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto ranks = value_of(rows, *points[i], "ranks");
    const auto rate = value_of(rows, *points[i], "throughput_samples_per_s");
    times.push_back(ranks && rate && *rate > 0.0 ? RanksAndTime{*ranks, 1.0 / *rate} : RanksAndTime{});
    if (times.back().ranks <= 0.0) continue;
    const std::pair key{sheet.points[i].panel, sheet.points[i].series};
    auto curve =
        std::find_if(curves.begin(), curves.end(), [&](const auto& one) { return one.first == key; });
    if (curve == curves.end()) curve = curves.insert(curves.end(), {key, {}});
    curve->second.push_back(times.back());
  }
  drawn.drawing.table = {{"curve", "serial fraction", "limit of the speed-up"}};
  for (const auto& [curve, of_curve] : curves) {
    const std::optional<AmdahlFit> fit = fit_amdahl(of_curve);
    if (!fit) continue;
    const double serial = fit->serial_fraction();
    const std::string name =
        curve.first + (curve.first.empty() || curve.second.empty() ? "" : ", ") + curve.second;
    drawn.drawing.table.push_back(
        {name, percent_text(serial, 2), serial > 0.0 ? short_number(1.0 / serial) : "none"});
    std::string& subtitle = sheet.subtitles[curve.first];
    subtitle += (subtitle.empty() ? "serial fraction: " : ", ") +
                (curve.second.empty() ? "" : curve.second + " ") + percent_text(serial);
    for (std::size_t i = 0; i < points.size(); ++i) {
      CurvePoint& point = sheet.points[i];
      if (point.panel != curve.first || point.series != curve.second || times[i].ranks <= 0.0) continue;
      const double slower = fit->time_s(times[i].ranks) / times[i].sample_time_s;
      point.law = figure.y == "step_time_s" ? point.y * slower : point.y / slower;
    }
  }
  drawn.note = kOnAmdahl;
}

StudyDrawing draw_study_curves(const Study& study, const StudyFigure& figure, const Rows& rows) {
  std::vector<const StudyPoint*> points = drawn_points(study, figure);
  std::erase_if(points, [&](const StudyPoint* point) {
    return !value_of(rows, *point, figure.y) || point->assigned.find(figure.x) == nullptr;
  });
  const Axis axis = axis_of(figure.y, rows, points);
  CurveSheet sheet{
      .title = study.title, .x_label = figure.x, .y_label = axis.label, .log_y = figure.log, .points = {}};
  if (figure.target) sheet.target = axis.factor * *figure.target;
  std::set<std::array<std::string, 3>> seen;
  for (const StudyPoint* point : points) {
    CurvePoint one{named_words_of(*point, figure.panels), named_words_of(*point, figure.series),
                   word_of(*point, figure.x), axis.factor * *value_of(rows, *point, figure.y)};
    if (!seen.insert({one.panel, one.series, one.x}).second)
      refuse_several(study, figure,
                     figure.x + " " + one.x + (one.series.empty() ? "" : ", " + one.series) +
                         (one.panel.empty() ? "" : ", " + one.panel));
    sheet.points.push_back(std::move(one));
  }
  StudyDrawing drawn{{}, axis.label + ", by " + figure.x, ""};
  if (figure.amdahl) add_amdahl(sheet, figure, rows, points, drawn);
  auto table = std::move(drawn.drawing.table);
  drawn.drawing = draw_curves(sheet);
  drawn.drawing.table = std::move(table);
  return drawn;
}

StudyDrawing draw_study_heatmap(const Study& study, const StudyFigure& figure, const Rows& rows) {
  const std::vector<const StudyPoint*> points = drawn_points(study, figure);
  const Axis axis = axis_of(figure.value, rows, points);
  HeatSheet sheet{
      .title = study.title,
      .x_label = figure.x,
      .y_label = figure.y,
      .value_label = axis.label,
      .log_scale = figure.log,
      .more_is_better = study_column(figure.value).better != Better::kLess,
      .cells = {},
      .text_of = [percent = figure.value == "efficiency" || figure.value == "bubble_fraction"](double value) {
        return percent ? percent_text(value, 0) : formatted("%.3g", value);
      }};
  std::set<std::array<std::string, 3>> seen;
  for (const StudyPoint* point : points) {
    if (point->assigned.find(figure.x) == nullptr || point->assigned.find(figure.y) == nullptr) continue;
    HeatCell cell{named_words_of(*point, figure.panels), word_of(*point, figure.x),
                  word_of(*point, figure.y)};
    if (const auto value = value_of(rows, *point, figure.value)) {
      cell.value = axis.factor * *value;
      cell.text = sheet.text_of(*cell.value);
    }
    cell.fits = value_of(rows, *point, "fits").value_or(1.0) > 0.0;
    if (!seen.insert({cell.panel, cell.x, cell.y}).second)
      refuse_several(study, figure,
                     figure.x + " " + cell.x + ", " + figure.y + " " + cell.y +
                         (cell.panel.empty() ? "" : ", " + cell.panel));
    sheet.cells.push_back(std::move(cell));
  }
  return {draw_heatmap(sheet), axis.label + ", by " + figure.x + " and " + figure.y, ""};
}

StudyDrawing draw_study_front(const Study& study, const StudyFigure& figure, const Rows& rows) {
  std::vector<const StudyPoint*> points = drawn_points(study, figure);
  std::erase_if(points, [&](const StudyPoint* point) {
    return !value_of(rows, *point, figure.x) || !value_of(rows, *point, figure.y);
  });
  const Axis x = axis_of(figure.x, rows, points), y = axis_of(figure.y, rows, points);
  ParetoSheet sheet{.title = study.title,
                    .x_label = x.label,
                    .y_label = y.label,
                    .less_x = study_column(figure.x).better != Better::kMore,
                    .less_y = study_column(figure.y).better != Better::kMore,
                    .log_axes = figure.log,
                    .points = {}};
  const std::vector<std::string>& labels = figure.labels.empty() ? study.names : figure.labels;
  for (const StudyPoint* point : points)
    sheet.points.push_back({named_words_of(*point, figure.panels), named_words_of(*point, figure.series),
                            named_words_of(*point, labels), x.factor * *value_of(rows, *point, figure.x),
                            y.factor * *value_of(rows, *point, figure.y),
                            value_of(rows, *point, "fits").value_or(1.0) > 0.0});
  return {draw_pareto(sheet), y.label + " against " + x.label + ", and what nothing beats in both", ""};
}

ReportFigure draw_study_figure(const Study& study, const StudyFigure& figure, const Rows& rows,
                               const std::string& folder, const std::string& footer) {
  static constexpr std::array kDraw{draw_study_curves, draw_study_heatmap, draw_study_front};
  StudyDrawing drawn = kDraw.at(static_cast<std::size_t>(figure.kind))(study, figure, rows);
  const std::filesystem::path path = std::filesystem::path(folder) / figure.file;
  render(drawn.drawing, path, footer, true);
  std::cout << path.string() << '\n';
  return {figure.file, drawn.caption,
          path.extension() == ".svg" ? read_file(path) : render_text(drawn.drawing, footer, true),
          drawn.drawing.table, drawn.note};
}

/// Of a model of sequences.
double tokens_per_sample(const std::string& model) {
  static std::map<std::string, double> known;
  const auto [entry, is_new] = known.try_emplace(model, 0.0);
  if (!is_new) return entry->second;
  const Model loaded = load_model(model);
  if (loaded.input_kind == "tokens" && !loaded.input.empty())
    entry->second = static_cast<double>(loaded.input.front()) * loaded.context;
  return entry->second;
}

}  // namespace

PointFacts point_facts(const StudyPoint& point, const Result& result) {
  PointFacts facts;
  if (const std::string& device = result.configuration.device; !device.empty()) {
    facts.memory = device_model(device).memory;
    facts.power = device_model(device).power;
  }
  if (const std::string* model = point.assigned.find("model"))
    facts.tokens_per_sample = tokens_per_sample(*model);
  return facts;
}

void write_study_output(const Study& study, const Rows& rows, const std::string& folder,
                        const std::string& verdicts, const std::vector<ReportFigure>& evidence) {
  StudyReport report{
      .context = make_run_context("", command_line()), .verdicts = {}, .figures = evidence, .problems = {}};
  std::istringstream lines(verdicts);
  for (std::string line; std::getline(lines, line);) report.verdicts.push_back(line);
  const std::string footer =
      "stepcast " + report.context.stepcast_version + " (" + report.context.git_revision + "), predicted";
  std::exception_ptr problem;
  for (const StudyFigure& figure : study.figures) {
    try {
      report.figures.push_back(draw_study_figure(study, figure, rows, folder, footer));
    } catch (const Error& error) {  // the page shows the rest
      report.problems.push_back(figure.file + ": " + error.what());
      problem = std::current_exception();
    }
  }
  const std::filesystem::path page = std::filesystem::path(folder) / "report.html";
  write_file(page, report_html(study, rows, report), true);
  std::cout << page.string() << '\n';
  if (problem) std::rethrow_exception(problem);
}

}  // namespace stepcast

#include "sim/commands/study_output.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/model.hpp"
#include "plots/chart.hpp"
#include "plots/heatmap.hpp"
#include "sim/cli/command.hpp"
#include "sim/evidence/errors.hpp"
#include "sim/replay/memory.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

constexpr const char* kOnAmdahl =
    "Amdahl's law has one parameter, the fraction that more ranks do not shorten, and takes it as constant. "
    "It misleads if that fraction grows with the ranks (latencies of a ring), jumps (ranks leave a host for "
    "slower links) or is hidden (behind compute, until it is longer): trust it between the sizes it was "
    "fitted to, not beyond.";

/// `ddp, 25MiB`: the point's values of these names. Numbers have their names: `3-3-3-3, micro-batches 8`
std::string words_of(const StudyPoint& point, const std::vector<std::string>& names) {
  std::vector<std::string> words;
  for (const std::string& name : names)
    if (const std::string* value = point.assigned.find(name); value != nullptr && !value->empty())
      words.push_back((number_in<double>(*value) ? name + " " : "") + *value);
  return joined(words);
}

using Points = std::vector<const StudyPoint*>;

/// Points of a figure that have a value of each of these names.
Points drawn_points(const Study& study, const StudyFigure& figure, const std::vector<std::string>& names) {
  Points points;
  for (const StudyPoint& point : study.points)
    if ((!figure.where || figure.where->holds(point.assigned)) &&
        std::ranges::all_of(names,
                            [&](const std::string& name) { return point.assigned.find(name) != nullptr; }))
      points.push_back(&point);
  return points;
}

std::optional<double> value_of(const StudyRows& rows, const StudyPoint& point, const std::string& column) {
  return rows.at(point.key).value(column);
}

/// Name and value, or a value of series and panels without a name.
using Place = std::vector<std::pair<std::string, std::string>>;

/// Adds the place of a point. \throws InputError if another point of the figure has it
void take_place(const Place& place, std::set<Place>& taken, const Study& study, const StudyFigure& figure) {
  if (taken.insert(place).second) return;
  std::vector<std::string> words;
  for (const auto& [name, value] : place)
    if (!value.empty()) words.push_back(name + (name.empty() ? "" : " ") + value);
  throw InputError(
      "{}: plot: {}: several points have {}; name what else they differ in under series, panels or where",
      study.path, figure.file, joined(words));
}

/// A column as an axis, in a unit that keeps numbers short.
struct Axis {
  std::string label;
  double factor = 1.0;
};
Axis axis_of(const std::string& column, const StudyRows& rows, const Points& points) {
  const double largest = largest_of(points, [&](const StudyPoint* point) {
    return std::abs(value_of(rows, *point, column).value_or(0.0));
  });
  const StudyColumn& known = study_column(column);
  const auto in_unit = [&](const std::string& base,
                           const std::vector<std::pair<double, std::string>>& units) {
    const std::string suffix = " (" + base + ")";
    if (!known.label.ends_with(suffix)) return Axis{known.label};
    const auto unit = std::ranges::find_if(units, [&](const auto& one) { return largest >= one.first; });
    const auto& [size, name] = unit == units.end() ? units.back() : *unit;
    const auto quantity = std::string_view(known.label).substr(0, known.label.size() - suffix.size());
    return Axis{fmt::format("{} ({})", quantity, name), 1.0 / size};
  };
  if (column.ends_with("_s"))
    return in_unit("s", {{86400.0, "days"}, {3600.0, "hours"}, {1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
  return in_unit("bytes", {{kGibi, "GiB"}, {kMebi, "MiB"}, {kKibi, "KiB"}, {1.0, "bytes"}});
}

using TimedPoint = std::pair<ChartPoint*, RanksAndTime>;  // of a curve

/// Fits Amdahl's law to each curve of the chart, made of `points`. \returns a row per curve
std::vector<std::vector<std::string>> add_amdahl(Chart& chart, const StudyFigure& figure,
                                                 const StudyRows& rows, const Points& points) {
  chart.law = "Amdahl's law, fitted";
  std::vector<TimedPoint> timed;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto ranks = value_of(rows, *points[i], "ranks");
    const auto rate = value_of(rows, *points[i], "throughput_samples_per_s");
    if (ranks && rate && *rate > 0.0) timed.emplace_back(&chart.points[i], RanksAndTime{*ranks, 1.0 / *rate});
  }
  const auto curve_of = [](const TimedPoint& one) { return std::pair(one.first->panel, one.first->series); };
  std::vector<std::vector<std::string>> table{{"curve", "serial fraction", "limit of the speed-up"}};
  for (const auto& [curve, members] : grouped(timed, curve_of)) {
    const auto fit = fit_amdahl(transformed(members, [](const TimedPoint* one) { return one->second; }));
    if (!fit) continue;
    const auto& [panel, series] = curve;
    const double serial = fit->serial_fraction();
    table.push_back({panel + (panel.empty() || series.empty() ? "" : ", ") + series, percent_text(serial, 2),
                     serial > 0.0 ? short_number(1.0 / serial) : "none"});
    std::string& subtitle = chart.subtitles[panel];
    subtitle += (subtitle.empty() ? "serial fraction: " : ", ") + (series.empty() ? "" : series + " ") +
                percent_text(serial);
    for (const TimedPoint* one : members) {
      const double slower = fit->time_s(one->second.ranks) / one->second.sample_time_s, y = *one->first->y;
      one->first->law = figure.y == "step_time_s" ? y * slower : y / slower;
    }
  }
  return table;
}

/// \param page caption and note are set
Drawing draw_study_chart(const Study& study, const StudyFigure& figure, const StudyRows& rows,
                         ReportFigure& page) {
  Points points =
      drawn_points(study, figure, figure.x_is_name ? std::vector{figure.x} : std::vector<std::string>{});
  std::erase_if(points, [&](const StudyPoint* point) {
    return !value_of(rows, *point, figure.y) || (!figure.x_is_name && !value_of(rows, *point, figure.x));
  });
  const Axis y = axis_of(figure.y, rows, points);
  const Axis x = figure.x_is_name ? Axis{figure.x} : axis_of(figure.x, rows, points);
  Chart chart{.title = study.title,
              .x_label = x.label,
              .y_label = y.label,
              .places = figure.x_is_name,
              .curves = figure.kind == StudyFigureKind::kCurves,
              .log = figure.log,
              .markers = figure.markers.empty() ? "" : study_column(figure.markers).label,
              .diagonal = figure.diagonal ? "equal" : ""};
  if (figure.target) chart.target = y.factor * *figure.target;
  const bool front = figure.kind == StudyFigureKind::kPareto;
  if (front)
    chart.front =
        Front{study_column(figure.x).better != Better::kMore, study_column(figure.y).better != Better::kMore};
  const std::vector<std::string>& labels = figure.labels.empty() ? study.names : figure.labels;
  std::set<Place> taken;
  for (const StudyPoint* point : points) {
    ChartPoint one{.panel = words_of(*point, figure.panels),
                   .series = words_of(*point, figure.series),
                   .label = front ? words_of(*point, labels) : "",
                   .place = figure.x_is_name ? point->assigned.value_or(figure.x, "") : "",
                   .x = figure.x_is_name ? 0.0 : x.factor * *value_of(rows, *point, figure.x),
                   .y = y.factor * *value_of(rows, *point, figure.y),
                   .fits = !front || value_of(rows, *point, "fits").value_or(1.0) > 0.0};
    if (!figure.markers.empty())
      if (const auto marker = value_of(rows, *point, figure.markers))
        one.marker = estimate_of({y.factor * *marker});
    if (chart.curves)
      take_place({{figure.x, one.place}, {"", one.series}, {"", one.panel}}, taken, study, figure);
    chart.points.push_back(std::move(one));
  }
  page.caption = y.label + (figure.x_is_name ? ", by " + figure.x : " against " + x.label);
  if (front) page.caption += ", and the points that no other beats in both";
  std::vector<std::vector<std::string>> table;
  if (figure.amdahl) {
    table = add_amdahl(chart, figure, rows, points);
    page.note = kOnAmdahl;
  }
  Drawing drawing = draw_chart(chart);
  if (!table.empty()) drawing.table = std::move(table);
  return drawing;
}

Drawing draw_study_heatmap(const Study& study, const StudyFigure& figure, const StudyRows& rows,
                           ReportFigure& page) {
  const Axis axis = axis_of(figure.value, rows, drawn_points(study, figure, {}));
  HeatSheet sheet{
      .title = study.title,
      .x_label = figure.x,
      .y_label = figure.y,
      .value_label = axis.label,
      .log_scale = figure.log,
      .more_is_better = study_column(figure.value).better != Better::kLess,
      .cells = {},
      .text_of = [percent = figure.value == "efficiency" || figure.value == "bubble_fraction"](double value) {
        return percent ? percent_text(value, 0) : fmt::format("{:.3g}", value);
      }};
  std::set<Place> taken;
  for (const StudyPoint* point : drawn_points(study, figure, {figure.x, figure.y})) {
    HeatCell cell{words_of(*point, figure.panels), point->assigned.value_or(figure.x, ""),
                  point->assigned.value_or(figure.y, "")};
    if (const auto value = value_of(rows, *point, figure.value)) {
      cell.value = axis.factor * *value;
      cell.text = sheet.text_of(*cell.value);
    }
    cell.fits = value_of(rows, *point, "fits").value_or(1.0) > 0.0;
    take_place({{figure.x, cell.x}, {figure.y, cell.y}, {"", cell.panel}}, taken, study, figure);
    sheet.cells.push_back(std::move(cell));
  }
  page.caption = axis.label + ", by " + figure.x + " and " + figure.y;
  return draw_heatmap(sheet);
}

ReportFigure draw_study_figure(const Study& study, const StudyFigure& figure, const StudyRows& rows,
                               const std::string& folder, const std::string& footer) {
  const bool heatmap = figure.kind == StudyFigureKind::kHeatmap;
  ReportFigure page{.file = figure.file};
  const Drawing drawing = (heatmap ? draw_study_heatmap : draw_study_chart)(study, figure, rows, page);
  const std::filesystem::path path = std::filesystem::path(folder) / figure.file;
  render(drawing, path, footer, true);
  std::cout << path.string() << '\n';
  page.svg = path.extension() == ".svg" ? read_file(path) : render_text(drawing, footer, true);
  page.table = drawing.table;
  return page;
}

/// Runs another command in this process.
void call(const std::string& command, const std::vector<std::string>& words) {
  static_cast<void>(commands().find(command).run(parse_words(command, words)));
}

ReportFigure draw(const StudyExperiment& experiment, std::vector<std::string> words,
                  const std::string& file) {
  const std::string path = experiment.path(file), figure = words.front();
  append(words, {"-o", path, "--force"});
  call("plot", words);
  return {file, figure, file.ends_with(".svg") ? read_file(path) : "", {}, ""};
}

/// Words of `stepcast plot`; the figure's name alone if no point was run.
std::vector<std::string> figure_words(const StudyExperiment& experiment, const EvidenceFigure& figure) {
  std::vector<std::string> words{figure.figure};
  for (const bool baselines : {false, true})
    for (const StudyPoint* point : experiment.points_run) {
      std::vector<std::string> runs = experiment.run_paths(*point);
      if (runs.empty() || experiment.is_baseline(*point) != baselines ||
          (baselines && !figure.with_baselines) || (figure.where && !figure.where->holds(point->assigned)))
        continue;
      if (figure.one_launch) runs.resize(1);
      words.push_back(experiment.predicted_path(*point));
      append(words, runs);
    }
  if (words.size() > 1) append(words, figure.words);
  return words;
}

/// How much slower than during the traces the machine was, measured by the traced models themselves.
void print_slowdowns(const StudyExperiment& experiment) {
  Table table({"model", "reference steps over the trace's, by launch"});
  std::set<std::string> seen;
  for (const StudyPoint* point : experiment.points_run) {
    const std::vector<double> slower = experiment.slowdowns(*point);
    if (slower.empty() || !seen.insert(point->model).second) continue;
    const auto texts = transformed(slower, [](double one) { return fmt::format("{:.2f}", one); });
    table.add({point->model, joined(texts)});
  }
  if (!seen.empty()) std::cout << '\n' << table.text();
}

/// Errors of the step time by values of the names in `compare: groups`.
void print_groups(const StudyExperiment& experiment, const std::vector<std::string>& names,
                  const StudyRows& rows) {
  std::vector<ForecastError> errors;
  for (const StudyPoint* point : experiment.points_run) {
    const auto error = rows.at(point->key).value("relative_error");
    if (!error || experiment.is_baseline(*point)) continue;
    const auto value = [&](const std::string& name) { return point->assigned.value_or(name, "-"); };
    errors.push_back({*error, point->name, joined(transformed(names, value))});
  }
  std::cout << "\nErrors of the step time:\n\n" << errors_table(joined(names), errors);
}

/// 0 for models whose samples are not sequences.
double tokens_per_sample(const std::string& model) {
  static std::map<std::string, double> known;
  return cached(known, model, [&] {
    const Model loaded = load_model(model);
    return loaded.tokens_per_sample() * loaded.parallel.context;
  });
}

}  // namespace

PointFacts point_facts(const StudyPoint& point, const Result& result) {
  PointFacts facts;
  if (const std::string& device = result.configuration.device; !device.empty()) {
    facts.memory = (1.0 - kKeptMemory) * device_model(device).memory;
    facts.power = device_model(device).power;
  }
  if (const std::string* model = point.assigned.find("model"))
    facts.tokens_per_sample = tokens_per_sample(*model);
  return facts;
}

void compare_points(const StudyExperiment& experiment, const std::vector<const StudyPoint*>& points,
                    const std::string& output) {
  constexpr std::size_t kMaxDetailed = 40;  // cases whose phases and speed-ups are printed
  std::vector<const StudyPoint*> compared = points;
  std::erase_if(compared, [&](const StudyPoint* point) { return experiment.is_baseline(*point); });
  const ExperimentCases own = cases_of(experiment, compared);
  const ExperimentCases all = cases_of(experiment, points);
  const std::vector<Speedup> scaling = speedups(all.cases);
  const bool detailed = own.cases.size() <= kMaxDetailed;
  if (!own.cases.empty())
    std::cout << (detailed ? comparison_text(own.cases, scaling, {})
                           : cases_text(worst_first(own.cases),
                                        {"strategy", "ranks", "measured", "low", "high", "predicted", "error",
                                         "in range", "better trivial predictors"}) +
                                 "\n" + errors_text(own.cases));
  if (output.empty()) return;
  nlohmann::json json = comparison_json(own.cases, scaling, {});
  json["context"] = make_run_context(kCompareSchema, command_line());
  write_file(experiment.path(output), to_file_text(json), true);
}

std::vector<ReportFigure> write_evidence(const Study& study, const StudyExperiment& experiment,
                                         const StudyRows& rows) {
  std::vector<ReportFigure> figures;
  if (study.parts->bench) {
    const std::string predicted = experiment.path("predicted-bench.json");
    const std::string measured = experiment.path("bench.json");
    std::cout << "\nCollectives, predicted from point-to-point messages alone:\n\n";
    call("compare", {predicted, measured, "-o", experiment.path("compare-bench.json"), "--force"});
    figures.push_back(draw(experiment, {"bandwidth", measured, predicted}, "bandwidth.svg"));
  }
  std::cout << "\nTraining steps, predicted before they ran:\n\n";
  compare_points(experiment, experiment.points_run, "compare.json");
  if (!study.parts->groups.empty()) print_groups(experiment, study.parts->groups, rows);
  print_slowdowns(experiment);
  for (const EvidenceFigure& figure : study.parts->figures)
    if (const std::vector<std::string> words = figure_words(experiment, figure); words.size() > 1)
      figures.push_back(draw(experiment, words, figure.file));
  std::erase_if(figures, [](const ReportFigure& figure) { return figure.svg.empty(); });
  return figures;
}

void write_study_output(const Study& study, const StudyRows& rows, const std::string& folder,
                        const std::string& verdicts, const std::vector<ReportFigure>& evidence) {
  StudyReport report{.context = make_run_context("", command_line()),
                     .verdicts = split(verdicts),
                     .figures = evidence,
                     .problems = {}};
  const std::string footer = "stepcast " + report.context.stepcast.text() + ", predicted";
  std::exception_ptr problem;
  const bool lacks_runs = study.parts && std::ranges::none_of(study.points, [&](const StudyPoint& point) {
                            return value_of(rows, point, "measured_s").has_value();
                          });
  if (lacks_runs) std::cout << "no figure: no point was run\n";
  for (const StudyFigure& figure : lacks_runs ? std::vector<StudyFigure>{} : study.figures) {
    try {
      report.figures.push_back(draw_study_figure(study, figure, rows, folder, footer));
    } catch (const Error& error) {  // the page contains the others
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

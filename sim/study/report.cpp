#include "sim/study/report.hpp"

#include <algorithm>
#include <ranges>
#include <regex>
#include <set>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kFastest = 10;    // points of the table at the top
constexpr std::size_t kMaxRows = 2000;  // of the table of all points
constexpr std::size_t kShort = 20;      // characters of words that are not broken into lines

std::string element(const std::string& name, const std::string& text, const std::string& kind = "") {
  return fmt::format("<{0}{1}>{2}</{0}>", name, kind.empty() ? "" : fmt::format(" class=\"{}\"", kind),
                     xml_escaped(text));
}

/// \param words number of columns from the left that hold words; the others hold numbers
std::string html_table(const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows, std::size_t words) {
  const auto line = [&](const std::vector<std::string>& cells, const char* name) {
    std::string text = "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i)
      text += element(name, cells[i], i >= words ? "number" : cells[i].size() <= kShort ? "short" : "");
    return text + "</tr>\n";
  };
  std::string text = "<div class=\"wide\"><table>\n<thead>" + line(header, "th") + "</thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : rows) text += line(row, "td");
  return text + "</tbody></table></div>\n";
}

/// An SVG file of gnuplot as a part of a page: without XML declaration and document type, without the names
/// of plots (several panels use the same), with `prefix` before its other names.
std::string embedded_svg(const std::string& svg, const std::string& prefix) {
  static const std::regex kDropped(R"re( id="gnuplot_plot_[^"]*"|<title>[^<]*</title>|<desc>[^<]*</desc>)re");
  static const std::regex kName(R"re(( id=["']|url\(['"]?#|href=['"]#))re");
  const std::size_t start = svg.find("<svg");
  if (start == std::string::npos) return "";
  return std::regex_replace(std::regex_replace(svg.substr(start), kDropped, ""), kName, "$1" + prefix);
}

class ReportWriter {
 public:
  ReportWriter(const Study& study, const StudyRows& rows, const StudyReport& report)
      : study_(study), rows_(rows), report_(report) {
    for (const StudyColumn& column : study_columns())
      if (std::ranges::any_of(rows, [&](const auto& row) { return row.second.values.contains(column.name); }))
        columns_.push_back(&column);
    for (const StudyPoint& point : study.points) (answered(point) ? answered_ : failed_).push_back(&point);
  }

  std::string page() {
    return "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
           "<meta charset=\"utf-8\" />\n<meta name=\"viewport\" content=\"width=device-width\" />\n" +
           element("title", study_.title) + "\n<style>\n" +
           read_file(home_folder() / "studies" / "report.css") + "</style>\n</head>\n<body>\n" +
           element("h1", study_.title) + "\n" +
           (study_.about.empty() ? "" : element("p", study_.about, "about") + "\n") + points() + verdicts() +
           best() + figures() + failures() + all() + dictionary() + context() + "</body>\n</html>\n";
  }

 private:
  [[nodiscard]] bool answered(const StudyPoint& point) const {
    const auto row = rows_.find(point.key);
    return row != rows_.end() && row->second.error.empty();
  }

  [[nodiscard]] std::string points() const {
    const auto failed = failed_.empty() ? "" : fmt::format(", {} without an answer", failed_.size());
    std::string text =
        element("p", fmt::format("{} answered{}.", counted(answered_.size(), "point"), failed)) + "\n";
    if (study_.left_out.empty()) return text;
    text += "<p>Left out:</p>\n<ul>\n";
    for (const LeftOut& one : study_.left_out)
      text += fmt::format("<li>{}: {}{}</li>\n", counted(one.points, "point"), xml_escaped(one.reason),
                          one.names.empty() ? "" : "<br />" + element("small", joined(one.names)));
    return text + "</ul>\n";
  }

  [[nodiscard]] std::string verdicts() const {
    if (report_.verdicts.empty()) return "";
    std::string text = "<h2>Expectations</h2>\n";
    for (const std::string& line : report_.verdicts)
      text += fmt::format("{}\n", element("div", line,
                                          line.starts_with("MISSED") ? "verdict missed"
                                          : line.starts_with("met")  ? "verdict met"
                                                                     : "verdict"));
    return text;
  }

  /// \param in_words columns by their labels, without units, which the values have
  [[nodiscard]] std::vector<std::string> header(const std::vector<const StudyColumn*>& columns,
                                                bool in_words) const {
    std::vector<std::string> cells = study_.names;
    for (const StudyColumn* column : columns)
      cells.push_back(in_words ? column->label.substr(0, column->label.find(" (")) : column->name);
    return cells;
  }

  [[nodiscard]] std::vector<std::string> cells(const StudyPoint& point,
                                               const std::vector<const StudyColumn*>& columns) const {
    std::vector<std::string> result = name_cells(study_, point, "");
    for (const StudyColumn* column : columns)
      result.push_back(column_text(rows_.at(point.key), column->name, ""));
    return result;
  }

  /// The points with the highest throughput, without those that do not fit if others do.
  [[nodiscard]] std::string best() const {
    static const std::set<std::string> kShown{
        "step_time_s",       "throughput_samples_per_s", "tokens_per_s", "efficiency",
        "epoch_time_s",      "exposed_communication_s",  "epoch_cost",   "fits",
        "peak_memory_bytes", "million_tokens_cost"};
    if (answered_.empty()) return "";
    const auto shown =
        filtered(columns_, [](const StudyColumn* column) { return kShown.contains(column->name); });
    std::vector<const StudyPoint*> fastest = fastest_points(study_, rows_, study_.points.size());
    const auto no_room = [&](const StudyPoint* point) { return rows_.at(point->key).value("fits") == 0.0; };
    if (!std::ranges::all_of(fastest, no_room)) std::erase_if(fastest, no_room);
    if (fastest.size() > kFastest) fastest.resize(kFastest);
    const auto lines = transformed(fastest, [&](const auto* point) { return cells(*point, shown); });
    return fmt::format("<h2>The {} with the highest throughput</h2>\n", counted(fastest.size(), "point")) +
           html_table(header(shown, true), lines, study_.names.size());
  }

  [[nodiscard]] std::string figures() const {
    std::string text;
    for (const auto [i, figure] : enumerated(report_.figures)) {
      text += fmt::format("<figure>\n{0}<figcaption>{1} <a href=\"{2}\">{2}</a></figcaption>\n",
                          embedded_svg(figure.svg, fmt::format("figure{}-", i + 1)),
                          xml_escaped(figure.caption), xml_escaped(figure.file));
      if (!figure.note.empty()) text += element("p", figure.note) + "\n";
      if (figure.table.size() > 1)
        text += "<details><summary>its numbers</summary>\n" +
                html_table(figure.table.front(), {figure.table.begin() + 1, figure.table.end()}, 1) +
                "</details>\n";
      text += "</figure>\n";
    }
    for (const std::string& problem : report_.problems) text += element("p", "Not drawn: " + problem) + "\n";
    return text.empty() ? "" : "<h2>Figures</h2>\n" + text;
  }

  [[nodiscard]] std::string failures() const {
    if (failed_.empty()) return "";
    std::map<std::string, std::vector<std::string>> by_error;
    for (const StudyPoint* point : failed_) {
      const auto row = rows_.find(point->key);
      by_error[row == rows_.end() ? "not predicted yet" : row->second.error].push_back(point->key);
    }
    std::string text = "<h2>Without an answer</h2>\n<ul>\n";
    for (const auto& [error, keys] : by_error)
      text += fmt::format("<li>{}: {}<br />{}</li>\n", counted(keys.size(), "point"), xml_escaped(error),
                          element("small", "such as " + keys.front()));
    return text + "</ul>\n";
  }

  [[nodiscard]] std::string all() const {
    const auto lines = transformed(answered_ | std::views::take(kMaxRows),
                                   [&](const StudyPoint* point) { return cells(*point, columns_); });
    const auto rest = lines.size() < answered_.size()
                          ? fmt::format("the first {} of {}", lines.size(), answered_.size())
                          : fmt::format("all {}", lines.size());
    return fmt::format(
        "<h2>All rows</h2>\n<p><a href=\"results.csv\">results.csv</a> has them all.</p>\n"
        "<details><summary>Show {} answers</summary>\n{}</details>\n",
        rest, html_table(header(columns_, false), lines, study_.names.size()));
  }

  [[nodiscard]] std::string dictionary() const {
    std::string text = "<details><summary>What the columns mean</summary>\n<dl>\n";
    for (const StudyColumn* column : columns_)
      text += element("dt", column->name) + element("dd", column->meaning) + "\n";
    return text + "</dl>\n</details>\n";
  }

  [[nodiscard]] std::string context() const {
    const RunContext& c = report_.context;
    std::string text = "<h2>How it was made</h2>\n<dl>\n";
    for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
             {"study", study_.path},
             {"command", c.command_line},
             {"stepcast", c.stepcast.text()},
             {"date", c.date},
             {"machine", fmt::format("{}, {}, {} cores", c.host_name, c.cpu_model, c.cores)}})
      text += element("dt", name) + element("dd", value) + "\n";
    return text + "</dl>\n<p>Predictions, not measurements.</p>\n";
  }

  const Study& study_;
  const StudyRows& rows_;
  const StudyReport& report_;
  std::vector<const StudyColumn*> columns_;  ///< that have a value
  std::vector<const StudyPoint*> answered_, failed_;
};

}  // namespace

std::string report_html(const Study& study, const StudyRows& rows, const StudyReport& report) {
  return ReportWriter(study, rows, report).page();
}

}  // namespace stepcast

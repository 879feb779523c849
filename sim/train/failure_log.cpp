#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <ctime>
#include <map>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "records/run_context.hpp"
#include "sim/train/failures.hpp"
#include "sim/train/timeline.hpp"

namespace stepcast {
namespace {

struct LogRow {
  double start_s = 0.0, end_s = 0.0;
  std::string cause;
  double devices = 0.0;
  int line = 0;
};

bool is_date(const std::string& text) { return text.size() > 4 && text[4] == '-'; }

/// Seconds since 1970 of `2026-03-01T12:00:00`, or of `36h` since the start.
double time_of(const std::string& text, const std::string& what) {
  if (!is_date(text)) return parse_seconds(text, what).count();
  std::tm time{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  const int day = time.tm_mday;
  const std::time_t seconds = ::timegm(&time);  // makes 31 February 3 March
  if (end == nullptr || *end != 0 || time.tm_mday != day)
    throw InputError("{}: '{}' is not a time; write for example 2026-03-01T12:00:00 or 36h", what, text);
  return static_cast<double>(seconds);
}

std::vector<LogRow> read_log(const std::string& path, bool& dates) {
  const CsvTable table = read_csv(path);
  if (table.columns != std::vector<std::string>{"start", "end", "cause", "GPUs"})
    throw InputError("{}: found columns {}, expected start,end,cause,GPUs", path, joined(table.columns, ","));
  std::vector<LogRow> rows;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::vector<std::string>& cells = table.rows[i];
    const std::string place = fmt::format("{}:{}", path, table.lines[i]);
    dates = is_date(cells[0]);
    if (is_date(table.rows[0][0]) != dates || is_date(cells[1]) != dates)
      throw InputError("{}: mixes dates and times since the start; use one of them", place);
    const auto devices = number_in<double>(cells[3]);
    if (!devices || !(*devices >= 1.0 && *devices <= 1e9))
      throw InputError("{}: GPUs: found '{}', expected the number of GPUs of the job", place, cells[3]);
    rows.push_back({time_of(cells[0], place + ": start"), time_of(cells[1], place + ": end"), cells[2],
                    *devices, table.lines[i]});
    if (rows.back().end_s < rows.back().start_s)
      throw InputError("{}: end {} is before start {}; exchange them", place, cells[1], cells[0]);
  }
  std::ranges::stable_sort(rows, {}, &LogRow::start_s);
  for (std::size_t i = 1; i < rows.size(); ++i)
    if (rows[i].start_s < rows[i - 1].end_s)
      throw InputError("{}:{}: overlaps with line {}; interruptions of one job follow each other", path,
                       rows[i].line, rows[i - 1].line);
  return rows;
}

}  // namespace

std::pair<double, double> count_interval(double count) {
  const auto bound = [&](double n, double probability) {
    return boost::math::quantile(boost::math::chi_squared(2.0 * n), probability) / (2.0 * count);
  };
  return {bound(count, 0.05), bound(count + 1.0, 0.95)};
}

FailureSet failures_of_log(const Specification& log) {
  bool dates = false;
  const std::vector<LogRow> rows = read_log(log.file, dates);
  double begin = dates ? rows.front().start_s : 0.0, end = rows.back().end_s;
  for (const auto& [key, value] : log.overrides) {
    if (key != "begin" && key != "end")
      throw InputError("{}: {}", log.file, unknown_name("setting", key, {"begin", "end"}));
    if (is_date(value) != dates)
      throw InputError("{}: {}={}: the log has {}", log.file, key, value,
                       dates ? "dates" : "times since the start");
    (key == "begin" ? begin : end) = time_of(value, key);
  }
  if (begin > rows.front().start_s || end < rows.back().end_s)
    throw InputError("{}: begin and end exclude a part of the log", log.file);
  double exposure = (end - rows.back().end_s) * rows.back().devices, before = begin;
  std::size_t events = 0;
  std::map<std::string, FailureComponent> causes;
  for (const LogRow& row : rows) {
    exposure += (row.start_s - before) * row.devices;
    if (before < row.start_s || &row != &rows.front()) {
      ++events;
      causes[row.cause].count += 1.0;
      causes[row.cause].outage += Seconds(row.end_s - row.start_s);
    }
    before = row.end_s;
  }
  if (!(exposure > 0.0))
    throw InputError(
        "{}: no time between interruptions; set begin and end of the observation, for example {}:{}",
        log.file, log.file,
        dates ? "begin=" + utc_text(static_cast<std::time_t>(begin - kDay))
              : fmt::format("end={:.0f}s", std::ceil(end + kDay)));
  FailureSet set{
      .name = log.file,
      .source = fmt::format("{} in {:.4g} GPU-days", counted(events, "interruption"), exposure / kDay),
      .assumes = {"causes of a log need a restart alone, and scale with the number of GPUs"}};
  for (auto& [name, cause] : causes) {
    cause.name = name;
    cause.per_s = cause.count / exposure;
    cause.outage /= cause.count;
    if (name == "planned") cause.effect = FailureEffect::kPlanned;
    set.components.push_back(cause);
  }
  return set;
}

}  // namespace stepcast

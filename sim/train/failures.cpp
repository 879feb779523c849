#include "sim/train/failures.hpp"

#include <algorithm>
#include <array>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <ctime>

#include "core/csv.hpp"
#include "core/error.hpp"
#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "records/run_context.hpp"
#include "sim/train/timeline.hpp"

namespace stepcast {
namespace {

constexpr const char* kExample = "write for example '6.5/1000 per host-day' or '1 per run-week'";

const std::map<std::string, double> kTimeUnits{
    {"hour", 3600.0}, {"day", 86400.0}, {"week", 7 * 86400.0}, {"year", 365.25 * 86400.0}};

/// Reads `6.5/1000 per host-day` into `per_s` and `per`.
void read_rate(const YamlNode& node, FailureComponent& component) {
  const std::string text = node.text();
  const std::size_t per = text.find(" per "), dash = text.find('-', std::min(per, text.size()));
  if (per == std::string::npos || dash == std::string::npos)
    node.fail("rate '{}' has no unit; {}", text, kExample);
  const std::string unit = text.substr(per + 5, dash - per - 5), time = text.substr(dash + 1);
  if (!kTimeUnits.contains(time))
    node.fail("rate '{}': {}; {}", text, unknown_name("time", time, names_of(kTimeUnits)), kExample);
  const auto number = node.placed([&] { return evaluate(text.substr(0, per), {}); });
  if (!number || !(*number >= 0.0)) node.fail("rate '{}' must be at least 0; {}", text, kExample);
  component.per = node.placed([&] { return value_of(kFailureUnits, "unit", unit); });
  component.per_s = *number / kTimeUnits.at(time);
}

/// Reads `count`, whose exposure is that of the file's `observed`.
void read_count(const YamlNode& file, const YamlNode& node, FailureComponent& component) {
  component.count = node.at("count").number();
  if (!(component.count >= 0.0)) node.at("count").fail("expected a count of at least 0");
  component.per = node.placed([&] { return value_of(kFailureUnits, "unit", node.text_or("per", "device")); });
  if (!file.has("observed"))
    node.at("count").fail("needs the file's 'observed: {devices: 16384, hosts: 2048, time: 54d}'");
  const YamlNode observed = file.at("observed");
  observed.allow_only({"devices", "hosts", "racks", "switches", "runs", "time"});
  static const std::array<const char*, 5> kUnits{"devices", "hosts", "racks", "switches", "runs"};
  const double units = observed.at(kUnits.at(static_cast<std::size_t>(component.per))).number();
  const double exposure = units * observed.at("time").seconds().count();
  if (!(exposure > 0.0)) observed.fail("expected numbers and a time above 0");
  component.per_s = component.count / exposure;
}

FailureComponent read_component(const YamlNode& file, const YamlNode& node) {
  node.allow_only({"name", "per", "effect", "count", "rate", "at_most", "hosts", "lasts", "slowdown",
                   "detection", "outage"});
  FailureComponent component{.name = node.at("name").text()};
  if (node.has("rate") == node.has("count")) node.fail("expected one of 'count' and 'rate'");
  if (node.has("rate") && node.has("per")) node.at("per").fail("'rate' contains the unit already");
  node.has("rate") ? read_rate(node.at("rate"), component) : read_count(file, node, component);
  component.effect =
      node.placed([&] { return value_of(kFailureEffects, "effect", node.text_or("effect", "restart")); });
  if (node.has("at_most")) component.at_most = node.at("at_most").number();
  if (node.has("hosts")) component.hosts = static_cast<int>(node.at("hosts").integer());
  if (component.hosts < 1 || component.hosts > 100'000) node.at("hosts").fail("expected 1 to 100000 hosts");
  if (component.per == FailureUnit::kRack && !node.has("hosts")) node.fail("'hosts' of a rack is missing");
  if (component.at_most < 0.0) node.at("at_most").fail("expected a number of at least 0");
  if (node.has("lasts")) component.lasts = node.at("lasts").seconds();
  if (node.has("detection")) component.detection = node.at("detection").seconds();
  if (node.has("outage")) component.outage = node.at("outage").seconds();
  const FailureEffect effect = component.effect;
  const bool slow = effect == FailureEffect::kSlow, planned = effect == FailureEffect::kPlanned;
  const bool takes_hosts = effect == FailureEffect::kRepair && component.per != FailureUnit::kSwitch;
  for (const auto& [key, useless] :
       {std::pair("lasts", effect == FailureEffect::kRestart || (planned && node.has("outage"))),
        {"detection", planned || slow},
        {"outage", slow},
        {"hosts", !takes_hosts && component.per != FailureUnit::kRack}})
    if (useless && node.has(key))
      node.at(key).fail("has no effect with effect '{}' of a {}{}; leave it out",
                        row_of(kFailureEffects, effect).name, row_of(kFailureUnits, component.per).name,
                        node.has("outage") ? " with 'outage'" : "");
  if (slow != node.has("slowdown")) node.fail("effect 'slow', and no other, requires 'slowdown'");
  if (slow && !node.has("lasts")) node.fail("'lasts' of slow episodes is missing");
  if (slow) component.slowdown = node.at("slowdown").number();
  if (!(component.slowdown >= 0.0 && component.slowdown < 1.0))
    node.at("slowdown").fail("expected a fraction from 0 to below 1");
  return component;
}

FailureSet read_failures(const std::string& path) {
  const YamlNode file = YamlNode::load(path);
  file.allow_only({"name", "description", "source", "assumes", "observed", "recovery", "components"});
  FailureSet set{.name = file.at("name").text(), .source = file.text_or("source", "")};
  set.assumes = transformed(file.items("assumes"), &YamlNode::text);
  for (const YamlNode& node : file.items("components")) set.components.push_back(read_component(file, node));
  for (const auto& one : entries_of(file, "recovery"))
    one.second.placed([&] { set_part(set.recovery, one.first, one.second.text()); });
  return set;
}

/// `mtbf=3h`, `mtbf=50000h/device`.
FailureSet failures_of_mtbf(const std::string& text) {
  const std::string value = text.substr(text.find('=') + 1);
  const std::size_t slash = std::min(value.find('/'), value.size());
  const Seconds mtbf = parse_seconds(value.substr(0, slash), "mtbf");
  if (!(mtbf > Seconds(0)))
    throw InputError("mtbf: '{}' must be above 0 s; write for example mtbf=3h", value);
  FailureComponent component{.name = "failures", .per = FailureUnit::kRun, .per_s = 1.0 / mtbf.count()};
  if (slash < value.size()) component.per = value_of(kFailureUnits, "unit", value.substr(slash + 1));
  if (component.per == FailureUnit::kRack || component.per == FailureUnit::kSwitch)
    throw InputError("mtbf: '{}': of device, host or run; racks and switches need a failure file", value);
  const bool leaves = component.per != FailureUnit::kRun;
  if (leaves) component.effect = FailureEffect::kRepair;
  return {.name = text,
          .assumes = {leaves ? "what fails takes its host with it, and the memory of that (effect: repair)"
                             : "hosts restart and keep their memory (effect: restart)"},
          .components = {component}};
}

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
  for (const auto [i, cells] : enumerated(table.rows)) {
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

/// Fits a log of one job's interruptions, `start,end,cause,GPUs` as 2026-03-01T12:00:00 or as 36h since the
/// start. Rate of a cause, and the interval of a Poisson count n at level q (Garwood, "Fiducial limits for
/// the Poisson distribution", 1936):
///
///     n / T     [chi2(2n; (1 - q)/2), chi2(2n + 2; (1 + q)/2)] / (2 T)
///
/// T is the sum over the up-times of their length times GPUs. Outage of a cause: mean of end - start.
/// Settings `begin` and `end` bound the observation: `log.csv:begin=2026-03-01T00:00:00`; default: the first
/// start (0 s of a log in times), the last end. A first row without up-time before it counts no event. Cause
/// `planned` is planned maintenance. \throws InputError that names file and line
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

}  // namespace

void set_part(Recovery& recovery, const std::string& part, const std::string& time) {
  if (!recovery.contains(part))
    throw InputError(unknown_name("part of a recovery", part, names_of(recovery)));
  recovery[part] = parse_seconds(time, part);
}

FailureSet load_failures(const std::string& text) {
  if (text.starts_with("mtbf=")) return failures_of_mtbf(text);
  const Specification given = Specification::parse("failures", text);
  if (given.file.ends_with(".csv")) return failures_of_log(given);
  return read_failures(find_resource("reliability", text, ".yaml").string());
}

std::pair<double, double> count_interval(double count) {
  const auto bound = [&](double n, double probability) {
    return boost::math::quantile(boost::math::chi_squared(2.0 * n), probability) / (2.0 * count);
  };
  return {bound(count, 0.05), bound(count + 1.0, 0.95)};
}

}  // namespace stepcast

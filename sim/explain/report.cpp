#include "sim/explain/report.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ranges>
#include <span>

#include "core/ranges.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PathWait, rank, for_rank, name, time_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Standstill, rank, for_rank, because_of, time_s)

namespace {

constexpr std::size_t kMostRows = 12;
constexpr double kLeastGain = 0.0005;  ///< of the step; smaller gains count as none

/// The largest rows, and the sum of the others.
std::string table_of(const std::string& what, const Contributions& all, double step_s) {
  Table table({what, "time", "of the step"});
  const auto add = [&](const std::string& name, double seconds) {
    table.add({name, to_text(Seconds(seconds)), percent_text(seconds / step_s)});
  };
  const auto shown = std::span(all).first(std::min(kMostRows, all.size()));
  for (const auto& [name, seconds] : shown) add(name, seconds);
  const auto others = std::span(all).subspan(shown.size());
  if (!others.empty())
    add(counted(others.size(), "other"), sum_of(others, [](const auto& one) { return one.second; }));
  return table.text() + "\n";
}

/// The path; adjoining parts of one kind and rank are one row.
std::string chain_text(const Explanation& e) {
  struct Stretch {
    int rank = 0;
    std::string kind, first, last;
    double seconds = 0.0;
  };
  std::vector<Stretch> all;
  for (const PathPart& part : e.path.parts) {
    if (all.empty() || all.back().rank != part.rank || all.back().kind != part.kind)
      all.push_back({part.rank, part.kind, part.layer, part.layer, 0.0});
    all.back().last = part.layer;
    all.back().seconds += part.seconds();
  }
  Table table({"critical path", "on rank", "of", "time"});
  const bool long_one = all.size() > 2 * kMostRows;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (long_one && i == kMostRows) {
      double left_out = 0.0;
      for (; i < all.size() - kMostRows; ++i) left_out += all[i].seconds;
      table.add({"...", "", counted(all.size() - 2 * kMostRows, "stretch"), to_text(Seconds(left_out))});
    }
    const Stretch& one = all[i];
    table.add({one.kind, std::to_string(one.rank),
               one.first == one.last ? one.first : one.first + " to " + one.last,
               to_text(Seconds(one.seconds))});
  }
  return table.text() + "\n";
}

double gained(const Explanation& e, const Gain& gain) {
  return 1.0 - gain.step_s / e.result.median_step_time_s();
}

/// A table of what more of each resource gains, and the largest gain.
std::string gains_text(const Explanation& e, double more) {
  const std::string percent = fmt::format("{:g} %", 100.0 * (more - 1.0));
  Table table({percent + " more of", "step", "gains", "option"});
  std::vector<std::string> nothing;
  for (const Gain& gain : e.gains)
    if (std::abs(gained(e, gain)) < kLeastGain)
      nothing.push_back(gain.resource);
    else
      table.add(
          {gain.resource, to_text(Seconds(gain.step_s)), signed_percent_text(gained(e, gain)), gain.option});
  std::string text = nothing.size() == e.gains.size() ? "" : table.text() + "\n";
  if (!nothing.empty())
    text += fmt::format("{} more of {} alone gains nothing.\n", percent, alternatives(nothing));
  if (e.gains.empty() || gained(e, e.gains.front()) < kLeastGain) return text;
  const Gain& most = e.gains.front();
  return text +
         fmt::format("{} gains most: {} of the step.\n",
                     most.resource == "micro-batches" ? most.option : percent + " more of " + most.resource,
                     percent_text(gained(e, most)));
}

/// Waits between ranks, and the rank that causes most of them with its compute time.
std::string waits_text(const Explanation& e) {
  if (e.standstills.empty()) return "";
  Table table({"rank", "waits for rank", "because of rank", "wait", "of the step"});
  for (const Standstill& one : e.standstills | std::views::take(kMostRows))
    table.add({rank_name(e.recording, one.rank), rank_name(e.recording, one.for_rank),
               rank_name(e.recording, one.because_of), to_text(Seconds(one.time_s)),
               percent_text(one.time_s / e.path.step_s)});
  const auto [most, waited] = most_waited_for(e.standstills);
  const std::map<int, double> busy = computing(e.recording);
  std::vector<double> others;
  for (const auto& [rank, seconds] : busy)
    if (rank != most) others.push_back(seconds);
  return table.text() +
         fmt::format(
             "\nMost waits of others are because of rank {}: {} in all. It computes {}{}.\n\n",
             rank_name(e.recording, most), to_text(Seconds(waited)), to_text(Seconds(busy.at(most))),
             others.empty() ? "" : fmt::format(", the others {} (median)", to_text(Seconds(median(others)))));
}

nlohmann::json json_of(const Contributions& all) {
  return transformed(all, [](const auto& row) -> nlohmann::json {
    return {{"name", row.first}, {"time_s", row.second}};
  });
}

std::string differences_table(const std::string& what, const std::vector<StepDifference>& rows) {
  if (rows.empty()) return "";
  Table table({what, "forecast", "measured", "difference"});
  const auto signed_text = [](double seconds) {
    return (seconds < 0.0 ? "-" : "+") + to_text(Seconds(std::abs(seconds)));
  };
  for (const StepDifference& row : rows | std::views::take(kMostRows))
    table.add({row.name, to_text(Seconds(row.forecast_s)), to_text(Seconds(row.measured_s)),
               signed_text(row.seconds())});
  return table.text() + "\n";
}

nlohmann::json json_of(const std::vector<StepDifference>& rows) {
  return transformed(rows, [](const StepDifference& row) -> nlohmann::json {
    return {{"name", row.name},
            {"forecast_s", row.forecast_s},
            {"measured_s", row.measured_s},
            {"difference_s", row.seconds()}};
  });
}

}  // namespace

std::vector<PathTable> path_tables(const Explanation& e) {
  const std::vector<int> stage = stages(e.recording.schedule);
  const auto rows = [&](const auto& key) { return contributions(e.path, key); };
  std::vector<PathTable> tables{
      {"operation", rows([](const PathPart& part) { return part.kind; })},
      {"layer", rows([](const auto& part) { return part.layer.empty() ? "no layer" : part.layer; })},
      {"link", rows([](const auto& part) { return part.link.empty() ? "no link" : part.link; })},
      {"stage", {}},
      {"rank", rows([](const auto& part) { return std::to_string(part.rank); })}};
  tables[2].repeats = e.recording.links.empty();
  if (!stage.empty())
    tables[3].rows = rows([&](const auto& part) { return std::to_string(stage[part.rank]); });
  tables[4].repeats = e.recording.ranks.size() <= tables[3].rows.size();
  for (auto& [rank, seconds] : tables[4].rows) rank = rank_name(e.recording, std::stoi(rank));
  return tables;
}

std::string rank_name(const Recording& recording, int rank) {
  const auto like = std::ranges::count(recording.stands_for, rank) - 1;
  const std::vector<int> stage = stages(recording.schedule);
  std::string name = std::to_string(rank);
  if (like > 0) name += fmt::format(" and {} like it", like);
  if (!stage.empty()) name += fmt::format(" (stage {})", stage[rank]);
  return name;
}

std::string explanation_text(const Explanation& e, double more) {
  const double step_s = e.path.step_s;
  const std::vector<PathTable> tables = path_tables(e);
  const Contributions& kinds = tables.front().rows;
  const auto share = [&](std::size_t i) {
    return fmt::format("{} ({})", kinds[i].first, percent_text(kinds[i].second / step_s));
  };
  std::string text =
      fmt::format("The explained step takes {}; it ends on rank {}. Most of its critical path is {}{}.\n\n{}",
                  to_text(Seconds(step_s)), rank_name(e.recording, e.path.slowest), share(0),
                  kinds.size() > 1 ? ", then " + share(1) : "", chain_text(e));
  for (const PathTable& table : tables)
    if (!table.rows.empty() && !table.repeats) text += table_of("by " + table.name, table.rows, step_s);
  return text + waits_text(e) + gains_text(e, more);
}

nlohmann::json explanation_json(const Explanation& e, double more) {
  using Json = nlohmann::json;
  const Json path = transformed(e.path.parts, [&](const PathPart& part) {
    Json json{{"rank", part.rank},   {"kind", part.kind},   {"start_s", part.start_s},
              {"end_s", part.end_s}, {"layer", part.layer}, {"link", part.link}};
    if (part.op >= 0) json["name"] = e.recording.schedule.program(part.rank).ops[part.op].name;
    return json;
  });
  const Json gains = transformed(e.gains, [&](const Gain& gain) -> Json {
    return {{"resource", gain.resource},
            {"option", gain.option},
            {"step_time_s", gain.step_s},
            {"gain", gained(e, gain)}};
  });
  Json tables;
  for (const PathTable& table : path_tables(e)) tables[table.name] = json_of(table.rows);
  return {{"configuration", e.result.configuration},
          {"step_time_s", e.result.median_step_time_s()},
          {"explained_step_time_s", e.path.step_s},
          {"slowest_rank", e.path.slowest},
          {"critical_path", path},
          {"contributions", tables},
          {"path_waits", e.path.waits},
          {"standstills", e.standstills},
          {"more", more},
          {"gains", gains}};
}

std::string differences_text(const StepDifferences& d) {
  const auto change = [](double seconds) {
    return to_text(Seconds(std::abs(seconds))) + (seconds < 0.0 ? " less" : " more");
  };
  return fmt::format(
             "The measured step takes {}, {} than the forecast's {}. Most of the difference is in '{}': it "
             "took {} than forecast.\n{}\n",
             to_text(Seconds(d.measured_s)), change(d.measured_s - d.forecast_s),
             to_text(Seconds(d.forecast_s)), d.parts.front().name, change(d.parts.front().seconds()),
             d.note.empty() ? "" : d.note + "\n") +
         differences_table("part of the step", d.parts) + differences_table("operations", d.kinds) +
         differences_table("layers", d.layers) + differences_table("collectives", d.collectives);
}

nlohmann::json differences_json(const StepDifferences& d) {
  return {{"forecast_step_time_s", d.forecast_s},
          {"measured_step_time_s", d.measured_s},
          {"note", d.note},
          {"parts", json_of(d.parts)},
          {"operations", json_of(d.kinds)},
          {"layers", json_of(d.layers)},
          {"collectives", json_of(d.collectives)}};
}

}  // namespace stepcast

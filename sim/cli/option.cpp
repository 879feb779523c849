#include "sim/cli/option.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/processes.hpp"
#include "core/ranges.hpp"
#include "sim/strategies/strategy.hpp"

namespace stepcast {
namespace {

/// Result of a parser of units; its errors become UsageErrors.
template <class Parser>
auto parsed(const po::variables_map& values, const std::string& name, Parser parse) {
  return parsed_option("", [&] { return parse(text_option(values, name), "--" + name); });
}

/// `ddp, pipeline: dtype in which buckets travel: none or fp16`
std::string describe(const KnownOption& known) {
  const StrategyOption& option = known.option;
  return joined(known.strategies) + ": " + option.help +
         (option.choices.empty() ? "" : ": " + alternatives(option.choices));
}

po::value_semantic* value_of(const StrategyOption& option) {
  if (option.kind == OptionKind::kFlag) return po::bool_switch();
  auto* value = po::value<std::string>();
  return option.standard.empty() ? value : value->default_value("", option.standard);
}

bool is_folder(const std::string& place) { return place.ends_with('/'); }

}  // namespace

std::string text_option(const po::variables_map& values, const std::string& name) {
  return values.count(name) == 0 ? "" : values[name].as<std::string>();
}

std::vector<std::string> texts_option(const po::variables_map& values, const std::string& name) {
  return values.count(name) == 0 ? std::vector<std::string>{} : values[name].as<std::vector<std::string>>();
}

bool flag_option(const po::variables_map& values, const std::string& name) { return values[name].as<bool>(); }

int jobs_option(const po::variables_map& values) {
  return values["jobs"].defaulted() ? default_jobs() : int_option(values, "jobs", 1, kMostThreads);
}

Bytes bytes_option(const po::variables_map& values, const std::string& name) {
  return parsed(values, name, parse_bytes);
}

Seconds seconds_option(const po::variables_map& values, const std::string& name) {
  return parsed(values, name, parse_seconds);
}

Precision precision_option(const po::variables_map& values) {
  return parsed_option("precision", [&] { return Precision::parse(text_option(values, "precision")); });
}

double budget_option(const po::variables_map& values, const std::string& name) {
  const double budget_s = seconds_option(values, name).count();
  if (!(budget_s >= 0.0))
    throw UsageError("--{} must be at least 0s, got {}", name, text_option(values, name));
  return budget_s;
}

int int_option(const po::variables_map& values, const std::string& name, int least, int most) {
  return whole_number(name, std::to_string(values[name].as<int>()), least, most);
}

double percent_option(const po::variables_map& values, const std::string& name) {
  if (const auto ratio = percentage_in(text_option(values, name))) return *ratio;
  throw UsageError("--{}: '{}' is not a percentage; write for example 10%", name, text_option(values, name));
}

std::vector<std::string> list_option(const po::variables_map& values, const std::string& name) {
  const std::string text = text_option(values, name);
  return text == "all" ? std::vector<std::string>{} : split(text, ',');
}

OptionTexts given_options(const po::variables_map& values) {
  OptionTexts texts;
  for (const auto& [name, value] : values) {
    if (value.empty() || value.defaulted()) continue;
    const boost::any& any = value.value();
    if (const auto* text = boost::any_cast<std::string>(&any)) texts[name] = *text;
    if (const auto* number = boost::any_cast<int>(&any)) texts[name] = std::to_string(*number);
    if (const auto* flag = boost::any_cast<bool>(&any)) texts[name] = *flag ? "yes" : "no";
    if (const auto* list = boost::any_cast<std::vector<std::string>>(&any)) texts[name] = joined(*list, ",");
  }
  return texts;
}

std::set<int> numbers_option(const po::variables_map& values, const std::string& name) {
  std::set<int> numbers;
  for (const std::string& part : list_option(values, name)) {
    const std::size_t dash = part.find('-');
    const auto first = number_in<int>(std::string_view(part).substr(0, dash), 10);
    const auto last =
        dash == std::string::npos ? first : number_in<int>(std::string_view(part).substr(dash + 1), 10);
    if (!first || !last || *first < 0 || *last < *first || *last > kMostWhole)
      throw UsageError("--{}: found '{}', expected numbers and ranges, as 0,4-7", name, part);
    for (int number = *first; number <= *last; ++number) numbers.insert(number);
  }
  return numbers;
}

void declare_training_options(po::options_description& options) {
  std::string all;
  for (const auto& entry : strategies().entries()) all += "\n" + entry.name + ": " + entry.description;
  declare_options(options, "training", {{"strategies", all}});
  for (const KnownOption& known : known_options())
    options.add_options()(known.option.name.c_str(), value_of(known.option), describe(known).c_str());
}

TrainingConfig training_config(const po::variables_map& values) {
  return training_config(given_options(values));
}

void check_timeline(const po::variables_map& values, int world_size) {
  const std::set<int> ranks = numbers_option(values, "timeline-ranks");
  if (world_size > 0 && !ranks.empty() && *ranks.rbegin() >= world_size)
    throw UsageError("--timeline-ranks: found '{}', expected numbers from 0 to {}: there are {} ranks",
                     text_option(values, "timeline-ranks"), world_size - 1, world_size);
  if (values.count("timeline-steps") != 0) {
    const std::set<int> steps = numbers_option(values, "timeline-steps");
    const int all = values["steps"].as<int>();
    if (steps.empty() || *steps.rbegin() >= all)
      throw UsageError("--timeline-steps: found '{}', expected numbers from 0 to {}: --steps is {}",
                       text_option(values, "timeline-steps"), all - 1, all);
  }
  const bool given = values.count("timeline") != 0;
  for (const char* name : {"timeline-ranks", "timeline-steps"})
    if (!given && values.count(name) != 0) throw UsageError("--{} requires --timeline", name);
  if (!given) return;
  const std::filesystem::path place = text_option(values, "timeline");
  if (values.count("output") != 0 &&
      place.lexically_normal() == std::filesystem::path(text_option(values, "output")).lexically_normal())
    throw UsageError("--timeline and --output name one file, '{}'; choose two", place.string());
  const bool force = flag_option(values, "force");
  if (const std::string text = place.string(); !is_folder(text)) {
    if (!text.ends_with(".json") && !text.ends_with(".json.gz"))
      throw UsageError("--timeline: found '{}', expected FILE.json, FILE.json.gz or a folder DIR/", text);
    return check_writable(place, force);
  }
  if (!std::filesystem::exists(place)) return;
  for (int rank = 0; rank < std::max(1, world_size); ++rank)
    if (ranks.empty() || ranks.contains(rank))
      check_writable(place / fmt::format("rank{}.json", rank), force);
}

void write_timeline_option(const po::variables_map& values, const Result& result) {
  if (values.count("timeline") == 0) return;
  const std::string place = text_option(values, "timeline");
  const std::set<int> ranks = numbers_option(values, "timeline-ranks");
  if (is_folder(place))
    write_hta_timelines(place, result, ranks, flag_option(values, "force"));
  else
    write_timeline(place, {&result}, ranks, flag_option(values, "force"));
}

void check_output(const po::variables_map& values, bool replaces) {
  if (values.count("output") != 0)
    check_writable(text_option(values, "output"), replaces || flag_option(values, "force"));
}

bool write_output(const po::variables_map& values, const std::function<std::string()>& json, bool replaces) {
  const bool prints = flag_option(values, "json");
  if (values.count("output") == 0 && !prints) return false;
  const std::string text = json();
  if (values.count("output") != 0)
    write_file(text_option(values, "output"), text, replaces || flag_option(values, "force"));
  if (prints) std::cout << text;
  return prints;
}

void write_or_print(const po::variables_map& values, const std::string& text) {
  if (values.count("output") == 0)
    std::cout << text;
  else
    write_file(text_option(values, "output"), text, flag_option(values, "force"));
}

std::string written_line() {
  return fmt::format("# Written by stepcast {}: {}\n", make_run_context("", command_line()).stepcast.text(),
                     printable(joined(command_line(), " ")));
}

ImportTexts import_texts(const po::variables_map& values) {
  static const YamlNode kOptions = YamlNode::shipped("commands/importers.yaml").at("options");
  ImportTexts given;
  for (const auto& [name, text] : given_options(values))
    if (kOptions.has(name)) given[name] = text;
  return given;
}

std::string import_report(const Imported& imported) {
  std::string text;
  for (const std::string& line : imported.understood) text += line + "\n";
  for (const std::string& line : imported.assumed) text += "assumed: " + line + "\n";
  for (const std::string& line : imported.ignored) text += "ignored: " + line + "\n";
  for (const std::string& line : imported.obstacles) text += "cannot be imported: " + line + "\n";
  return text;
}

bool write_json_output(const po::variables_map& values, const std::string& schema, nlohmann::json json) {
  json["context"] = make_run_context(schema, command_line());
  return write_output(values, [&] { return to_file_text(json); });
}

}  // namespace stepcast

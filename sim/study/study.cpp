#include "sim/study/study.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "core/table.hpp"
#include "sim/study/rows.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kLongestTitle = 60;  // as a figure shows

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Assignment base_of(const auto& file, const StudyVocabulary& vocabulary) {
  Assignment base;
  const YamlNode predict = file.at("predict");
  predict.allow_only(vocabulary.options);
  for (const std::string& key : predict.keys()) base.set(key, predict.at(key).text());
  return base;
}

/// A study file, and the one that it is like.
class StudyFile {
 public:
  explicit StudyFile(const std::string& path) : files_{YamlNode::load(path)} {
    if (files_.front().has("like")) {
      const std::string other = files_.front().at("like").text();
      const std::filesystem::path found = std::filesystem::path(path).replace_filename(other + ".yaml");
      if (!std::filesystem::exists(found))
        files_.front().at("like").fail("found '" + other + "', but there is no " + found.string());
      files_.push_back(YamlNode::load(found.string()));
    }
    for (const YamlNode& file : files_)
      file.allow_only({"study",    "about",     "cost",    "like",   "predict", "every",   "values",
                       "classes",  "points",    "skip",    "expect", "plot",    "name",    "first",
                       "baseline", "calibrate", "measure", "bench",  "run",     "compare", "clock"});
  }
  [[nodiscard]] bool has(const std::string& key) const {
    return std::any_of(files_.begin(), files_.end(), [&](const YamlNode& file) { return file.has(key); });
  }
  [[nodiscard]] YamlNode at(const std::string& key) const {
    return (files_.front().has(key) ? files_.front() : files_.back()).at(key);
  }

 private:
  std::vector<YamlNode> files_;
};

std::vector<SkipRule> skip_rules(const auto& file, const std::vector<std::string>& names) {
  std::vector<SkipRule> rules;
  if (!file.has("skip")) return rules;
  for (const YamlNode& rule : file.at("skip").items()) {
    rule.allow_only({"when", "because"});
    rules.push_back({Condition(rule.at("when"), names), rule.at("because").text()});
  }
  return rules;
}

StudyCost study_cost(const auto& file) {
  StudyCost cost;
  if (!file.has("cost")) return cost;
  const YamlNode node = file.at("cost");
  node.allow_only({"per_device_hour", "epoch_samples"});
  const auto read = [&](const char* key, std::optional<double>& value) {
    if (!node.has(key)) return;
    value = node.at(key).number();
    if (!(*value > 0.0)) node.at(key).fail("expected a number above 0");
  };
  read("per_device_hour", cost.per_device_hour);
  read("epoch_samples", cost.epoch_samples);
  return cost;
}

/// Without folders, and without dots that part nothing: `ddp...` is `ddp`.
std::string file_name(std::string text) {
  std::erase(text, '/');
  const auto end = std::unique(text.begin(), text.end(), [](char a, char b) { return a == '.' && b == '.'; });
  text.erase(end, text.end());
  while (text.ends_with('.')) text.pop_back();
  return text;
}

class Builder {
 public:
  Builder(Study& study, const StudyVocabulary& vocabulary, std::vector<SkipRule> rules)
      : study_(study), vocabulary_(vocabulary), rules_(std::move(rules)) {}

  void add(const Assignment& assigned, const std::string& only) {
    Assignment filled;
    std::string problem;
    for (const auto& [name, value] : assigned.values()) {
      const Expansion text = expand(value, assigned);
      used_.merge(names_in(value));
      if (problem.empty()) problem = text.problem;
      filled.set(name, text.text);
    }
    if (study_.parts) use_in_parts(*study_.parts, assigned);
    const auto leave = [&](const std::string& reason) {
      leave_out(study_.left_out, reason,
                study_.parts ? file_name(expand(study_.parts->name, filled).text) : "");
    };
    for (const SkipRule& rule : rules_)
      if (rule.when.holds(filled)) return leave(rule.because);
    if (!problem.empty()) return leave(problem);
    StudyPoint point{.assigned = filled, .options = {}, .key = {}, .name = {}};
    std::vector<std::string> parts;
    bool dropped = false;
    for (const auto& [name, value] : filled.values()) {
      if (!holds(vocabulary_.options, name) || value.empty()) continue;
      if (!vocabulary_.matters(name, filled)) {
        point.assigned.erase(name);
        dropped = true;
        continue;
      }
      const std::string option = "--" + name;
      if (holds(vocabulary_.switches, name)) {
        if (value == "false" || value == "no") continue;
        point.options.set(option, "");
        parts.push_back(option);
        continue;
      }
      point.options.set(option, value);
      parts.push_back(option + "=" + value);
    }
    std::sort(parts.begin(), parts.end());
    for (const std::string& part : parts) point.key += (point.key.empty() ? "" : " ") + part;
    if (!assigned_.insert(point.assigned).second)
      return leave(dropped ? "differ from others in options that mean nothing to their strategy"
                           : "are the same as others");
    if (vocabulary_.model_of_rank) {
      point.model = vocabulary_.model_of_rank(point.assigned);
    } else if (const std::string* model = point.assigned.find("model")) {
      point.model = *model;
    }
    if (study_.parts) {
      point.name = file_name(expand(study_.parts->name, filled).text);
      if (point.name.find(only) == std::string::npos) return;
      if (!names_.insert(point.name).second)
        throw InputError("two points are called '" + point.name + "': 'name' leaves out what they differ in");
      if (!keys_.insert(point.key).second)
        throw InputError("'" + point.name +
                         "' asks what another point asks: runs of the same prediction need one point");
    }
    study_.points.push_back(std::move(point));
  }

  [[nodiscard]] bool is_used(const std::string& name) const { return used_.contains(name); }

 private:
  /// Names that what is measured or run uses.
  void use_in_parts(const StudyParts& parts, const Assignment& point) {
    const auto use = [&](const std::string& text) {
      static_cast<void>(expand(text, point));  // refuses unknown names
      used_.merge(names_in(text));
    };
    use(parts.name);
    use(parts.run_lab);
    for (const auto* part : {&parts.measure, &parts.run})
      if (*part)
        for (const auto& [name, value] : (*part)->values()) use(value);
  }

  Study& study_;
  const StudyVocabulary& vocabulary_;
  std::vector<SkipRule> rules_;
  std::set<Assignment> assigned_;
  std::set<std::string> used_, names_, keys_;
};

void add_steps(const YamlNode& node, StudyParts& parts) {
  node.allow_only({"seconds", "at_least", "at_most"});
  StepsRule rule{.seconds = node.at("seconds").number()};
  if (node.has("at_least")) rule.at_least = static_cast<int>(node.at("at_least").integer());
  if (node.has("at_most")) rule.at_most = static_cast<int>(node.at("at_most").integer());
  if (!(rule.seconds > 0.0) || rule.at_least < 1 || rule.at_most < rule.at_least)
    node.fail("expected seconds above 0 and 1 <= at_least <= at_most");
  parts.steps = rule;
}

int count_of(const YamlNode& part, const std::string& key, int standard) {
  if (!part.has(key)) return standard;
  const long long count = part.at(key).integer();
  if (count < 1 || count > 1000) part.at(key).fail("expected 1 to 1000");
  return static_cast<int>(count);
}

/// The options among the keys of a part.
Assignment options_of(const YamlNode& part, const std::vector<std::string>& others) {
  Assignment options;
  for (const std::string& key : part.keys())
    if (!holds(others, key)) options.set(key, part.at(key).text());
  return options;
}

EvidenceFigure evidence_figure(const YamlNode& node, const std::vector<std::string>& names) {
  node.allow_only({"figure", "file", "where", "options", "baselines", "one_launch"});
  EvidenceFigure one{.figure = node.at("figure").text(),
                     .file = node.at("file").text(),
                     .with_baselines = node.has("baselines") && node.at("baselines").boolean(),
                     .one_launch = node.has("one_launch") && node.at("one_launch").boolean()};
  if (one.file.find('/') != std::string::npos)
    node.at("file").fail("found '" + one.file + "', expected a name without folder");
  if (node.has("where")) one.where.emplace(node.at("where"), names);
  if (node.has("options"))
    for (const std::string& key : node.at("options").keys())
      one.words.insert(one.words.end(), {"--" + key, node.at("options").at(key).text()});
  return one;
}

void add_comparison(const YamlNode& node, const std::vector<std::string>& names, StudyParts& parts) {
  node.allow_only({"report", "changes", "figures"});
  if (node.has("report"))
    parts.lab_report = node.at("report").one_of("report", {"comparison", "lab"}) == "lab";
  if (node.has("changes"))
    for (const YamlNode& change : node.at("changes").items()) {
      change.allow_only({"name", "plain", "changed"});
      parts.changes.push_back(
          {change.at("name").text(), change.at("plain").text(), change.at("changed").text()});
    }
  if (node.has("figures"))
    for (const YamlNode& figure : node.at("figures").items())
      parts.figures.push_back(evidence_figure(figure, names));
}

StudyParts parts_of(const StudyFile& file, const std::vector<std::string>& names,
                    const std::vector<std::string>& columns) {
  StudyParts parts;
  parts.name = file.at("name").text();
  const YamlNode run = file.at("run");
  parts.run = options_of(run, {"launches", "at_least", "until", "lab", "skip", "steps"});
  if (run.has("steps") && run.at("steps").is_map())
    add_steps(run.at("steps"), parts);
  else if (run.has("steps"))
    parts.run->set("steps", run.at("steps").text());
  parts.launches = count_of(run, "launches", parts.launches);
  parts.least_launches = count_of(run, "at_least", parts.launches);
  if (run.has("until")) parts.until_s = run.at("until").seconds().count();
  if (run.has("lab")) parts.run_lab = run.at("lab").text();
  std::vector<std::string> known = names;
  known.insert(known.end(), columns.begin(), columns.end());
  parts.run_skip = skip_rules(run, known);
  if (file.has("calibrate")) {
    const YamlNode part = file.at("calibrate");
    parts.calibrate = options_of(part, {"lab"});
    if (part.has("lab")) parts.calibrate_lab = part.at("lab").text();
  }
  if (file.has("measure")) {
    parts.measure = options_of(file.at("measure"), {"rounds"});
    parts.measure_rounds = count_of(file.at("measure"), "rounds", 1);
  }
  if (file.has("bench")) parts.bench = options_of(file.at("bench"), {});
  if (file.has("first")) parts.first.emplace(file.at("first"), names);
  if (file.has("baseline")) parts.baseline.emplace(file.at("baseline"), names);
  if (file.has("compare")) add_comparison(file.at("compare"), names, parts);
  return parts;
}

/// What cannot be compared shows now, not after hours; so does what holds for no point, unless points are left to runs,
/// of which `--only` and draws take some.
void check_where(const YamlNode& node, const std::optional<Condition>& where, const Study& study) {
  if (!where) return;
  bool any = study.parts.has_value();
  try {
    for (const StudyPoint& point : study.points) any = where->holds(point.assigned) || any;
  } catch (const InputError& error) {
    node.at("where").fail(error.what());
  }
  if (!any) node.at("where").fail("no point has these values");
}

/// Columns of runs have no value where nothing runs.
void check_columns(const YamlNode& node, const Study& study) {
  for (const char* key : {"column", "below", "in_order_of", "x", "y", "value"}) {
    if (study.parts || !node.has(key)) continue;
    const auto& all = study_columns();
    const auto column = std::find_if(all.begin(), all.end(),
                                     [&](const StudyColumn& one) { return one.name == node.at(key).text(); });
    if (column != all.end() && !column->value && !column->derived)
      node.at(key).fail("'" + column->name + "' is of studies that run, and this one only predicts");
  }
}

/// Names of cases are for people, so that they need not be used.
std::set<std::string> case_names(const YamlNode& blocks) {
  std::set<std::string> names;
  for (const YamlNode& block : blocks.items())
    if (block.has("cases")) names.insert(block.at("cases").keys().front());
  return names;
}

}  // namespace

void leave_out(std::vector<LeftOut>& all, const std::string& reason, const std::string& name) {
  auto found = std::find_if(all.begin(), all.end(), [&](const LeftOut& one) { return one.reason == reason; });
  if (found == all.end()) found = all.insert(all.end(), {.reason = reason});
  ++found->points;
  if (!name.empty()) found->names.push_back(name);
}

std::vector<std::string> StudyPoint::words() const {
  std::vector<std::string> words;
  for (const auto& [option, value] : options.values()) {
    words.push_back(option);
    if (!value.empty()) words.push_back(value);
  }
  return words;
}

Study load_study(const std::string& path, const StudyVocabulary& vocabulary,
                 const std::vector<std::string>& columns, unsigned seed, const std::string& only) {
  const StudyFile file(path);
  Study study;
  study.path = path;
  study.title = file.at("study").text();
  if (study.title.size() > kLongestTitle)
    file.at("study").fail("found " + std::to_string(study.title.size()) + " characters, expected at most " +
                          std::to_string(kLongestTitle) + "; 'about' takes more");
  if (file.has("about")) study.about = file.at("about").text();
  const YamlNode blocks = file.at("points");
  const Assignment base = base_of(file, vocabulary);
  std::vector<Assignment> points = expand_points(blocks, seed);
  std::set<std::string> seen;
  const auto add_names = [&](std::vector<std::string>& names, const Assignment& assigned) {
    for (const auto& [name, value] : assigned.values())
      if (seen.insert(name).second) names.push_back(name);
  };
  for (const Assignment& point : points) add_names(study.names, point);
  std::vector<std::string> assigned = study.names;
  std::set<std::string> explained = case_names(blocks);  // names that need not be used in a value
  for (Assignment& point : points) {
    try {
      if (file.has("every")) point.add_missing(assignment_of(file.at("every")));
      if (file.has("values")) add_values(file.at("values"), point);
      if (file.has("classes")) add_classes(file.at("classes"), point);
    } catch (const InputError& error) {
      blocks.fail(error.what());
    }
    point.add_missing(base);
    add_names(assigned, point);
  }
  for (const char* part : {"every", "values", "classes"})
    if (file.has(part))
      for (const std::string& name : file.at(part).keys()) explained.insert(name);
  Builder builder(study, vocabulary, skip_rules(file, assigned));
  if (file.has("run")) study.parts = parts_of(file, assigned, columns);
  if (!study.parts && !only.empty()) throw UsageError("--only goes with studies that run");
  study.points.reserve(points.size());
  for (Assignment& point : points) {
    try {
      builder.add(std::exchange(point, {}), only);
    } catch (const InputError& error) {
      blocks.fail(error.what());
    }
  }
  for (const std::string& name : study.names)
    if (!holds(vocabulary.options, name) && !builder.is_used(name) && !explained.contains(name))
      blocks.fail(unknown_name("option", name, vocabulary.options) + "; nor does a value use {" + name + "}");
  if (study.points.empty() && !only.empty()) blocks.fail("no point has '" + only + "' in its name");
  if (study.points.empty()) {
    std::string why = "no point is left";
    for (const LeftOut& one : study.left_out) why += "; " + counted(one.points, "point") + ": " + one.reason;
    blocks.fail(why);
  }
  if (file.has("expect"))
    for (const YamlNode& node : file.at("expect").items()) {
      study.expectations.push_back(expectation_of(node, assigned, columns));
      check_columns(node, study);
      check_where(node, study.expectations.back().where, study);
    }
  study.clock = file.has("clock") && file.at("clock").boolean();
  study.cost = study_cost(file);
  if (file.has("plot"))
    for (const YamlNode& node : file.at("plot").items()) {
      study.figures.push_back(study_figure(node, study.names, assigned, columns));
      check_columns(node, study);
      check_where(node, study.figures.back().where, study);
      const auto stem = [](const StudyFigure& one) { return std::filesystem::path(one.file).stem(); };
      for (const StudyFigure& other : study.figures)
        if (&other != &study.figures.back() && stem(other) == stem(study.figures.back()))
          node.at("file").fail("another figure has this name, and so its script and data");
    }
  if (!study.parts) return study;
  for (const StudyPoint& point : study.points) {
    try {
      for (const auto* one : {&study.parts->first, &study.parts->baseline})
        if (*one) static_cast<void>((*one)->holds(point.assigned));
      for (const EvidenceFigure& one : study.parts->figures)
        if (one.where) static_cast<void>(one.where->holds(point.assigned));
    } catch (const InputError& error) {
      blocks.fail(error.what());
    }
  }
  return study;
}

}  // namespace stepcast

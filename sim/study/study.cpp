#include "sim/study/study.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/study/rows.hpp"

namespace stepcast {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kMaxTitle = 60;  // characters that a figure has room for

/// A study file, and the one that it is like.
class StudyFile {
 public:
  explicit StudyFile(const std::string& path) : files_{YamlNode::load(path)} {
    if (files_.front().has("like")) {
      const std::string other = files_.front().at("like").text();
      const std::filesystem::path found = std::filesystem::path(path).replace_filename(other + ".yaml");
      if (!std::filesystem::exists(found))
        files_.front().at("like").fail("found '{}', but there is no {}", other, found.string());
      files_.push_back(YamlNode::load(found.string()));
    }
    for (const YamlNode& file : files_)
      file.allow_only({"study",    "about",     "cost",    "like",   "predict", "every",   "values",
                       "classes",  "points",    "skip",    "expect", "plot",    "name",    "first",
                       "baseline", "calibrate", "measure", "bench",  "run",     "compare", "clock"});
  }
  [[nodiscard]] bool has(const std::string& key) const {
    return std::ranges::any_of(files_, [&](const YamlNode& file) { return file.has(key); });
  }
  [[nodiscard]] YamlNode at(const std::string& key) const {
    return (files_.front().has(key) ? files_.front() : files_.back()).at(key);
  }
  /// Elements of a list; none if the key is missing.
  [[nodiscard]] std::vector<YamlNode> items(const std::string& key) const {
    return has(key) ? at(key).items() : std::vector<YamlNode>{};
  }
  [[nodiscard]] std::optional<Condition> condition(const std::string& key, const Names& names) const {
    return has(key) ? std::optional<Condition>(std::in_place, at(key), names) : std::nullopt;
  }

 private:
  std::vector<YamlNode> files_;
};

std::vector<SkipRule> skip_rules(const auto& node, const Names& names) {
  std::vector<SkipRule> rules;
  for (const YamlNode& rule : node.items("skip")) {
    rule.allow_only({"when", "because"});
    rules.push_back({Condition(rule.at("when"), names), rule.at("because").text()});
  }
  return rules;
}

StudyCost study_cost(const StudyFile& file) {
  StudyCost cost;
  if (!file.has("cost")) return cost;
  const YamlNode node = file.at("cost").allow_only({"per_device_hour", "epoch_samples"});
  for (const auto& [key, value] : {std::pair("per_device_hour", &cost.per_device_hour),
                                   std::pair("epoch_samples", &cost.epoch_samples)}) {
    if (!node.has(key)) continue;
    *value = node.at(key).number();
    if (!(**value > 0.0)) node.at(key).fail("expected a number above 0");
  }
  return cost;
}

/// Reads the parts of a study that runs.
struct PartsReader {
  const StudyFile& file;
  const Names& names;

  StudyParts read() const {
    StudyParts parts;
    parts.name = file.at("name").text();
    parts.run = run_part(file.at("run"));
    if (file.has("calibrate")) {
      const YamlNode part = file.at("calibrate");
      parts.calibrate = options_of(part, {"lab"});
      parts.calibrate_lab = part.text_or("lab", "");
    }
    if (file.has("measure")) {
      parts.measure = options_of(file.at("measure"), {"rounds"});
      parts.measure_rounds = count_of(file.at("measure"), "rounds", 1);
    }
    if (file.has("bench")) parts.bench = options_of(file.at("bench"), {});
    parts.first = file.condition("first", names);
    parts.baseline = file.condition("baseline", names);
    if (file.has("compare")) read_comparison(file.at("compare"), parts);
    return parts;
  }

  RunPart run_part(const YamlNode& node) const {
    RunPart run;
    run.options = options_of(node, {"launches", "at_least", "until", "lab", "skip", "steps"});
    if (node.has("steps") && node.at("steps").is_map())
      run.steps = steps_rule(node.at("steps"));
    else if (node.has("steps"))
      run.options.set("steps", node.at("steps").text());
    run.launches = count_of(node, "launches", run.launches);
    run.least_launches = count_of(node, "at_least", run.launches);
    if (node.has("until")) run.until_s = node.at("until").seconds().count();
    run.lab = node.text_or("lab", "");
    Names known = study_column_names();
    known.insert(known.begin(), names.begin(), names.end());
    run.skip = skip_rules(node, known);
    return run;
  }

  static StepsRule steps_rule(const YamlNode& node) {
    node.allow_only({"seconds", "at_least", "at_most"});
    StepsRule rule{.seconds = node.at("seconds").number()};
    if (node.has("at_least")) rule.at_least = static_cast<int>(node.at("at_least").integer());
    if (node.has("at_most")) rule.at_most = static_cast<int>(node.at("at_most").integer());
    if (!(rule.seconds > 0.0) || rule.at_least < 1 || rule.at_most < rule.at_least)
      node.fail("expected seconds above 0 and 1 <= at_least <= at_most");
    return rule;
  }

  static int count_of(const YamlNode& part, const std::string& key, int fallback) {
    if (!part.has(key)) return fallback;
    const long long count = part.at(key).integer();
    if (count < 1 || count > 1000) part.at(key).fail("expected 1 to 1000");
    return static_cast<int>(count);
  }

  /// The keys of a part that are options of a command.
  static Assignment options_of(const YamlNode& part, const Names& others) {
    Assignment options;
    for (const auto& [key, value] : entries_of(part))
      if (!contains(others, key)) options.set(key, value.text());
    return options;
  }

  void read_comparison(const YamlNode& node, StudyParts& parts) const {
    node.allow_only({"groups", "figures"});
    for (const YamlNode& name : node.items("groups")) parts.groups.push_back(name.one_of("name", names));
    for (const YamlNode& figure : node.items("figures")) {
      figure.allow_only({"figure", "file", "where", "options", "baselines", "one_launch"});
      EvidenceFigure one{.figure = figure.at("figure").text(),
                         .file = figure.at("file").text(),
                         .with_baselines = figure.flag("baselines"),
                         .one_launch = figure.flag("one_launch")};
      if (one.file.find('/') != std::string::npos)
        figure.at("file").fail("found '{}', expected a name without folder", one.file);
      if (figure.has("where")) one.where.emplace(figure.at("where"), names);
      for (const auto& [key, value] : entries_of(figure, "options"))
        append(one.words, {"--" + key, value.text()});
      parts.figures.push_back(std::move(one));
    }
  }
};

/// A file name without folders, and without dots that separate nothing: `ddp...` is `ddp`.
std::string file_name(std::string text) {
  std::erase(text, '/');
  const auto end = std::unique(text.begin(), text.end(), [](char a, char b) { return a == '.' && b == '.'; });
  text.erase(end, text.end());
  while (text.ends_with('.')) text.pop_back();
  return text;
}

/// Adds points to a study, one by one. Leaves out those that rules skip or that repeat others.
class PointBuilder {
 public:
  /// \pre `study.parts` is read; `study` and `vocabulary` outlive it
  PointBuilder(Study& study, const StudyVocabulary& vocabulary, std::vector<SkipRule> rules)
      : study_(study), vocabulary_(vocabulary), rules_(std::move(rules)) {}

  /// \param only points whose names contain it
  /// \throws InputError if an expression has no value, or two points that run share a name or options
  void add(const Assignment& assigned, const std::string& only) {
    std::string problem;
    StudyPoint point{.assigned = expanded(assigned, problem), .options = {}, .key = {}};
    if (study_.parts) point.name = file_name(expand(study_.parts->name, point.assigned).text);
    const auto leave = [&](const std::string& reason) { leave_out(study_.left_out, reason, point.name); };
    for (const SkipRule& rule : rules_)
      if (rule.when.holds(point.assigned)) return leave(rule.because);
    if (!problem.empty()) return leave(problem);
    const bool dropped = take_options(point);
    if (!assigned_.insert(point.assigned).second)
      return leave(dropped ? "differ from others in options that have no effect with their strategy"
                           : "are the same as others");
    point.model = vocabulary_.model_of_rank ? vocabulary_.model_of_rank(point.assigned)
                                            : point.assigned.value_or("model", "");
    if (study_.parts) {
      if (point.name.find(only) == std::string::npos) return;
      if (!names_.insert(point.name).second)
        throw InputError("two points are called '{}': add to 'name' what they differ in", point.name);
      if (!keys_.insert(point.key).second)
        throw InputError("'{}' has the options of another point: runs of one prediction need one point",
                         point.name);
    }
    study_.points.push_back(std::move(point));
  }
  /// Whether an expression uses the name.
  [[nodiscard]] bool is_used(const std::string& name) const { return used_.contains(name); }

 private:
  /// The values with their expressions replaced. \param problem of one that has no value
  Assignment expanded(const Assignment& assigned, std::string& problem) {
    Assignment result;
    const auto use = [&](const std::string& text) {
      used_.merge(names_in(text));
      return expand(text, assigned);
    };
    for (const auto& [name, value] : assigned.values()) {
      const Expansion expansion = use(value);
      if (problem.empty()) problem = expansion.problem;
      result.set(name, expansion.text);
    }
    if (!study_.parts) return result;
    use(study_.parts->name);
    use(study_.parts->run.lab);
    const auto use_all = [&](const Assignment& part) {
      for (const auto& [name, value] : part.values()) use(value);
    };
    if (study_.parts->measure) use_all(*study_.parts->measure);
    use_all(study_.parts->run.options);
    return result;
  }

  /// Sets options and key. \returns whether options without effect were dropped
  [[nodiscard]] bool take_options(StudyPoint& point) const {
    bool dropped = false;
    const Assignment assigned = point.assigned;
    for (const auto& [name, value] : assigned.values()) {
      if (!contains(vocabulary_.options, name) || value.empty()) continue;
      const bool is_switch = contains(vocabulary_.switches, name);
      if (!vocabulary_.matters(name, assigned)) {
        point.assigned.erase(name);
        dropped = true;
      } else if (!is_switch || value == "true" || value == "yes") {
        point.options.set("--" + name, is_switch ? "" : value);
      } else if (value != "false" && value != "no") {
        throw InputError("{}: found '{}', expected yes or no", name, value);
      }
    }
    auto words = transformed(point.options.values(), [](const auto& option) {
      return option.first + (option.second.empty() ? "" : "=" + option.second);
    });
    std::ranges::sort(words);
    point.key = joined(words, " ");
    return dropped;
  }

  Study& study_;
  const StudyVocabulary& vocabulary_;
  std::vector<SkipRule> rules_;
  std::set<Assignment> assigned_;
  std::set<std::string> used_, names_, keys_;
};

class StudyReader {
 public:
  StudyReader(const std::string& path, const StudyVocabulary& vocabulary, const std::string& only)
      : file_(path), vocabulary_(vocabulary), only_(only) {
    study_.path = path;
    study_.title = file_.at("study").text();
    if (study_.title.size() > kMaxTitle)
      file_.at("study").fail("found {} characters, expected at most {}; 'about' has room for more",
                             study_.title.size(), kMaxTitle);
    if (file_.has("about")) study_.about = file_.at("about").text();
    study_.clock = file_.has("clock") && file_.at("clock").boolean();
    study_.cost = study_cost(file_);
  }

  Study read(unsigned seed) {
    const YamlNode blocks = file_.at("points");
    std::vector<Assignment> points = assignments(blocks, seed);
    study_.draws = std::ranges::any_of(blocks.items(), [](auto& one) { return one.has("draw"); });
    if (file_.has("run"))
      study_.parts = PartsReader{file_, assigned_}.read();
    else if (!only_.empty())
      throw UsageError("--only requires a study that runs");
    PointBuilder builder(study_, vocabulary_, skip_rules(file_, assigned_));
    study_.points.reserve(points.size());
    blocks.placed([&] {
      for (Assignment& point : points) builder.add(std::exchange(point, {}), only_);
    });
    check_names(blocks, builder);
    check_points(blocks);
    read_expectations();
    read_figures();
    if (study_.parts) check_conditions(blocks);
    return std::move(study_);
  }

 private:
  /// Values of all points, and their names in `study_.names` and `assigned_`.
  std::vector<Assignment> assignments(const YamlNode& blocks, unsigned seed) {
    const YamlNode predict = file_.at("predict");
    if (predict.has("per-device-hour"))
      predict.at("per-device-hour").fail("points have no price; set cost: {per_device_hour: 3} instead");
    predict.allow_only(vocabulary_.options);
    const Assignment base = assignment_of(predict);
    std::vector<Assignment> points = expand_points(blocks, seed);
    std::set<std::string> seen;
    const auto add_names = [&](Names& names, const Assignment& assigned) {
      for (const auto& [name, value] : assigned.values())
        if (seen.insert(name).second) names.push_back(name);
    };
    for (const Assignment& point : points) add_names(study_.names, point);
    assigned_ = study_.names;
    blocks.placed([&] {
      for (Assignment& point : points) {
        if (file_.has("every")) point.add_missing(assignment_of(file_.at("every")));
        if (file_.has("values")) add_values(file_.at("values"), point);
        if (file_.has("classes")) add_classes(file_.at("classes"), point);
        point.add_missing(base);
        add_names(assigned_, point);
      }
    });
    return points;
  }

  /// A name must be an option, or be used in an expression; names of cases and of `values` are for people.
  void check_names(const YamlNode& blocks, const PointBuilder& builder) const {
    std::set<std::string> for_people;
    for (const YamlNode& block : blocks.items())
      if (block.has("cases")) for_people.insert(block.at("cases").keys().front());
    for (const char* part : {"every", "values", "classes"})
      if (file_.has(part))
        for (const std::string& name : file_.at(part).keys()) for_people.insert(name);
    for (const std::string& name : study_.names)
      if (!contains(vocabulary_.options, name) && !builder.is_used(name) && !for_people.contains(name))
        blocks.fail("{}; nor does a value use {{{}}}", unknown_name("option", name, vocabulary_.options),
                    name);
  }

  void check_points(const YamlNode& blocks) const {
    if (!study_.points.empty()) return;
    if (!only_.empty()) blocks.fail("no point has '{}' in its name", only_);
    std::string why = "no point is left";
    for (const LeftOut& one : study_.left_out)
      why += fmt::format("; {}: {}", counted(one.points, "point"), one.reason);
    blocks.fail(why);
  }

  void read_expectations() {
    for (const YamlNode& node : file_.items("expect")) {
      study_.expectations.push_back(expectation_of(node, assigned_));
      if (node.has("change") && !study_.parts) node.fail("'change' requires a study that runs");
      check_columns(node);
      check_where(node, study_.expectations.back().where);
    }
  }

  void read_figures() {
    const auto stem = [](const StudyFigure& one) { return std::filesystem::path(one.file).stem(); };
    for (const YamlNode& node : file_.items("plot")) {
      StudyFigure figure = study_figure(node, assigned_);
      check_columns(node);
      check_where(node, figure.where);
      for (const StudyFigure& other : study_.figures)
        if (stem(other) == stem(figure))
          node.at("file").fail("another figure has this name, and so its script and data");
      study_.figures.push_back(std::move(figure));
    }
  }

  /// Reports comparisons that are impossible, and conditions that no point meets, before any point is
  /// predicted. Points of studies that run depend on --only and --seed, so that a condition may hold for none
  /// of them.
  void check_where(const YamlNode& node, const std::optional<Condition>& where) const {
    if (!where) return;
    bool any = study_.parts.has_value();
    node.at("where").placed([&] {
      for (const StudyPoint& point : study_.points) any = where->holds(point.assigned) || any;
    });
    if (!any) node.at("where").fail("no point has these values");
  }

  /// Measured columns have no value if nothing runs.
  void check_columns(const YamlNode& node) const {
    for (const char* key : {"column", "below", "in_order_of", "x", "y", "value", "markers"}) {
      if (study_.parts || !node.has(key)) continue;
      const auto column = std::ranges::find(study_columns(), node.at(key).text(), &StudyColumn::name);
      if (column != study_columns().end() && column->measured)
        node.at(key).fail("'{}' requires a study that runs, and this one only predicts", column->name);
    }
  }

  void check_conditions(const YamlNode& blocks) const {
    blocks.placed([&] {
      for (const StudyPoint& point : study_.points) {
        for (const auto* one : {&study_.parts->first, &study_.parts->baseline})
          if (*one) static_cast<void>((*one)->holds(point.assigned));
        for (const EvidenceFigure& one : study_.parts->figures)
          if (one.where) static_cast<void>(one.where->holds(point.assigned));
      }
    });
  }

  StudyFile file_;
  const StudyVocabulary& vocabulary_;
  const std::string& only_;
  Study study_;
  Names assigned_;  ///< names that points assign, by any part of the file
};

}  // namespace

void leave_out(std::vector<LeftOut>& all, const std::string& reason, const std::string& name) {
  auto found = std::ranges::find(all, reason, &LeftOut::reason);
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

Study load_study(const std::string& path, const StudyVocabulary& vocabulary, unsigned seed,
                 const std::string& only) {
  return StudyReader(path, vocabulary, only).read(seed);
}

}  // namespace stepcast

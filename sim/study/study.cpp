#include "sim/study/study.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kLongestTitle = 60;  // as a figure shows

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Assignment base_of(const YamlNode& file, const StudyVocabulary& vocabulary) {
  Assignment base;
  const YamlNode predict = file.at("predict");
  predict.allow_only(vocabulary.options);
  for (const std::string& key : predict.keys()) base.set(key, predict.at(key).text());
  return base;
}

struct SkipRule {
  Condition when;
  std::string because;
};

std::vector<SkipRule> skip_rules(const YamlNode& file, const std::vector<std::string>& names) {
  std::vector<SkipRule> rules;
  if (!file.has("skip")) return rules;
  for (const YamlNode& rule : file.at("skip").items()) {
    rule.allow_only({"when", "because"});
    rules.push_back({Condition(rule.at("when"), names), rule.at("because").text()});
  }
  return rules;
}

Expectation expectation_of(const YamlNode& node, const std::vector<std::string>& names,
                           const std::vector<std::string>& columns) {
  node.allow_only({"where", "column", "at_least", "at_most"});
  Expectation one;
  one.column = node.at("column").text();
  if (!holds(columns, one.column)) node.at("column").fail(unknown_name("column", one.column, columns));
  one.text = one.column;
  if (node.has("at_least")) {
    one.at_least = node.at("at_least").number();
    one.text += " at least " + short_number(*one.at_least);
  }
  if (node.has("at_most")) {
    one.at_most = node.at("at_most").number();
    one.text += " at most " + short_number(*one.at_most);
  }
  if (!one.at_least && !one.at_most) node.fail("expected at_least, at_most or both");
  if (!node.has("where")) return one;
  one.where.emplace(node.at("where"), names);
  one.text += " where";
  for (const std::string& key : node.at("where").keys()) {
    const YamlNode value = node.at("where").at(key);
    one.text += " " + key;
    for (const YamlNode& choice : value.is_sequence() ? value.items() : std::vector{value})
      one.text += " " + choice.text();
  }
  return one;
}

StudyCost study_cost(const YamlNode& file) {
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

class Builder {
 public:
  Builder(Study& study, const StudyVocabulary& vocabulary, std::vector<SkipRule> rules)
      : study_(study), vocabulary_(vocabulary), rules_(std::move(rules)) {}

  void add(const Assignment& assigned) {
    Assignment filled;
    std::string problem;
    for (const auto& [name, value] : assigned.values()) {
      const FilledText text = fill_in(value, assigned);
      used_.insert(text.used.begin(), text.used.end());
      if (problem.empty()) problem = text.problem;
      filled.set(name, text.text);
    }
    for (const SkipRule& rule : rules_)
      if (rule.when.holds(filled)) return leave_out(rule.because);
    if (!problem.empty()) return leave_out(problem);
    StudyPoint point{.assigned = filled, .words = {}, .key = {}};
    std::vector<std::string> parts;
    bool dropped = false;
    for (const auto& [name, value] : filled.values()) {
      if (!holds(vocabulary_.options, name)) continue;
      if (!vocabulary_.matters(name, filled)) {
        point.assigned.erase(name);
        dropped = true;
        continue;
      }
      const std::string option = "--" + name;
      if (holds(vocabulary_.switches, name)) {
        if (value == "false" || value == "no") continue;
        point.words.push_back(option);
        parts.push_back(option);
        continue;
      }
      point.words.insert(point.words.end(), {option, value});
      parts.push_back(option + "=" + value);
    }
    std::sort(parts.begin(), parts.end());
    for (const std::string& part : parts) point.key += (point.key.empty() ? "" : " ") + part;
    if (!assigned_.insert(point.assigned.values()).second)
      return leave_out(dropped ? "differ from others in options that mean nothing to their strategy"
                               : "are the same as others");
    study_.points.push_back(std::move(point));
  }

  [[nodiscard]] bool is_used(const std::string& name) const { return used_.contains(name); }

 private:
  void leave_out(const std::string& reason) {
    for (LeftOut& one : study_.left_out)
      if (one.reason == reason) {
        ++one.points;
        return;
      }
    study_.left_out.push_back({reason, 1});
  }

  Study& study_;
  const StudyVocabulary& vocabulary_;
  std::vector<SkipRule> rules_;
  std::set<std::vector<std::pair<std::string, std::string>>> assigned_;
  std::set<std::string> used_;
};

/// Names of cases are for people, so that they need not be used.
std::set<std::string> case_names(const YamlNode& blocks) {
  std::set<std::string> names;
  for (const YamlNode& block : blocks.items())
    if (block.has("cases")) names.insert(block.at("cases").keys().front());
  return names;
}

}  // namespace

Study load_study(const std::string& path, const StudyVocabulary& vocabulary,
                 const std::vector<std::string>& columns) {
  const YamlNode file = YamlNode::load(path);
  file.allow_only({"study", "about", "predict", "points", "skip", "expect", "cost", "plot"});
  Study study;
  study.path = path;
  study.title = file.at("study").text();
  if (study.title.size() > kLongestTitle)
    file.at("study").fail("found " + std::to_string(study.title.size()) + " characters, expected at most " +
                          std::to_string(kLongestTitle) + "; 'about' takes more");
  if (file.has("about")) study.about = file.at("about").text();
  const YamlNode blocks = file.at("points");
  const Assignment base = base_of(file, vocabulary);
  std::vector<Assignment> points = expand_points(blocks);
  std::set<std::string> seen;
  for (const Assignment& point : points)
    for (const auto& [name, value] : point.values())
      if (seen.insert(name).second) study.names.push_back(name);
  std::vector<std::string> assigned = study.names;
  for (const auto& [name, value] : base.values()) assigned.push_back(name);
  Builder builder(study, vocabulary, skip_rules(file, assigned));
  for (Assignment& point : points) {
    point.add_missing(base);
    try {
      builder.add(point);
    } catch (const InputError& error) {
      blocks.fail(error.what());
    }
  }
  const std::set<std::string> cases = case_names(blocks);
  for (const std::string& name : study.names)
    if (!holds(vocabulary.options, name) && !builder.is_used(name) && !cases.contains(name))
      blocks.fail(unknown_name("option", name, vocabulary.options) + "; nor does a value use {" + name + "}");
  if (study.points.empty()) blocks.fail("no point is left");
  if (file.has("expect"))
    for (const YamlNode& node : file.at("expect").items())
      study.expectations.push_back(expectation_of(node, assigned, columns));
  study.cost = study_cost(file);
  if (file.has("plot"))
    for (const YamlNode& node : file.at("plot").items()) {
      study.figures.push_back(study_figure(node, study.names, assigned, columns));
      const auto stem = [](const StudyFigure& one) { return std::filesystem::path(one.file).stem(); };
      for (const StudyFigure& other : study.figures)
        if (&other != &study.figures.back() && stem(other) == stem(study.figures.back()))
          node.at("file").fail("another figure has this name, and so its script and data");
    }
  for (const StudyPoint& point : study.points) {  // what cannot be compared shows now, not after hours
    try {
      for (const Expectation& one : study.expectations)
        if (one.where) static_cast<void>(one.where->holds(point.assigned));
      for (const StudyFigure& one : study.figures)
        if (one.where) static_cast<void>(one.where->holds(point.assigned));
    } catch (const InputError& error) {
      blocks.fail(error.what());
    }
  }
  return study;
}

}  // namespace stepcast

#include "sim/study/point_builder.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// A file name without folders, and without dots that separate nothing: `ddp...` is `ddp`.
std::string file_name(std::string text) {
  std::erase(text, '/');
  const auto end = std::unique(text.begin(), text.end(), [](char a, char b) { return a == '.' && b == '.'; });
  text.erase(end, text.end());
  while (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

void PointBuilder::add(const Assignment& assigned, const std::string& only) {
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

/// The values with their expressions replaced. \param problem of one that has no value
Assignment PointBuilder::expanded(const Assignment& assigned, std::string& problem) {
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
bool PointBuilder::take_options(StudyPoint& point) const {
  std::vector<std::string> words;
  bool dropped = false;
  const Assignment assigned = point.assigned;
  for (const auto& [name, value] : assigned.values()) {
    if (std::ranges::count(vocabulary_.options, name) == 0 || value.empty()) continue;
    const std::string option = "--" + name;
    const bool is_switch = std::ranges::count(vocabulary_.switches, name) > 0;
    if (!vocabulary_.matters(name, assigned)) {
      point.assigned.erase(name);
      dropped = true;
    } else if (!is_switch) {
      point.options.set(option, value);
      words.push_back(option + "=" + value);
    } else if (value == "true" || value == "yes") {
      point.options.set(option, "");
      words.push_back(option);
    } else if (value != "false" && value != "no") {
      throw InputError("{}: found '{}', expected yes or no", name, value);
    }
  }
  std::ranges::sort(words);
  point.key = joined(words, " ");
  return dropped;
}

}  // namespace stepcast

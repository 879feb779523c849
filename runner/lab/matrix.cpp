#include "runner/lab/matrix.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {
namespace {

using Settings = std::map<std::string, std::string>;

std::vector<std::string> texts_of(const YamlNode& node) {
  if (!node.is_sequence()) return {node.text()};
  std::vector<std::string> texts;
  for (const YamlNode& item : node.items()) texts.push_back(item.text());
  return texts;
}

/// Every combination of the values of a grid.
std::vector<Settings> combinations(const YamlNode& grid) {
  std::vector<Settings> all{{}};
  for (const std::string& key : grid.keys()) {
    std::vector<Settings> longer;
    for (const Settings& one : all)
      for (const std::string& value : texts_of(grid.at(key))) longer.emplace_back(one)[key] = value;
    all = std::move(longer);
  }
  return all;
}

/// `text` with its gaps `{key}` filled.
std::string filled(std::string text, const Settings& settings, const YamlNode& place) {
  for (std::size_t open = 0; (open = text.find('{', open)) != std::string::npos;) {
    const std::size_t close = std::min(text.find('}', open), text.size());
    const auto found = settings.find(text.substr(open + 1, close - open - 1));
    if (found == settings.end()) place.fail("'" + text + "' has a gap that no key fills");
    text.replace(open, close + 1 - open, found->second);
    open += found->second.size();
  }
  return text;
}

}  // namespace

LabMatrix::LabMatrix(const std::string& name) {
  files_.push_back(YamlNode::load(find_resource("studies/lab", name, ".yaml")));
  if (files_.front().has("like"))
    files_.push_back(YamlNode::load(find_resource("studies/lab", files_.front().at("like").text(), ".yaml")));
  for (const YamlNode& file : files_)
    file.allow_only({"name", "like", "parameters", "every", "values", "points", "changes"});
}

YamlNode LabMatrix::at(const std::string& key) const {
  return (files_.front().has(key) ? files_.front() : files_.back()).at(key);
}

LabPoint LabMatrix::point(Settings chosen, std::vector<std::string> keys) const {
  const YamlNode every = at("every"), values = at("values");
  for (const std::string& key : every.keys())
    if (chosen.try_emplace(key, every.at(key).text()).second) keys.push_back(key);
  const std::vector<std::string> parameters = texts_of(at("parameters"));
  LabPoint point{filled(at("name").text(), chosen, at("name")), {}, {}};
  std::erase(point.name, '/');
  for (const std::string& key : keys) {
    const std::string value = point.settings[key] = filled(chosen.at(key), chosen, every);
    if (values.has(key)) {
      const YamlNode known = values.at(key);
      if (!known.has(value)) known.fail(unknown_name("value", value, known.keys()));
      const YamlNode options = known.at(value);
      for (const std::string& option : options.keys()) {
        point.settings[option] = filled(options.at(option).text(), chosen, options);
        point.options.push_back(option);
      }
    } else if (std::find(parameters.begin(), parameters.end(), key) == parameters.end()) {
      point.options.push_back(key);
    }
  }
  return point;
}

std::vector<std::string> LabPoint::words(const std::vector<std::string>& except) const {
  std::vector<std::string> all;
  for (const std::string& option : options)
    if (std::find(except.begin(), except.end(), option) == except.end())
      all.insert(all.end(), {"--" + option, settings.at(option)});
  return all;
}

std::vector<LabPoint> LabMatrix::points() const {
  std::vector<LabPoint> all;
  for (const YamlNode& grid : at("points").items())
    for (const Settings& settings : combinations(grid)) all.push_back(point(settings, grid.keys()));
  return all;
}

}  // namespace stepcast

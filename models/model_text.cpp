#include <regex>
#include <set>
#include <sstream>

#include "core/file.hpp"
#include "core/yaml.hpp"
#include "models/hugging_face.hpp"
#include "models/settings.hpp"

/// Model files whose blocks differ.
namespace stepcast {
namespace {

using Values = std::map<std::string, std::int64_t>;

/// The lines of a segment with names of settings replaced by numbers; conditions read `true` and `false`.
std::string with_numbers(std::string lines, const Values& values) {
  for (const auto& [name, value] : values) {
    const std::string end = "(?=[,}\\s]|$)";
    lines = std::regex_replace(lines, std::regex("(when|unless): " + name + end),
                               value != 0 ? "$1: true" : "$1: false");
    lines = std::regex_replace(lines, std::regex(": " + name + end), ": " + std::to_string(value));
  }
  return lines;
}

/// Settings of each group of blocks that differ between groups.
std::vector<Values> varying_values(const HuggingFaceModel& model, const std::string& path) {
  std::vector<Values> groups;
  for (const ModelBlocks& blocks : model.blocks) {
    Settings settings;
    settings.read(YamlNode::load(path).at("settings"));
    Specification all = model.specification;
    for (const auto& [name, value] : blocks.settings) {
      std::erase_if(all.overrides, [&, name = name](const auto& one) { return one.first == name; });
      all.overrides.emplace_back(name, value);
    }
    settings.apply(all);
    groups.push_back(settings.values());
  }
  std::set<std::string> same;
  for (const auto& [name, value] : groups.front())
    if (std::ranges::all_of(
            groups, [&, name = name, value = value](const Values& one) { return one.at(name) == value; }))
      same.insert(name);
  for (Values& group : groups)
    std::erase_if(group, [&](const auto& one) { return same.contains(one.first); });
  return groups;
}

/// Segments of a file: texts that start with `  - name:`; the first has everything before.
std::vector<std::string> segments_of(const std::string& text) {
  std::vector<std::string> parts{""};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  - name:")) parts.emplace_back();
    parts.back() += line + "\n";
  }
  return parts;
}

}  // namespace

std::string model_text(const HuggingFaceModel& model) {
  const std::string path = find_resource("models", model.specification.file, ".yaml").string();
  const std::vector<Values> groups = varying_values(model, path);
  std::vector<std::string> parts = segments_of(read_file(path));
  for (const auto& [name, value] : model.specification.overrides)
    parts.front() =
        std::regex_replace(parts.front(), std::regex("\n  " + name + ": [^\n#]*"),
                           "\n  " + name + ": " + value + " ", std::regex_constants::format_first_only);
  std::string text = parts.front();
  for (std::size_t part = 1; part < parts.size(); ++part) {
    const bool repeats = parts[part].find("\n    repeat: layers\n") != std::string::npos;
    for (std::size_t i = 0; i < (repeats ? groups.size() : 1); ++i)
      text += !repeats ? parts[part]
                       : std::regex_replace(with_numbers(parts[part], groups[i]),
                                            std::regex("    repeat: layers\n"),
                                            fmt::format("    repeat: {}\n    from: {}\n", model.blocks[i].end,
                                                        model.blocks[i].first));
  }
  return text;
}

}  // namespace stepcast

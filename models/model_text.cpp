#include <algorithm>
#include <map>
#include <regex>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"
#include "models/hugging_face.hpp"
#include "models/settings.hpp"

/// Model files whose blocks differ.
namespace stepcast {
namespace {

using Values = std::map<std::string, std::int64_t>;

/// The lines of a segment with names of settings replaced by numbers; conditions read `true` and `false`.
std::string with_numbers(const std::string& lines, const Values& values) {
  std::string result;
  std::size_t at = 0;
  for (std::size_t colon = lines.find(": "); colon != std::string::npos; colon = lines.find(": ", at)) {
    const std::size_t word = colon + 2, end = std::min(lines.find_first_of(",} \n", word), lines.size());
    result.append(lines, at, word - at);
    const std::string name = lines.substr(word, end - word);
    if (const auto found = values.find(name); found == values.end())
      result += name;
    else if (result.ends_with("when: ") || result.ends_with("unless: "))
      result += found->second != 0 ? "true" : "false";
    else
      result += std::to_string(found->second);
    at = end;
  }
  return result.append(lines, at);
}

/// Settings of each group of blocks that differ between groups.
std::vector<Values> varying_values(const HuggingFaceModel& model, const std::string& path) {
  std::vector<Values> groups;
  Settings own;
  own.read(YamlNode::load(path).at("settings"));
  for (const ModelBlocks& blocks : model.blocks) {
    Settings settings = own;
    Specification all = model.specification;
    for (const auto& [name, value] : blocks.settings) all.set(name, value);
    settings.apply(all);
    groups.push_back(settings.values());
  }
  const auto is_equal = [all = groups](const auto& one) {
    return std::ranges::all_of(all, [&](const Values& other) { return other.at(one.first) == one.second; });
  };
  for (Values& group : groups) std::erase_if(group, is_equal);
  return groups;
}

/// Segments of a file: texts that start with `  - name:`; the first has everything before.
std::vector<std::string> segments_of(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const std::string& line : split(text)) {
    if (line.starts_with("  - name:")) parts.emplace_back();
    parts.back() += line + "\n";
  }
  return parts;
}

}  // namespace

std::vector<ModelBlocks> grouped_blocks(int layers, const std::function<BlockSettings(int)>& settings_of,
                                        Specification& all) {
  std::vector<ModelBlocks> groups;
  for (int layer = 0; layer < layers; ++layer) {
    BlockSettings settings = settings_of(layer);
    if (groups.empty() || groups.back().settings != settings)
      groups.push_back({layer, layer, std::move(settings)});
    groups.back().end = layer + 1;
  }
  for (const auto& one : BlockSettings(groups.front().settings)) {
    const bool same = std::ranges::all_of(groups, [&](const ModelBlocks& group) {
      return std::ranges::find(group.settings, one) != group.settings.end();
    });
    if (!same) continue;
    all.set(one.first, one.second);
    for (ModelBlocks& group : groups) std::erase(group.settings, one);
  }
  return groups.size() > 1 ? groups : std::vector<ModelBlocks>{};
}

BlockSettings settings_of_letter(char letter, const std::string& where) {
  static const YamlNode kLetters = YamlNode::shipped("models/operators/blocks.yaml").at("letters");
  if (const std::string name(1, letter); kLetters.has(name))
    return transformed(entries_of(kLetters, name),
                       [](const auto& one) { return std::pair(one.first, one.second.text()); });
  throw InputError(
      "{}: block '{}' is not known; M is a state-space layer (Mamba 2), * attention, "
      "- a feed-forward layer, E experts",
      where, letter);
}

HuggingFaceModel read_pattern(const YamlNode& file, Specification& given) {
  std::map<std::string, std::string> settings;
  if (file.has("like"))
    for (const auto& [name, value] : entries_of(file, "settings")) settings[name] = value.text();
  settings["pattern"] = file.text_or("pattern", "");
  for (const auto& [name, value] : given.overrides) settings[name] = value;
  std::erase_if(given.overrides, [](const auto& one) { return one.first == "pattern"; });
  std::string letters = settings.extract("pattern").mapped();
  if (letters.empty()) return {};
  if (const auto layers = settings.find("layers"); layers != settings.end()) {
    const auto first = number_in<std::size_t>(layers->second).value_or(0);
    if (first < 1 || first > letters.size())
      throw InputError("model '{}': layers={} must be 1 to {}, the letters of its pattern", given.file,
                       layers->second, letters.size());
    letters.resize(first);
  }
  if (const auto experts = settings.find("experts");
      letters.find('E') != std::string::npos && (experts == settings.end() || experts->second == "0"))
    throw InputError("model '{}': pattern: E is a block of experts, but experts is 0; set experts=N",
                     given.file);
  settings["layers"] = std::to_string(letters.size());
  HuggingFaceModel model;
  model.specification = {file.text_or("like", given.file), {settings.begin(), settings.end()}};
  const auto settings_of = [&](int layer) {
    return settings_of_letter(letters[layer], fmt::format("model '{}': pattern", given.file));
  };
  model.blocks = grouped_blocks(static_cast<int>(letters.size()), settings_of, model.specification);
  return model;
}

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
    const std::string all = "\n    repeat: layers\n";
    if (parts[part].find(all) == std::string::npos) {
      text += parts[part];
      continue;
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      std::string block = with_numbers(parts[part], groups[i]);
      const ModelBlocks& range = model.blocks[i];
      text += block.replace(block.find(all), all.size(),
                            fmt::format("\n    repeat: {}\n    from: {}\n", range.end, range.first));
    }
  }
  return text;
}

}  // namespace stepcast

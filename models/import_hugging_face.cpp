#include <algorithm>
#include <filesystem>

#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/hugging_face.hpp"
#include "models/model.hpp"
#include "models/model_file.hpp"

/// Imports configurations of Hugging Face as model files.
namespace stepcast {
namespace {

bool is_configuration(const std::string& head) {
  const auto first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || head[first] != '{') return false;
  const auto has = [&](const char* key) {
    return head.find(fmt::format("\"{}\"", key)) != std::string::npos;
  };
  return has("model_type") || (has("hidden_size") && has("num_hidden_layers")) || has("text_config") ||
         (has("architectures") && has("vocab_size"));
}

/// Name of the file's folder if the file is a config.json, else of the file.
std::string name_of(const std::filesystem::path& path) {
  const auto absolute = std::filesystem::absolute(path);
  return absolute.filename() == "config.json" ? absolute.parent_path().filename().string()
                                              : absolute.stem().string();
}

Model model_of(const HuggingFaceModel& configured, const std::string& name) {
  const Specification& given = configured.specification;
  return of_file(name, [&] {
    return model_from(configured.blocks.empty() ? YamlNode::shipped("models/" + given.file + ".yaml")
                                                : YamlNode::parse(model_text(configured), name),
                      given);
  });
}

/// A power of two of at most 4096 and the positions of the model.
int usual_sequence(const HuggingFaceModel& configured) {
  int sequence = 4096;
  if (const std::string* positions = configured.specification.find("positions");
      positions != nullptr && *positions != "0")
    while (sequence > 1 && sequence > number_in<int>(*positions).value_or(sequence)) sequence /= 2;
  return sequence;
}

std::string file_text(const HuggingFaceModel& configured, const std::string& described) {
  const std::string description = in_double_quotes(described);
  if (!configured.blocks.empty()) {
    std::string text = model_text(configured);
    return "description: " + description + text.substr(text.find('\n'));
  }
  const auto settings = transformed(configured.specification.overrides,
                                    [](const auto& one) { return one.first + ": " + one.second; });
  return fmt::format("description: {}\nlike: {}\nsettings: {{{}}}\n", description,
                     configured.specification.file, joined(settings));
}

Imported import_configuration(const std::vector<std::string>& paths, const ImportTexts& options) {
  Specification given{.file = paths.front()};
  const std::string sequence = value_or(options, "sequence", "");
  if (!sequence.empty() && number_in<int>(sequence).value_or(0) < 1)
    throw UsageError("--sequence: found '{}', expected a whole number above 0", sequence);
  const HuggingFaceModel first = read_configuration(paths.front(), given);
  const std::string chosen = sequence.empty() ? std::to_string(usual_sequence(first)) : sequence;
  given.overrides = {{"sequence", chosen}};
  const HuggingFaceModel configured = read_configuration(paths.front(), given);
  const Model model = model_of(configured, paths.front());
  Imported imported{
      .assumed = configured.assumed, .ignored = configured.ignored, .obstacles = configured.obstacles};
  std::vector<std::string> settings;
  for (const auto& [name, value] : configured.specification.overrides) settings.push_back(name + "=" + value);
  imported.understood.push_back(fmt::format(
      "{}: {} parameters ({}), family {}: {}", configured.type, model.parameter_count(),
      counted(model.segments.size(), "segment"), configured.specification.file, joined(settings)));
  if (!configured.blocks.empty())
    imported.understood.push_back(counted(configured.blocks.size(), "group") + " of equal blocks");
  if (sequence.empty())
    imported.assumed.push_back("sequences of " + chosen + " tokens; --sequence or :sequence= changes it");
  if (imported.obstacles.empty())
    imported.text =
        file_text(configured, fmt::format("{} ({}, {} parameters), from a configuration of Hugging Face",
                                          name_of(paths.front()), configured.type, model.parameter_count()));
  return imported;
}

const Registration<Importer> kHuggingFace{importers(), "hf", {is_configuration, import_configuration}, 60};

}  // namespace
}  // namespace stepcast

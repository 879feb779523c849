#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/yaml.hpp"
#include "models/model.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast {
namespace {

void print(const std::string& file, const std::string& what, const std::string& use) {
  std::cout << fmt::format("{}: {}\nused by: {}\n", file, what, use);
}

/// Schema of a JSON file of stepcast; "" of others.
std::string schema_of(const std::string& head) {
  constexpr std::string_view kKey = "\"schema\": \"";
  const auto at = head.find(kKey);
  if (at == std::string::npos || at > 1000) return "";
  const std::string schema =
      head.substr(at + kKey.size(), head.find('"', at + kKey.size()) - at - kKey.size());
  return schema.starts_with("stepcast.") ? schema : "";
}

/// print() for a file of ours. \throws UsageError with an option of importers
void print_own(const std::string& file, const std::string& what, const std::string& use,
               const ImportTexts& options) {
  if (!options.empty())
    throw UsageError("--{} has no effect on models, clusters and files of stepcast, as {}",
                     options.begin()->first, file);
  print(file, what, use);
}

bool show_own_json(const std::string& file, const std::string& head, const ImportTexts& options) {
  const std::string schema = schema_of(head);
  const YamlNode kinds = command_page("show").at("json");
  const std::string sign = schema.substr(0, schema.find('/'));
  if (!kinds.has(sign)) return false;
  load_json(file, schema);
  print_own(file, fmt::format("{} ({})", kinds.at(sign).at("what").text(), schema),
            kinds.at(sign).at("use").text(), options);
  return true;
}

/// Tree of a cluster, or parameters and settings of a model.
std::string contents_of(const std::string& what, const std::string& specification) {
  if (what == "cluster") return tree_text(load_cluster(specification));
  if (what != "model") return "";
  const Model model = load_model(specification);
  std::vector<std::string> settings;
  for (const auto& [name, value] : model.settings) settings.push_back(fmt::format("{}={}", name, value));
  return fmt::format("{}\n{} parameters in {}{}\n", YamlNode::load(model.path).text_or("description", ""),
                     model.parameter_count(), counted(model.segments.size(), "segment"),
                     settings.empty() ? "" : "\nsettings: " + joined(settings));
}

bool show_own_yaml(const std::string& file, const ImportTexts& options) {
  const auto extension = std::filesystem::path(file).extension();
  if (extension != ".yaml" && extension != ".yml") return false;
  const YamlNode yaml = YamlNode::load(file);
  if (!yaml.is_map()) return false;
  const YamlNode kinds = command_page("show").at("yaml");
  for (const std::string& sign : kinds.keys()) {
    if (!yaml.has(sign)) continue;
    const std::string what = kinds.at(sign).at("what").text();
    const std::string contents = contents_of(what, file);
    print_own(file, what, kinds.at(sign).at("use").text(), options);
    std::cout << contents;
    return true;
  }
  return false;
}

ExitCode show_foreign(const std::string& file, const Registry<Importer>::Entry& kind,
                      const ImportTexts& options) {
  const YamlNode page = import_kind(kind.name);
  const std::string use = page.text_or("use", "");
  print(file, kind.name + ", " + page.at("description").text(),
        page.has("makes")
            ? fmt::format("'stepcast import', which makes a {} of it, for {}", page.at("makes").text(), use)
        : use.empty() ? "nothing yet"
                      : use);
  const Imported imported = kind.value.read({file}, options);
  std::cout << import_report(imported);
  return ExitCode::kDone;
}

/// Shows a shipped model or cluster, with settings. \throws InputError that lists them if it is neither
void show_shipped(const std::string& specification, const ImportTexts& options) {
  const std::string name = specification.substr(0, specification.find(':'));
  std::vector<std::string> known = resource_names("models", ".yaml");
  const auto is_known = [&] { return std::ranges::find(known, name) != known.end(); };
  const std::string what = is_known() ? "model" : "cluster";
  std::ranges::move(resource_names("topologies", ".yaml"), std::back_inserter(known));
  if (!is_known())
    throw InputError("{}: no such file; {}", specification, unknown_name("model or cluster", name, known));
  const std::string contents = contents_of(what, specification);
  print_own(specification, what, "predict --" + what + " " + specification, options);
  std::cout << contents;
}

ExitCode run(const po::variables_map& values) {
  const std::vector<std::string> files = texts_option(values, "file");
  if (files.size() != 1) throw UsageError("'show' takes one file, got {}", files.size());
  const std::string& file = files.front();
  const std::string as = text_option(values, "as");
  const ImportTexts options = import_texts(values);
  if (as.empty() && file.find('/') == std::string::npos && !std::filesystem::exists(file)) {
    show_shipped(file, options);
    return ExitCode::kDone;
  }
  if (as.empty() && !std::filesystem::is_directory(file)) {
    const std::string head = file_head(file);
    if (show_own_json(file, head, options) ||
        (recognised_importer(head) == nullptr && show_own_yaml(file, options)))
      return ExitCode::kDone;
  }
  const auto& kind = importer_of(file, as);
  check_options(kind, options);
  return show_foreign(file, kind, options);
}

const Registration<Command> kShow{commands(), "show", {.run = run}, 24};

}  // namespace
}  // namespace stepcast

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/yaml.hpp"
#include "models/model.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster_text.hpp"

namespace stepcast {
namespace {

/// A kind of file that stepcast or its users write.
struct OwnKind {
  std::string sign;  ///< schema without its version, or a key of a YAML file
  std::string what;
  std::string use;
};

const std::vector<OwnKind>& json_kinds() {
  static const std::vector<OwnKind> kKinds{
      {"stepcast.trace", "costs of one rank, from 'stepcast measure'", "predict --trace FILE"},
      {"stepcast.calibration", "costs of communication", "predict --calibration FILE"},
      {"stepcast.result", "a training step, predicted or measured", "compare, explain, plot"},
      {"stepcast.bench", "times of collectives", "compare, plot bandwidth"},
      {"stepcast.explain", "an explanation of a step", "reading"},
      {"stepcast.compare", "a comparison of a forecast with a run", "reading"},
      {"stepcast.study", "results of a study", "plot"},
      {"stepcast.validation", "errors of published cases", "reading"},
      {"stepcast.measured", "errors of measured sets", "reading"}};
  return kKinds;
}

const std::vector<OwnKind>& yaml_kinds() {
  static const std::vector<OwnKind> kKinds{{"segments", "model", "predict --model FILE"},
                                           {"like", "model", "predict --model FILE"},
                                           {"hosts", "cluster", "predict --cluster FILE"},
                                           {"convention", "convention", "predict --like FILE"},
                                           {"launch", "options of a forecast", "predict --from FILE"},
                                           {"cases", "study", "study FILE"},
                                           {"values", "study", "study FILE"}};
  return kKinds;
}

void print(const std::string& file, const std::string& what, const std::string& use) {
  std::cout << fmt::format("{}: {}\nused by: {}\n", file, what, use);
}

/// Schema of a JSON file of stepcast; "" of others.
std::string schema_of(const std::string& head) {
  constexpr std::string_view kKey = "\"schema\": \"";
  const auto at = head.find(kKey);
  if (head.find_first_not_of(" \t\r\n") == std::string::npos || at == std::string::npos || at > 1000)
    return "";
  const std::string schema =
      head.substr(at + kKey.size(), head.find('"', at + kKey.size()) - at - kKey.size());
  return schema.starts_with("stepcast.") ? schema : "";
}

bool show_own_json(const std::string& file, const std::string& head) {
  const std::string schema = schema_of(head);
  for (const OwnKind& kind : json_kinds())
    if (schema.substr(0, schema.find('/')) == kind.sign) {
      load_json(file, schema);
      print(file, fmt::format("{} ({})", kind.what, schema), kind.use);
      return true;
    }
  return false;
}

bool show_own_yaml(const std::string& file) {
  const auto extension = std::filesystem::path(file).extension();
  if (extension != ".yaml" && extension != ".yml") return false;
  const YamlNode yaml = YamlNode::load(file);
  if (!yaml.is_map()) return false;
  for (const OwnKind& kind : yaml_kinds()) {
    if (!yaml.has(kind.sign)) continue;
    print(file, kind.what, kind.use);
    if (kind.what == "cluster") std::cout << tree_text(load_cluster(file));
    if (kind.what == "model") {
      const Model model = load_model(file);
      std::cout << fmt::format("{}\n{} parameters in {}\n", yaml.text_or("description", ""),
                               model.parameter_count(), counted(model.segments.size(), "segment"));
    }
    return true;
  }
  return false;
}

ExitCode show_foreign(const std::string& file, const Registry<Importer>::Entry& kind,
                      const ImportTexts& options) {
  print(file, kind.name + ", " + kind.description,
        kind.value.makes.empty() ? kind.value.use.empty() ? "nothing yet" : kind.value.use
                                 : fmt::format("'stepcast import', which makes a {} of it, for {}",
                                               kind.value.makes, kind.value.use));
  const Imported imported = kind.value.read({file}, options);
  std::cout << import_report(imported);
  return ExitCode::kDone;
}

void declare(po::options_description& options) {
  options.add_options()("file", po::value<std::vector<std::string>>(),
                        "a file of stepcast or of another program")(
      "as", text_value(), "the kind, a name of 'stepcast help import'; default: recognised")(
      "device", text_value(), "as in 'import', for files that do not determine their GPUs");
}

ExitCode run(const po::variables_map& values) {
  const std::vector<std::string> files = texts_option(values, "file");
  if (files.size() != 1) throw UsageError("'show' takes one file, got {}", files.size());
  const std::string& file = files.front();
  const std::string as = text_option(values, "as");
  if (as.empty() && !std::filesystem::is_directory(file)) {
    const std::string head = file_head(file);
    if (show_own_json(file, head)) return ExitCode::kDone;
    if (recognised_importer(head) == nullptr && show_own_yaml(file)) return ExitCode::kDone;
  }
  const auto& kind = importer_of(file, as);
  ImportTexts options;
  if (values.count("device") != 0) options["device"] = text_option(values, "device");
  return show_foreign(file, kind, options);
}

const Registration<Command> kShow{commands(),
                                  {.name = "show",
                                   .description = "Reports what a file is, and what it can be used for.",
                                   .value = {.declare = declare,
                                             .run = run,
                                             .positional = "file",
                                             .usage = "stepcast show FILE [--as KIND]",
                                             .group = "Predict and compare"},
                                   .order = 24}};

}  // namespace
}  // namespace stepcast

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "models/model.hpp"
#include "sim/cli/option.hpp"
#include "topologies/cluster_text.hpp"
#include "topologies/devices.hpp"

namespace stepcast::show_command {
namespace {

void print(const std::string& file, const std::string& what, const std::string& use) {
  std::cout << fmt::format("{}: {}\nused by: {}\n", file, what, use);
}

/// print() for a file of ours. \throws UsageError with an option of importers
void print_own(const std::string& file, const std::string& what, const std::string& use,
               const ImportTexts& options) {
  if (!options.empty())
    throw UsageError("--{} has no effect on models, clusters, devices and files of stepcast, as {}",
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

/// Data sheet of a device, and what an estimate assumes of it.
std::string device_text(const DeviceModel& device) {
  Table table({device.name, device.about.summary});
  for (const auto& [dtype, peak] : device.peak) table.add({"peak in " + dtype, to_text(peak)});
  table.add(
      {"memory", (device.gpu ? to_text(device.memory) + " at " : "") + to_text(device.memory_bandwidth)});
  table.add({"compute_efficiency", percent_text(device.estimate.compute_efficiency, 1)});
  table.add({"memory_efficiency", percent_text(device.estimate.memory_efficiency, 0)});
  if (device.gpu)
    for (const auto& [name, time] : {std::pair{"kernel_launch", device.launch.kernel},
                                     {"operation_issue", device.launch.operation},
                                     {"module_issue", device.launch.module},
                                     {"collective_issue", device.launch.collective}})
      table.add({name, to_text(time)});
  if (!device.about.assumed.empty()) table.add({"assumed", device.about.assumed});
  table.add({"source", device.about.source});
  return table.text();
}

/// Tree of a cluster, parameters and settings of a model, or data of a device.
std::string contents_of(const std::string& what, const std::string& specification) {
  if (what == "cluster") return tree_text(load_cluster(specification));
  if (what == "device") return device_text(device_model(specification));
  if (what != "model") return "";
  const Model model = load_model(specification);
  std::vector<std::string> settings;
  for (const auto& [name, value] : model.settings) settings.push_back(fmt::format("{}={}", name, value));
  const bool changed = !Specification::parse("model", specification).overrides.empty();
  return fmt::format("{}{}\n{} parameters in {}{}\n", changed ? "changed from: " : "",
                     YamlNode::load(model.path).text_or("description", ""), model.parameter_count(),
                     counted(model.segments.size(), "segment"),
                     settings.empty() ? "" : "\nsettings: " + joined(settings));
}

/// \param specification of a model or cluster: the file with settings
bool show_own_yaml(const std::string& file, const std::string& specification, const ImportTexts& options) {
  const auto extension = std::filesystem::path(file).extension();
  if (extension != ".yaml" && extension != ".yml") return false;
  const YamlNode yaml = YamlNode::load(file);
  if (!yaml.is_map()) return false;
  const YamlNode kinds = command_page("show").at("yaml");
  for (const std::string& sign : kinds.keys()) {
    if (!yaml.has(sign)) continue;
    const std::string what = kinds.at(sign).at("what").text();
    const std::string contents = contents_of(what, specification);
    print_own(specification, what, kinds.at(sign).at("use").text(), options);
    std::cout << contents;
    return true;
  }
  const std::vector<std::string> names = yaml.keys();  // of devices: stepcast fit writes one
  if (names.size() != 1 || !yaml.at(names.front()).is_map() || !yaml.at(names.front()).has("like"))
    return false;
  print_own(file, "device " + names.front(), "predict --device-file FILE", options);
  return true;
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

/// Shows a shipped model, cluster or device, with settings. \throws InputError that lists them if it is none
void show_shipped(const std::string& specification, const ImportTexts& options) {
  const std::string name = specification.substr(0, specification.find(':'));
  std::string what = name == "hf" ? "model" : "";
  std::vector<std::string> known;
  for (const auto& [kind, names] : {std::pair{"model", resource_names("models", ".yaml")},
                                    {"cluster", resource_names("topologies", ".yaml")},
                                    {"device", transformed(device_models(), &DeviceModel::name)}}) {
    if (what.empty() && contains(names, name)) what = kind;
    append(known, names);
  }
  if (what.empty())
    throw InputError("{}: no such file; {}", specification,
                     unknown_name("model, cluster or device", name, known));
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
  const std::string base = file.substr(0, file.find(':'));
  const std::string& path = base.ends_with(".yaml") && !std::filesystem::exists(file) ? base : file;
  const bool is_name = file.find('/') == std::string::npos || file.starts_with("hf:");
  if (as.empty() && is_name && !std::filesystem::exists(path)) {
    show_shipped(file, options);
    return ExitCode::kDone;
  }
  if (as.empty() && !std::filesystem::is_directory(path)) {
    const std::string head = file_head(path);
    if (show_own_json(path, head, options) ||
        (recognised_importer(head) == nullptr && show_own_yaml(path, file, options)))
      return ExitCode::kDone;
  }
  const auto& kind = importer_of(file, as);
  check_options(kind, options);
  return show_foreign(file, kind, options);
}

const Registration<Command> kShow{commands(), "show", {.run = run}, 24};

}  // namespace
}  // namespace stepcast::show_command

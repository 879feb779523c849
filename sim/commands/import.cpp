#include <iostream>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "records/run_context.hpp"
#include "sim/cli/option.hpp"

namespace stepcast::import_command {
namespace {

using Words = std::vector<std::string>;

std::string file_text(const Imported& imported) {
  if (imported.schema.empty()) return written_line() + imported.text;
  nlohmann::json json = nlohmann::json::parse(imported.text);
  // The machine is the one that was measured, as far as the importer knows it, not this one.
  const nlohmann::json own = make_run_context(imported.schema, command_line());
  for (const char* key : {"schema", "command_line", "stepcast", "date"}) json["context"][key] = own[key];
  return to_file_text(json);
}

ExitCode run(const po::variables_map& values) {
  if (values.count("files") == 0) throw UsageError("'import' takes at least one file of another program");
  check_output(values);
  const Words files = texts_option(values, "files");
  const auto& kind = importer_of(files.front(), text_option(values, "as"));
  for (const std::string& file : files)
    if (const auto& other = importer_of(file, text_option(values, "as")); other.name != kind.name)
      throw UsageError("'{}' is of {}, '{}' of {}; import them one by one", files.front(), kind.name, file,
                       other.name);
  if (files.size() > 1 && !import_kind(kind.name).flag("several"))
    throw UsageError("files of {} are imported one by one, got {}", kind.name, files.size());
  const ImportTexts options = import_texts(values);
  check_options(kind, options);
  const Imported imported = kind.value.read(files, options);
  if (!imported.obstacles.empty())
    throw InputError("{}: cannot be imported: {}", files.front(), joined(imported.obstacles, "; "));
  (values.count("output") == 0 ? std::cerr : std::cout) << import_report(imported);
  write_or_print(values, file_text(imported));
  return ExitCode::kDone;
}

/// Kinds of files with an example each.
std::string kinds_text() {
  std::string text = "Kinds of files:\n";
  for (const std::string& name : importers().names()) {
    const YamlNode kind = import_kind(name);
    const std::string use = kind.text_or("use", "");
    text += fmt::format("  {}: {}\n      {}\n      stepcast import {}\n", name, kind.at("description").text(),
                        kind.has("makes") ? fmt::format("makes a {} ({})", kind.at("makes").text(), use)
                        : use.empty()     ? "refused with the reason"
                                          : "read as it is (" + use + ")",
                        kind.at("example").text());
  }
  return text;
}

const Registration<Command> kImport{commands(), "import", {.run = run, .ending = kinds_text}, 24};

}  // namespace
}  // namespace stepcast::import_command

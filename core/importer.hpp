#pragma once

#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "core/yaml.hpp"

/// Importers, one file each: other programs' files become files of this project.
namespace stepcast {

/// A file of this project, and what an importer understood, assumed and ignored: one sentence each.
struct Imported {
  std::string text{};    ///< YAML, or JSON without its context
  std::string schema{};  ///< of JSON: `stepcast.calibration/2`; "": YAML
  std::vector<std::string> understood{};
  std::vector<std::string> assumed{};
  std::vector<std::string> ignored{};
  std::vector<std::string> obstacles{};  ///< why `text` is empty although the file was understood
};

/// Options of `import` by name without dashes.
using ImportTexts = std::map<std::string, std::string>;

/// A kind of files; import_kind() describes it.
struct Importer {
  /// True if a text that starts like this is of this kind, well-formed or not.
  std::function<bool(const std::string& head)> recognises;
  /// \throws InputError that starts with the file and names line, column or key, and what was expected;
  /// UsageError for an option
  std::function<Imported(const std::vector<std::string>& paths, const ImportTexts& options)> read;
};

Registry<Importer>& importers();
/// The kind in commands/importers.yaml: `description`, `example` (a command), and if they apply `makes` (such
/// as `cluster`; without it files are refused or read as they are), `use` (where the new file is an
/// input; without it files are refused), `options` (of `import` that it understands), `several` (it reads
/// several files at once).
YamlNode import_kind(const std::string& name);

/// Text of a file, without gzip's compression: up to the place where that is damaged or cut, less some KiB.
/// \throws InputError if the file cannot be read
std::unique_ptr<std::istream> open_text(const std::string& path);
/// The first MiB of it, without a byte-order mark. \throws InputError if it cannot be read
std::string file_head(const std::string& path);
/// All of it, without a byte-order mark. \throws InputError if it cannot be read, or has more than 256 MiB
std::string read_text(const std::string& path);

/// The importer named `kind`, or, if that is "", the first that recognises the file. \throws InputError that
/// lists the kinds; UsageError for an unknown one
const Registry<Importer>::Entry& importer_of(const std::string& path, const std::string& kind);
/// \throws UsageError for an option that the kind does not understand
void check_options(const Registry<Importer>::Entry& kind, const ImportTexts& given);
/// Null if none recognises the text.
const Registry<Importer>::Entry* recognised_importer(const std::string& head);

}  // namespace stepcast

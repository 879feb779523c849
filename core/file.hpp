#pragma once

#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

/// Reads and writes files. A killed program leaves the old file or the new one, never a part of it.
namespace stepcast {

/// Content of a file. \throws InputError that names the file if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes all of `content`; false with errno if that fails.
bool write_all(int descriptor, std::string_view content);

/// Writes to a temporary name beside `path`, syncs and renames.
/// \throws InputError if `path` exists and `force` is false (the message names --force); RunError if the
/// disk is full or the folder cannot be written; the temporary file is removed.
void write_file(const std::filesystem::path& path, std::string_view content, bool force);

/// Checks, before long work, that `write_file` can write: no existing output without --force, an existing and
/// writable folder. \throws InputError
void check_writable(const std::filesystem::path& path, bool force);

/// A file under a temporary name, removed at the end of the scope (after a rename there is nothing to remove)
/// and, by `remove_temporary_files`, if a signal ends the program.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  int slot_ = -1;
};

/// Unlinks every temporary file in use. Async-signal-safe, for a signal handler.
void remove_temporary_files() noexcept;

/// Parses JSON. \throws InputError that names the file, line and column of a syntax error, the unexpected and
/// the expected token, or an early end of the file. Numbers beyond 1e18 and control characters are errors
/// too.
nlohmann::json parse_json_file(const std::filesystem::path& path);
/// One or more JSON values that follow each other, as in logs, without checks of their content.
std::vector<nlohmann::json> parse_json_values(const std::filesystem::path& path);
/// The same of a text; `name` is its name in errors.
std::vector<nlohmann::json> parse_json_values(const std::string& content, const std::string& name);

/// Parses JSON as Python and DeepSpeed write it: with comments, and with Infinity and NaN, which become null.
/// `name` is the text's name in errors, which are those of parse_json_file().
nlohmann::json parse_loose_json(const std::string& text, const std::string& name);

/// Message of the JSON library without its prefix and error number.
std::string json_complaint(const std::exception& error);

/// Parses a machine-written file and checks its schema (`stepcast.trace/1`).
/// \throws InputError that names both schemas if they differ.
nlohmann::json load_json(const std::filesystem::path& path, std::string_view schema);

/// Text of a machine-written file: JSON with its key `context` first.
std::string to_file_text(const nlohmann::json& json);

/// SHA-1 of a byte string as 40 hexadecimal digits, which identifies inputs in the lineage.
std::string sha1(std::string_view content);

/// Finds `name` as a path, or as `<folder>/<name><extension>` in $STEPCAST_HOME or in the source or
/// installation folder of stepcast. `folder` is `models`, `topologies` or `studies`. \throws InputError that
/// lists the known names, and the nearest.
std::filesystem::path find_resource(const std::string& folder, const std::string& name,
                                    const std::string& extension);

/// Names that `find_resource` finds, sorted.
std::vector<std::string> resource_names(const std::string& folder, const std::string& extension);

/// The folder with `models/` and `topologies/`.
std::filesystem::path home_folder();

}  // namespace stepcast

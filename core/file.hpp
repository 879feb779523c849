#pragma once

#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

/// Reading and writing files so that a killed program leaves the old file or the new one, never half of one.
namespace stepcast {

/// Whole content of a file. \throws InputError that names the file when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes to a temporary name beside `path`, syncs and renames.
/// \throws InputError when `path` exists and `force` is false (the message names --force); RunError when the
/// disk is full or the folder cannot be written; the temporary file is removed.
void write_file(const std::filesystem::path& path, std::string_view content, bool force);

/// Refuses early what `write_file` would refuse late, before long work: existing output without --force,
/// missing or unwritable folder. \throws InputError
void check_writable(const std::filesystem::path& path, bool force);

/// Parses JSON. \throws InputError that names the file, line and column of a syntax error, what was found there and what was
/// expected, or that the file ends early.
/// Numbers beyond 1e18 and control characters are refused too.
nlohmann::json parse_json_file(const std::filesystem::path& path);
/// One or more values that follow each other, as programs log them, whatever they hold.
std::vector<nlohmann::json> parse_json_values(const std::filesystem::path& path);

/// What the JSON library says of a value, without its own name and number of the error.
std::string json_complaint(const std::exception& error);

/// Parses a machine-written file and checks its schema (`stepcast.trace/1`).
/// \throws InputError when the file is another kind of file or of a newer version; it names both.
nlohmann::json load_json(const std::filesystem::path& path, std::string_view schema);

/// The text of a machine-written file: JSON whose context stands first, whatever its other keys are called.
std::string to_file_text(const nlohmann::json& json);

/// SHA-1 of a byte string as 40 hexadecimal digits; identifies inputs in the lineage.
std::string sha1(std::string_view content);

/// Finds `name` as a path, or as `<folder>/<name><extension>` in $STEPCAST_HOME or in the folder that
/// stepcast was built from or installed to. `folder` is `models`, `topologies` or `studies`. \throws InputError
/// that lists the names there are, and the nearest.
std::filesystem::path find_resource(const std::string& folder, const std::string& name,
                                    const std::string& extension);

/// The names that `find_resource` knows, sorted.
std::vector<std::string> resource_names(const std::string& folder, const std::string& extension);

/// The folder that holds `models/` and `topologies/`.
std::filesystem::path home_folder();

}  // namespace stepcast

#include "core/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/uuid/detail/sha1.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/program.hpp"

namespace stepcast {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMaxFileSize = 256U << 20U;
constexpr int kMaxJsonDepth = 64;

/// True if the nesting exceeds kMaxJsonDepth: functions on JSON values are recursive.
bool nested_too_deep(std::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size() && depth <= kMaxJsonDepth; ++i) {
    if (json[i] == '\\')
      ++i;
    else if (json[i] == '"')
      in_text = !in_text;
    else if (!in_text)
      depth += json[i] == '[' || json[i] == '{' ? 1 : json[i] == ']' || json[i] == '}' ? -1 : 0;
  }
  return depth > kMaxJsonDepth;
}

/// \throws InputError for implausibly large numbers and for texts with control characters
void refuse_absurd(const nlohmann::json& json, const std::string& path, const std::string& key) {
  if (json.is_number() && !(std::abs(json.get<double>()) <= 1e18))
    throw InputError(path + ": key '" + key + "': " + json.dump() + " is not a number of at most 1e18");
  if (json.is_string() && key != "command_line" && has_control_character(json.get_ref<const std::string&>()))
    throw InputError("{}: key '{}': '{}' contains a control character", path, key, json.get<std::string>());
  if (json.is_structured())
    for (const auto& [name, value] : json.items()) refuse_absurd(value, path, json.is_array() ? key : name);
}

/// \param byte last byte read, counted from 1; one more than the size if the file ends early
[[noreturn]] void fail_syntax(const std::string& path, std::string_view content, std::size_t byte,
                              const nlohmann::json::parse_error& error) {
  const std::string_view before = content.substr(0, byte - 1);
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  std::string problem = json_complaint(error);
  if (const auto what = problem.rfind(" - "); what != std::string::npos) problem = problem.substr(what + 3);
  const auto expected = problem.rfind("; expected ");
  if (byte > content.size())
    problem = "the file ends early (truncated?)" +
              (expected == std::string::npos ? std::string() : problem.substr(expected));
  else if (problem.starts_with("unexpected "))
    problem.replace(0, std::string_view("unexpected").size(), "found");
  throw InputError("{}:{}:{}: is not valid JSON: {}", path, line, column, problem);
}

// A signal handler may only read atomics and call unlink, so the paths are in fixed slots.
constexpr std::size_t kSlots = 16;
using Slots = std::array<std::atomic<const char*>, kSlots>;
Slots& slots() {
  static Slots instance{};
  return instance;
}

}  // namespace

std::string read_file(const fs::path& path) {
  if (fs::is_directory(path)) throw InputError(path.string() + ": is a folder, not a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string() + ": cannot be read: " + std::strerror(errno));
  std::string content;
  std::array<char, 1 << 16> part{};
  while (in.read(part.data(), part.size()) || in.gcount() > 0) {
    content.append(part.data(), static_cast<std::size_t>(in.gcount()));
    if (content.size() > kMaxFileSize)
      throw InputError(path.string() + ": has more than 256 MiB, which no file of stepcast has");
  }
  return content;
}

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void check_writable(const fs::path& path, bool force) {
  if (path.empty()) throw UsageError("-o: the file name is empty");
  if (fs::is_directory(path)) throw InputError(path.string() + ": is a folder; choose a file");
  if (fs::exists(path) && !fs::is_regular_file(path))  // rename would replace a device or a pipe by a file
    throw InputError(path.string() + ": is not an ordinary file; choose another name");
  if (fs::exists(path) && !force) throw InputError(path.string() + ": exists already; --force overwrites it");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    throw InputError(folder.string() + ": no such folder for " + path.filename().string());
  if (::access(folder.c_str(), W_OK) != 0)
    throw InputError(folder.string() + ": cannot be written: " + std::strerror(errno));
}

void write_file(const fs::path& path, std::string_view content, bool force) {
  check_writable(path, force);
  const TemporaryFile temporary(path.string() + ".part" + std::to_string(::getpid()));
  const int descriptor = ::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) throw RunError(path.string() + ": cannot be created: " + std::strerror(errno));
  int problem = write_all(descriptor, content) && ::fsync(descriptor) == 0 ? 0 : errno;
  if (::close(descriptor) != 0 && problem == 0) problem = errno;
  if (problem == 0 && ::rename(temporary.path().c_str(), path.c_str()) != 0) problem = errno;
  if (problem != 0)
    throw RunError(path.string() + ": could not be written: " + std::strerror(problem) +
                   "; nothing was changed");
}

TemporaryFile::TemporaryFile(std::string path) : path_(std::move(path)) {
  for (std::size_t i = 0; i < kSlots && slot_ < 0; ++i) {
    const char* empty = nullptr;
    if (slots()[i].compare_exchange_strong(empty, path_.c_str())) slot_ = static_cast<int>(i);
  }
}

TemporaryFile::~TemporaryFile() {
  if (slot_ >= 0) slots()[slot_].store(nullptr);
  ::unlink(path_.c_str());
}

void remove_temporary_files() noexcept {
  for (const auto& slot : slots())
    if (const char* path = slot.load(); path != nullptr) ::unlink(path);
}

std::string json_complaint(const std::exception& error) {
  const std::string words = error.what();
  const auto code = words.find("] ");
  return words.starts_with("[json.exception.") && code != std::string::npos ? words.substr(code + 2) : words;
}

std::vector<nlohmann::json> parse_json_values(const fs::path& path) {
  return parse_json_values(read_file(path), path.string());
}

std::vector<nlohmann::json> parse_json_values(const std::string& content, const std::string& name) {
  if (nested_too_deep(content)) throw InputError(name + ": is nested more than 64 levels deep");
  std::istringstream stream(content);
  std::vector<nlohmann::json> values;
  std::size_t begin = 0;
  try {
    do {
      begin = static_cast<std::size_t>(stream.tellg());
      stream >> values.emplace_back();
    } while (stream >> std::ws && !stream.eof());
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError(name + ": contains a number that is too large");
  } catch (const nlohmann::json::parse_error& error) {
    fail_syntax(name, content, begin + error.byte, error);
  }
  return values;
}

nlohmann::json parse_loose_json(const std::string& text, const std::string& name) {
  if (nested_too_deep(text)) throw InputError("{}: is nested more than 64 levels deep", name);
  std::string content;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (quoted && text[at] == '\\')
      content += text[at++];  // with what it escapes
    else if (text[at] == '"')
      quoted = !quoted;
    const auto word = quoted ? std::string_view() : std::string_view(text).substr(at);
    std::size_t length = 0;
    for (const std::string_view number : {"-Infinity", "Infinity", "NaN"})
      if (word.starts_with(number)) length = std::max(length, number.size());
    content += length > 0 ? "null" : text.substr(at, 1);
    at += length > 0 ? length - 1 : 0;
  }
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(content, nullptr, true, true);
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError("{}: contains a number that is too large", name);
  } catch (const nlohmann::json::parse_error& error) {
    fail_syntax(name, content, error.byte, error);
  }
  refuse_absurd(json, name, "");
  return json;
}

nlohmann::json parse_json_file(const fs::path& path) {
  std::vector<nlohmann::json> values = parse_json_values(path);
  if (values.size() != 1)
    throw InputError("{}: contains {} JSON values, expected one", path.string(), values.size());
  refuse_absurd(values.front(), path.string(), "");
  return std::move(values.front());
}

nlohmann::json load_json(const fs::path& path, std::string_view schema) {
  nlohmann::json json = parse_json_file(path);
  const std::string wanted(schema);
  if (!json.is_object() || !json.contains("context") || !json["context"].contains("schema"))
    throw InputError(path.string() + ": key 'context.schema' is missing; expected a file of " + wanted);
  const std::string found =
      json["context"]["schema"].is_string() ? json["context"]["schema"].get<std::string>() : "?";
  if (found != wanted) throw InputError(path.string() + ": has schema " + found + ", expected " + wanted);
  return json;
}

std::string to_file_text(const nlohmann::json& json) {
  nlohmann::ordered_json ordered;
  if (json.contains("context")) ordered["context"] = json["context"];
  for (const auto& [key, value] : json.items())
    if (key != "context") ordered[key] = value;
  return ordered.dump(1) + "\n";
}

std::string sha1(std::string_view content) {
  boost::uuids::detail::sha1 hash;
  hash.process_bytes(content.data(), content.size());
  boost::uuids::detail::sha1::digest_type digest{};
  hash.get_digest(digest);
  return fmt::format("{:08x}", fmt::join(digest, ""));
}

fs::path home_folder() {
  if (const auto home = process_environment(kHomeVariable)) return *home;
  std::error_code ignored;
  const fs::path program = fs::read_symlink(kOwnProgram, ignored);
  fs::path installed = program.parent_path().parent_path() / "share" / "stepcast";
  if (fs::is_directory(installed / "models")) return installed;
  return STEPCAST_SOURCE_DIR;
}

std::vector<std::string> resource_names(const std::string& folder, const std::string& extension) {
  const fs::path where = home_folder() / folder;
  std::vector<std::string> names;
  if (!fs::is_directory(where)) return names;
  for (const auto& entry : fs::directory_iterator(where))
    if (entry.path().extension() == extension) names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

fs::path find_resource(const std::string& folder, const std::string& name, const std::string& extension) {
  if (name.find('/') != std::string::npos || name.ends_with(extension)) {
    if (!fs::exists(name)) throw InputError(name + ": no such file");
    return name;
  }
  const std::vector<std::string> known = resource_names(folder, extension);
  if (std::ranges::binary_search(known, name)) return home_folder() / folder / (name + extension);
  throw InputError(unknown_name(folder == "models"              ? "model"
                                : folder.starts_with("studies") ? "study"
                                : folder == "reliability"       ? "failure data"
                                                                : "cluster",
                                name, known) +
                   " (or a path to a " + extension + " file" +
                   (name.ends_with(".json") ? ", or hf:" + name : "") + ")");
}

}  // namespace stepcast

#include "core/environment.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "core/error.hpp"
#include "core/number.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_home(const std::string& path) {
  return is_folder(path + "/models") && is_folder(path + "/topologies");
}

double number_or_nan(const std::string& text) { return number_in<double>(text).value_or(std::nan("")); }

}  // namespace

bool is_program(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

const std::vector<Variable>& stepcast_variables() {
  static const std::vector<Variable> kVariables{
      {kHomeVariable, "folder with the models and clusters that are found by name",
       "a folder that holds models/ and topologies/", is_home},
      {kRunnerVariable, "stepcast-runner program that measures, runs and calibrates", "an executable file",
       is_program},
      {kStoreVariable, "set by the launcher: rendezvous folder of a job's ranks on one machine", "a folder",
       is_folder},
      {kHostNameVariable, "name of this host in results; set by the lab for its hosts", "a single line",
       [](const std::string& name) { return name.find('\n') == std::string::npos; }},
      {kHostSpeedVariable, "set by the lab: speed of a host relative to the traced machine",
       "a number above 0",
       [](const std::string& text) {
         return number_or_nan(text) > 0.0 && std::isfinite(number_or_nan(text));
       }},
      {kLabCoresVariable, "set by the lab: cores that all its hosts share", "a whole number of at least 1",
       [](const std::string& text) {
         return number_or_nan(text) >= 1.0 && number_or_nan(text) == std::floor(number_or_nan(text)) &&
                number_or_nan(text) < 1e6;
       }},
  };
  return kVariables;
}

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  if (value == nullptr || *value == '\0') return std::nullopt;
  for (const Variable& own : stepcast_variables())
    if (own.name == name && !own.holds(value))
      throw InputError("environment variable " + name + " = '" + value + "' is not " + own.valid);
  return value;
}

std::optional<double> environment_number(const std::string& name) {
  const std::optional<std::string> text = process_environment(name);
  return text ? std::optional(number_or_nan(*text)) : std::nullopt;
}

}  // namespace stepcast

#pragma once

#include <optional>
#include <string>
#include <vector>

/// The one place where environment variables are read.
namespace stepcast {

/// A variable that stepcast defines. Launchers' variables are in runner/launch, with the fields they fill.
struct Variable {
  const char* name;
  const char* meaning;
  const char* valid;                        ///< in words: `a folder that holds models/ and topologies/`
  bool (*holds)(const std::string& value);  ///< true for a valid value
};

inline constexpr const char* kHomeVariable = "STEPCAST_HOME";
inline constexpr const char* kRunnerVariable = "STEPCAST_RUNNER";
inline constexpr const char* kStoreVariable = "STEPCAST_STORE";
inline constexpr const char* kHostNameVariable = "STEPCAST_HOST_NAME";
inline constexpr const char* kHostSpeedVariable = "STEPCAST_HOST_SPEED";
inline constexpr const char* kLabCoresVariable = "STEPCAST_LAB_CORES";

const std::vector<Variable>& stepcast_variables();

/// Value of any environment variable; none if it is not set or empty. \throws InputError for a bad value
/// of one of stepcast's own: it names the variable, the value and what is valid
std::optional<std::string> process_environment(const std::string& name);
/// \pre only numbers are valid
std::optional<double> environment_number(const std::string& name);

/// True if `path` is an executable file.
bool is_program(const std::string& path);

}  // namespace stepcast

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/enum_table.hpp"
#include "core/error.hpp"
#include "core/file.hpp"

/// Macros and functions to read and write machine-written files. Include in .cpp files only: headers stay
/// light.
///
/// `STEPCAST_JSON_MEMBERS(Type, (a, b), (c))` writes all three members under their own names. Reading
/// requires `a` and `b`; a missing `c` keeps its default. `STEPCAST_JSON_SPARSE` omits a `c` that has it.
#define STEPCAST_JSON_MEMBERS(Type, required, optional) \
  STEPCAST_JSON_WRITTEN(Type, required, optional, NLOHMANN_JSON_TO)
#define STEPCAST_JSON_SPARSE(Type, required, optional) \
  STEPCAST_JSON_WRITTEN(Type, required, optional, STEPCAST_JSON_TO_UNLESS_DEFAULT)
#define STEPCAST_JSON_TO_UNLESS_DEFAULT(member) \
  if (nlohmann_json_t.member != nlohmann_json_default_obj.member) NLOHMANN_JSON_TO(member)
#define STEPCAST_JSON_WRITTEN(Type, required, optional, write_optional)                                  \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {                           \
    [[maybe_unused]] const Type nlohmann_json_default_obj{};                                             \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, STEPCAST_UNWRAP required))                \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(write_optional, STEPCAST_UNWRAP optional))                  \
  }                                                                                                      \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) {                         \
    const Type nlohmann_json_default_obj{};                                                              \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, STEPCAST_UNWRAP required))              \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM_WITH_DEFAULT, STEPCAST_UNWRAP optional)) \
  }
#define STEPCAST_UNWRAP(...) __VA_ARGS__

/// The same with every member required. (nlohmann's own macro defines inline functions, which other files
/// cannot call.)
#define STEPCAST_JSON_REQUIRED(Type, ...)                                        \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))     \
  }                                                                              \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM, __VA_ARGS__))   \
  }

/// An enumeration by its names in `table`. Another name is an error that lists them.
#define STEPCAST_JSON_ENUM(Type, what, table)                                                 \
  void to_json(nlohmann::json& json, const Type& value) { json = row_of(table, value).name; } \
  void from_json(const nlohmann::json& json, Type& value) { value = value_of(table, what, json); }

namespace stepcast {

/// Result of `read`; an error of the JSON library becomes an InputError that begins with `problem`.
auto of_json(const std::string& problem, const auto& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    throw InputError("{}: {}", problem, json_complaint(error));
  }
}

/// Reads a machine-written file of one schema into its type.
/// \throws InputError that names the file and the key that is missing, has the wrong type, or has a value
/// that `Content::problem()` rejects.
template <class Content>
Content load_as(const std::string& path, const std::string& schema) {
  const nlohmann::json json = load_json(path, schema);
  Content content;
  of_json(path + ": is not a valid " + schema + " file",
          [&] { of_file(path, [&] { json.get_to(content); }); });
  if constexpr (requires { content.problem(); })
    if (const std::string problem = content.problem(); !problem.empty())
      throw InputError(path + ": " + problem);
  return content;
}

}  // namespace stepcast

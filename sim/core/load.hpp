#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/core/error.hpp"
#include "sim/core/file.hpp"

namespace stepcast {

/// Reads a machine-written file of one schema into its type.
/// \throws InputError that names the file and the key that is missing or has the wrong type.
template <class Content>
Content load_as(const std::string& path, const std::string& schema) {
  const nlohmann::json json = load_json(path, schema);
  try {
    return json.get<Content>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(path + ": is not a valid " + schema + " file: " + error.what());
  }
}

}  // namespace stepcast

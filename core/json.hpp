#pragma once

#include <nlohmann/json_fwd.hpp>

/// Declares the functions that write and read a type of machine-written files; core/load.hpp defines them.
#define STEPCAST_JSON(Type)                              \
  void to_json(nlohmann::json& json, const Type& value); \
  void from_json(const nlohmann::json& json, Type& value);

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/model.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Models of configurations of Hugging Face, for tests.
namespace stepcast::tests {

inline std::int64_t parameters_of(const std::string& specification) {
  return load_model(specification).parameter_count();
}

/// Loads a configuration from a file, with `settings` of the model.
struct Configured {
  std::string usual = ":sequence=16";
  TemporaryFolder folder{};

  [[nodiscard]] Model operator()(const nlohmann::json& configuration, const std::string& settings) const {
    return load_model("hf:" + folder.write("config.json", configuration.dump()) + settings);
  }
  [[nodiscard]] Model operator()(const nlohmann::json& configuration) const {
    return (*this)(configuration, usual);
  }
  [[nodiscard]] std::string refusal(const nlohmann::json& configuration, const std::string& settings) const {
    return worlds::error_of([&] { return (*this)(configuration, settings); });
  }
  [[nodiscard]] std::string refusal(const nlohmann::json& configuration) const {
    return refusal(configuration, usual);
  }
};

}  // namespace stepcast::tests

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

/// Of the Llama type, whatever it is called.
inline nlohmann::json llama_like(const std::string& type, std::int64_t vocabulary, std::int64_t hidden,
                                 std::int64_t feed_forward, int layers, int heads, int kv_heads,
                                 bool tied = false) {
  return {{"model_type", type},          {"vocab_size", vocabulary},          {"hidden_size", hidden},
          {"num_hidden_layers", layers}, {"intermediate_size", feed_forward}, {"num_attention_heads", heads},
          {"hidden_act", "silu"},        {"num_key_value_heads", kv_heads},   {"tie_word_embeddings", tied}};
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

#include "models/hugging_face.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "hf:";

/// One configuration beside the file that says what its fields mean:
///
/// ```yaml
/// model: llama                              # the family
/// settings: {hidden: hidden_size}           # setting: field; due
/// optional: {kv_heads: num_key_value_heads} # the family's default where it is missing or null
/// or_null: {q_rank: q_lora_rank}            # due, and null is 0
/// percent: {dropout: [a_pdrop, b_pdrop]}    # fields of one value, times 100
/// fixed: {attention_bias: 1}                # settings that every model of this type has
/// only: {hidden_act: [silu]}                # values that are modelled; a missing field has the first one
/// windows: [sliding_window]                 # null, or at least the sequence
/// ignored: [bos_token_id]                   # what changes neither time nor memory
/// ```
class ConfigurationReader {
 public:
  ConfigurationReader(std::string path, nlohmann::json fields, const YamlNode& rules)
      : path_(std::move(path)), fields_(std::move(fields)), rules_(rules) {
    rules_.allow_only(
        {"model", "settings", "optional", "or_null", "percent", "fixed", "only", "windows", "ignored"});
  }

  Specification read(const Specification& given) const {
    check_known();
    check_values();
    Specification result{rules_.at("model").text()};
    const auto add = [&](const std::string& setting, const std::string& value) {
      const bool overridden = std::any_of(given.overrides.begin(), given.overrides.end(),
                                          [&](const auto& one) { return one.first == setting; });
      if (!overridden) result.overrides.emplace_back(setting, value);
    };
    for (const std::string& setting : keys_of("settings"))
      add(setting, number(rules_.at("settings").at(setting).text()));
    for (const std::string& setting : keys_of("optional")) {
      const std::string field = rules_.at("optional").at(setting).text();
      if (is_given(field)) add(setting, number(field));
    }
    for (const std::string& setting : keys_of("or_null")) {
      const std::string field = rules_.at("or_null").at(setting).text();
      add(setting, fields_.contains(field) && fields_[field].is_null() ? "0" : number(field));
    }
    for (const std::string& setting : keys_of("percent"))
      add(setting, percent(rules_.at("percent").at(setting)));
    for (const std::string& setting : keys_of("fixed")) add(setting, rules_.at("fixed").at(setting).text());
    result.overrides.insert(result.overrides.end(), given.overrides.begin(), given.overrides.end());
    check_windows(given);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(path_ + ": " + message); }

  [[nodiscard]] std::vector<std::string> keys_of(const std::string& key) const {
    return rules_.has(key) ? rules_.at(key).keys() : std::vector<std::string>{};
  }
  [[nodiscard]] std::vector<std::string> list(const std::string& key) const {
    std::vector<std::string> texts;
    if (rules_.has(key))
      for (const YamlNode& item : rules_.at(key).items()) texts.push_back(item.text());
    return texts;
  }
  [[nodiscard]] bool is_given(const std::string& field) const {
    return fields_.contains(field) && !fields_[field].is_null();
  }

  void check_known() const {
    // Of every configuration: who wrote it, how text is read and generated, how weights are stored.
    std::vector<std::string> known{"model_type",   "architectures", "_name_or_path", "torch_dtype",
                                   "dtype",        "auto_map",      "use_cache",     "transformers_version",
                                   "bos_token_id", "eos_token_id",  "pad_token_id",  "initializer_range"};
    for (const char* key : {"settings", "optional", "or_null"})
      for (const std::string& setting : keys_of(key)) known.push_back(rules_.at(key).at(setting).text());
    for (const std::string& setting : keys_of("percent"))
      for (const YamlNode& field : rules_.at("percent").at(setting).items()) known.push_back(field.text());
    for (const std::string& field : keys_of("only")) known.push_back(field);
    for (const char* key : {"windows", "ignored"})
      for (const std::string& field : list(key)) known.push_back(field);
    for (const auto& [field, value] : fields_.items())
      if (std::find(known.begin(), known.end(), field) == known.end())
        fail("field '" + field + "' (" + value.dump() + ") is not known of " + type() +
             ", and may matter; take it out if it does not");
  }

  void check_values() const {
    for (const std::string& field : keys_of("only")) {
      std::vector<std::string> modelled;
      for (const YamlNode& value : rules_.at("only").at(field).items()) modelled.push_back(value.text());
      const std::string value = text(field, modelled.front());
      if (std::find(modelled.begin(), modelled.end(), value) == modelled.end())
        fail("field '" + field + "' is " + value + ", which is not modelled; known: " + joined(modelled));
    }
  }

  void check_windows(const Specification& given) const {
    const auto sequence = std::find_if(given.overrides.begin(), given.overrides.end(),
                                       [](const auto& one) { return one.first == "sequence"; });
    if (sequence == given.overrides.end())
      fail("say how long sequences are: " + std::string(kPrefix) + path_ + ":sequence=4096");
    for (const std::string& field : list("windows"))
      if (is_given(field) && fields_[field].get<double>() < std::stod(sequence->second))
        fail("field '" + field + "' is " + fields_[field].dump() +
             "; attention within a window shorter than sequence=" + sequence->second + " is not modelled");
  }

  [[nodiscard]] std::string type() const { return fields_.at("model_type").get<std::string>(); }

  [[nodiscard]] std::string text(const std::string& field, const std::string& missing) const {
    if (!fields_.contains(field)) return missing;
    return fields_[field].is_string() ? fields_[field].get<std::string>() : fields_[field].dump();
  }

  [[nodiscard]] std::string number(const std::string& field) const {
    if (!is_given(field)) fail("field '" + field + "' is missing");
    const nlohmann::json& value = fields_[field];
    if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
    if (!value.is_number_integer())
      fail("field '" + field + "': expected a whole number, found " + value.dump());
    return value.dump();
  }

  [[nodiscard]] std::string percent(const YamlNode& fields) const {
    double share = -1.0;
    for (const YamlNode& item : fields.items()) {
      const std::string field = item.text();
      if (!is_given(field)) continue;
      if (!fields_[field].is_number())
        fail("field '" + field + "': expected a number, found " + fields_[field].dump());
      const auto value = fields_[field].get<double>();
      if (share >= 0.0 && value != share)
        fail("field '" + field + "' is " + fields_[field].dump() +
             ", others of its kind are not; one share of dropout "
             "is modelled");
      share = value;
    }
    return std::to_string(std::max(0L, std::lround(100.0 * share)));
  }

  std::string path_;
  nlohmann::json fields_;
  YamlNode rules_;
};

}  // namespace

bool is_hugging_face(const std::string& specification) { return specification.starts_with(kPrefix); }

Specification read_hugging_face(const std::string& specification) {
  const Specification given =
      Specification::parse("model", specification.substr(std::string(kPrefix).size()));
  fs::path path = given.file;
  if (fs::is_directory(path)) path /= "config.json";
  const nlohmann::json fields = parse_json_file(path);
  const std::vector<std::string> known = resource_names("models/hugging_face", ".yaml");
  if (!fields.is_object() || !fields.contains("model_type") || !fields["model_type"].is_string())
    throw InputError(path.string() + ": field 'model_type' is missing; known types: " + joined(known));
  const auto type = fields["model_type"].get<std::string>();
  if (std::find(known.begin(), known.end(), type) == known.end())
    throw InputError(path.string() + ": " + unknown_name("model_type", type, known));
  const YamlNode rules =
      YamlNode::load((home_folder() / "models" / "hugging_face" / (type + ".yaml")).string());
  return ConfigurationReader(path.string(), fields, rules).read(given);
}

}  // namespace stepcast

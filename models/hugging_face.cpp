#include "models/hugging_face.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "hf:";

/// One configuration and the file that maps its fields:
///
/// ```yaml
/// model: llama                              # the family
/// settings: {hidden: hidden_size}           # setting: field; required
/// optional: {kv_heads: num_key_value_heads} # the family's default if it is missing or null
/// or_null: {q_rank: q_lora_rank}            # required, and null is 0
/// percent: {dropout: [a_pdrop, b_pdrop]}    # fields of one value, times 100
/// fixed: {attention_bias: 1}                # settings that every model of this type has
/// only: {hidden_act: [silu]}                # values that are modelled; a missing field has the first one
/// windows: [sliding_window]                 # null, or at least the sequence
/// ignored: [bos_token_id]                   # without effect on time and memory
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
    const auto add = [&](const char* rule, const auto& value_of) {
      for (const auto& [setting, node] : entries(rule)) {
        const bool overridden =
            std::ranges::any_of(given.overrides, [&](const auto& one) { return one.first == setting; });
        if (const std::string value = value_of(node); !overridden && !value.empty())
          result.overrides.emplace_back(setting, value);
      }
    };
    add("settings", [&](const YamlNode& node) { return number(node.text()); });
    add("optional", [&](const YamlNode& node) { return is_given(node.text()) ? number(node.text()) : ""; });
    add("or_null", [&](const YamlNode& node) {
      const std::string field = node.text();
      return fields_.contains(field) && fields_[field].is_null() ? "0" : number(field);
    });
    add("percent", [&](const YamlNode& node) { return percent(node); });
    add("fixed", [&](const YamlNode& node) { return node.text(); });
    result.overrides.insert(result.overrides.end(), given.overrides.begin(), given.overrides.end());
    check_windows(given);
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(path_ + ": " + message); }

  [[nodiscard]] std::vector<std::pair<std::string, YamlNode>> entries(const std::string& rule) const {
    std::vector<std::pair<std::string, YamlNode>> result;
    if (rules_.has(rule))
      for (const std::string& key : rules_.at(rule).keys()) result.emplace_back(key, rules_.at(rule).at(key));
    return result;
  }
  static std::vector<std::string> texts(const YamlNode& list) {
    std::vector<std::string> result;
    for (const YamlNode& item : list.items()) result.push_back(item.text());
    return result;
  }
  [[nodiscard]] bool is_given(const std::string& field) const {
    return fields_.contains(field) && !fields_[field].is_null();
  }

  void check_known() const {
    // Fields of every configuration: authors, tokenizer, generation and storage of weights.
    std::set<std::string> known{"model_type",   "architectures", "_name_or_path", "torch_dtype",
                                "dtype",        "auto_map",      "use_cache",     "transformers_version",
                                "bos_token_id", "eos_token_id",  "pad_token_id",  "initializer_range"};
    for (const char* rule : {"settings", "optional", "or_null"})
      for (const auto& [setting, field] : entries(rule)) known.insert(field.text());
    for (const auto& [setting, fields] : entries("percent"))
      for (const std::string& field : texts(fields)) known.insert(field);
    for (const auto& [field, values] : entries("only")) known.insert(field);
    for (const char* rule : {"windows", "ignored"})
      if (rules_.has(rule))
        for (const std::string& field : texts(rules_.at(rule))) known.insert(field);
    for (const auto& [field, value] : fields_.items())
      if (!known.contains(field))
        fail("field '" + field + "' (" + value.dump() + ") is not known for " +
             fields_.at("model_type").get<std::string>() +
             ", and may have an effect; remove it if it has none");
  }

  void check_values() const {
    for (const auto& [field, values] : entries("only")) {
      const std::vector<std::string> modelled = texts(values);
      if (!fields_.contains(field)) continue;
      const nlohmann::json& found = fields_[field];
      const std::string value = found.is_string() ? found.get<std::string>() : found.dump();
      if (std::ranges::find(modelled, value) == modelled.end())
        fail("field '" + field + "' is " + value + ", which is not modelled; known: " + joined(modelled));
    }
  }

  void check_windows(const Specification& given) const {
    const auto sequence =
        std::ranges::find_if(given.overrides, [](const auto& one) { return one.first == "sequence"; });
    if (sequence == given.overrides.end())
      fail("the sequence length is missing; set it: " + std::string(kPrefix) + path_ + ":sequence=4096");
    if (!rules_.has("windows")) return;
    for (const std::string& field : texts(rules_.at("windows")))
      if (is_given(field) && fields_[field].get<double>() < std::stod(sequence->second))
        fail("field '" + field + "' is " + fields_[field].dump() +
             "; attention within a window shorter than sequence=" + sequence->second + " is not modelled");
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
    for (const std::string& field : texts(fields)) {
      if (!is_given(field)) continue;
      if (!fields_[field].is_number())
        fail("field '" + field + "': expected a number, found " + fields_[field].dump());
      const auto value = fields_[field].get<double>();
      if (share >= 0.0 && value != share)
        fail("field '" + field + "' is " + fields_[field].dump() + ", other dropout fields are " +
             nlohmann::json(share).dump() + "; only one probability is modelled");
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
  if (std::ranges::find(known, type) == known.end())
    throw InputError(path.string() + ": " + unknown_name("model_type", type, known));
  const YamlNode rules =
      YamlNode::load((home_folder() / "models" / "hugging_face" / (type + ".yaml")).string());
  return ConfigurationReader(path.string(), fields, rules).read(given);
}

}  // namespace stepcast

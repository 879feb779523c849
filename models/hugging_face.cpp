#include "models/hugging_face.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "models/hugging_face_rules.hpp"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kPrefix = "hf:";
constexpr std::int64_t kMaxBlocks = 5'000;

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string text_model_without(const std::vector<std::string>& parts) {
  return "the text model alone; left out: " + (parts.empty() ? "all other fields" : joined(parts));
}

/// Fields of nested objects as `attn_config.kv_n_heads`, besides the object itself.
void add_flat(const Json& object, const std::string& prefix, Json& result) {
  for (const auto& [name, value] : object.items()) {
    result[prefix + name] = value;
    if (value.is_object()) add_flat(value, prefix + name + ".", result);
  }
}

struct ConfigurationReader {
  const std::string file_path;
  const std::string& type;
  Json flat;  ///< fields, see add_flat()
  const Specification& given_settings;

  HuggingFaceModel read() {
    model.type = type;
    rules = rules_of(type, assignment());
    if (!rules.refused.empty()) fail("model_type '" + model.type + "' is not computed yet: " + rules.refused);
    translate_lists();
    check_known();
    check_values();
    model.specification.file = rules.model;
    for (const auto& [setting, fields] : rules.settings) add(setting, number(fields, true));
    for (const auto& [setting, fields] : rules.optional) add(setting, number(fields, false));
    for (const auto& [setting, fields] : rules.or_null)
      add(setting, flat.value(fields.front(), Json(0)).is_null() ? "0" : number(fields, true));
    for (const auto& [setting, fields] : rules.percent) add(setting, percent(fields));
    for (const auto& [setting, value] : rules.fixed) add(setting, evaluated(value.front()));
    for (const auto& [setting, value] : rules.defaults)
      if (is_missing(setting)) add(setting, evaluated(value.front()));
    auto& overrides = model.specification.overrides;
    overrides.insert(overrides.end(), given_settings.overrides.begin(), given_settings.overrides.end());
    add_sparse_blocks();
    if (!rules.block_configs.empty()) add_block_configs();
    if (!rules.pattern.empty()) add_pattern();
    add_windows();
    return std::move(model);
  }

  [[noreturn]] void fail(const std::string& message) const { throw InputError(file_path + ": " + message); }

  [[nodiscard]] bool is_given(const std::string& field) const {
    return flat.contains(field) && !flat[field].is_null();
  }
  /// True if the file has none of the setting's optional fields, not even as null.
  [[nodiscard]] bool is_missing(const std::string& setting) {
    return std::ranges::none_of(rules.optional[setting],
                                [&](const std::string& field) { return flat.contains(field); });
  }
  void add(const std::string& setting, const std::string& value) {
    Specification& own = model.specification;
    if (value.empty() || given_settings.find(setting) != nullptr || own.find(setting) != nullptr) return;
    own.overrides.emplace_back(setting, value);
  }

  /// Lists of transformers 5, with the kind of every block, become the fields that earlier versions wrote.
  void translate_lists() {
    const auto list = [&](const char* field) {
      return flat.contains(field) && flat[field].is_array() ? flat[field] : Json::array();
    };
    if (const Json kinds = list("layers_block_type"); !kinds.empty() && !rules.pattern.empty()) {
      const YamlNode known = YamlNode::shipped("models/operators/blocks.yaml").at("names");
      std::string letters;
      for (const Json& kind : kinds) {
        if (!known.has(text_of(kind)))
          fail("field 'layers_block_type': layers of " + kind.dump() + " are not computed yet");
        letters += known.at(text_of(kind)).text();
      }
      flat.emplace(rules.pattern, letters);
      flat.emplace("num_hidden_layers", kinds.size());
      flat.erase("layers_block_type");
    }
    constexpr const char* kDense = "first_k_dense_replace";
    if (const Json kinds = list("mlp_layer_types"); !kinds.empty()) {
      const auto dense = static_cast<std::size_t>(std::ranges::count(kinds, Json("dense")));
      Json sorted(dense, Json("dense"));
      sorted.insert(sorted.end(), kinds.size() - dense, Json("sparse"));
      if (kinds != sorted) fail("field 'mlp_layer_types': computed are dense layers before sparse ones");
      if (rules.known_fields().contains(kDense))
        flat[kDense] = dense;  // transformers reads the list alone
      else if (dense > 0)
        return;
      flat.erase("mlp_layer_types");
    }
  }

  /// Fields as conditions and expressions read them: numbers, texts, `true`, `false`, `null`.
  [[nodiscard]] Assignment assignment() const {
    Assignment values;
    for (const auto& [name, value] : flat.items())
      if (!value.is_structured()) values.set(name, text_of(value));
    return values;
  }

  void check_known() {
    const std::set<std::string> known = rules.known_fields();
    const FieldEffects& effects = field_effects();
    std::vector<std::string> passed, parts;
    for (const auto& [field, value] : flat.items()) {
      const std::string outer = field.substr(0, field.find('.'));
      if (known.contains(field) || (field != outer && (known.contains(outer) || !effects.may_matter(outer))))
        continue;
      const bool nested = value.is_object() && std::ranges::any_of(known, [&](const std::string& one) {
                            return one.starts_with(field + ".");
                          });
      if (nested) continue;
      const bool off =
          value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
      if (!off && effects.may_matter(field))
        fail("field '" + field + "' (" + value.dump().substr(0, 80) + ") is not known for " + model.type +
             ", and may have an effect; remove it if it has none");
      if (!off && field.find("softcap") != std::string::npos)
        model.assumed.push_back("field '" + field + "': kernels of soft caps are left out");
      else if (!off && field == outer && !effects.usual(field))
        (value.is_object() && effects.is_part(field) ? parts : passed).push_back(field);
    }
    if (!parts.empty()) model.assumed.push_back(text_model_without(parts));
    if (!passed.empty()) model.ignored.push_back("fields without effect: " + joined(passed));
  }

  void check_values() const {
    for (const auto& [field, modelled] : rules.only) {
      if (!flat.contains(field)) continue;
      const std::string value = text_of(flat[field]);
      if (std::ranges::find(modelled, value) == modelled.end())
        fail("field '" + field + "' is " + value + ", which is not modelled; known: " + joined(modelled));
    }
    if (flat.contains("layer_types") && flat["layer_types"].is_array()) {
      const std::string layers = text_of(flat.value("num_hidden_layers", Json(flat["layer_types"].size())));
      if (layers != std::to_string(flat["layer_types"].size()))
        fail(fmt::format("field 'layer_types' has {} kinds, num_hidden_layers is {}; make them equal",
                         flat["layer_types"].size(), layers));
      for (const Json& kind : flat["layer_types"])
        if (kind != "full_attention" && kind != "sliding_attention" && kind != "chunked_attention" &&
            rules.sparse.dense_layers != "layer_types")
          fail("field 'layer_types': layers of " + kind.dump() + " are not computed yet");
    }
  }

  /// Windows become settings if every n-th block or none sees all keys, also those that the sequence does not
  /// exceed, since a model file is used with other sequences.
  void add_windows() {
    const std::string* sequence = model.specification.find("sequence");
    if (sequence == nullptr || rules.windows.empty() || flat.value("use_sliding_window", Json(true)) == false)
      return;
    const std::string& field = rules.windows.front();
    if (rules.windows.size() > 1) flat.emplace(field, number_in<int>(rules.windows[1]).value_or(0));
    const int every = is_given(field) && flat[field].is_number() ? full_blocks() : 1;
    if (every == 1) return;
    if (every >= 0 && field != "attention_chunk_size") {
      add("window", whole(field));
      return add("full_every", every > 0 ? std::to_string(every) : "");
    }
    const bool fits = flat[field].get<double>() >= number_in<double>(*sequence).value_or(0.0);
    const std::string when = fits ? "in longer sequences" : "with sequence=" + *sequence;
    (fits ? model.assumed : model.obstacles)
        .push_back(fmt::format("field '{}' is {}; {} attention within {} is not modelled", field,
                               flat[field].dump(), when,
                               every < 0 ? "windows of irregular blocks" : "chunks"));
  }

  /// n if every n-th block sees all keys, 0 if none does; -1: another pattern.
  [[nodiscard]] int full_blocks() const {
    const Json types = flat.value("layer_types", Json());
    if (!types.is_array() || types.empty()) {
      const Json pattern = rules.full_every.empty() ? Json() : flat.value(rules.full_every[0], Json());
      if (pattern.is_string()) {  // LLLG of EXAONE 4
        const auto text = pattern.get<std::string>();
        return text.find('G') + 1 == text.size() ? static_cast<int>(text.size()) : -1;
      }
      const int every = number_in<int>(number(rules.full_every, false)).value_or(-1);
      return every < 1 && rules.full_every.size() > 1 ? -1 : every;
    }
    std::size_t first = 0;
    while (first < types.size() && types[first] != "full_attention") ++first;
    if (first == types.size()) return 0;
    for (std::size_t i = 0; i < types.size(); ++i)
      if ((types[i] == "full_attention") != ((i + 1) % (first + 1) == 0)) return -1;
    return static_cast<int>(first) + 1;
  }

  /// The number of the first field that is given, or of an expression over fields, or a number; "" without
  /// one.
  [[nodiscard]] std::string number(const std::vector<std::string>& fields, bool required) const {
    for (const std::string& field : fields) {
      if (field.find('{') != std::string::npos) {
        for (const std::string& name : names_in(field))
          if (required && !flat.contains(name)) fail("field '" + name + "' is missing");
        return evaluated(field);
      }
      if (is_given(field)) return whole(field);
      if (number_in<int>(field)) return field;
    }
    if (required) fail("field '" + fields.front() + "' is missing");
    return "";
  }
  [[nodiscard]] std::string whole(const std::string& field) const {
    const Json& value = flat[field];
    if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
    if (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
        std::abs(value.get<double>()) < 1e15)
      return std::to_string(std::llround(value.get<double>()));
    if (!value.is_number_integer())
      fail("field '" + field + "': expected a whole number, found " + value.dump().substr(0, 80));
    return value.dump();
  }
  [[nodiscard]] std::string evaluated(const std::string& text) const {
    if (text.find('{') == std::string::npos) return text;
    Assignment values;
    for (const std::string& name : names_in(text)) {
      if (!is_given(name)) return "";
      values.set(name, whole(name));
    }
    const Expansion result = expand(text, values);
    if (!result.problem.empty()) fail(result.problem);
    return result.text;
  }

  [[nodiscard]] std::string percent(const std::vector<std::string>& fields) const {
    double share = -1.0;
    for (const std::string& field : fields) {
      if (!is_given(field)) continue;
      if (!flat[field].is_number())
        fail("field '" + field + "': expected a number, found " + flat[field].dump());
      const auto value = flat[field].get<double>();
      if (share >= 0.0 && value != share)
        fail("field '" + field + "' is " + flat[field].dump() + ", other dropout fields are " +
             Json(share).dump() + "; only one probability is modelled");
      share = value;
    }
    return std::to_string(std::max(0L, std::lround(100.0 * share)));
  }

  // --- blocks ---

  [[nodiscard]] int layers() const {
    const std::string* value = model.specification.find("layers");
    const auto count = value == nullptr ? std::nullopt : number_in<int>(*value);
    if (!count || *count < 1 || *count > kMaxBlocks) fail("the number of layers must be 1 to 5000");
    return *count;
  }
  /// Numbers of a list, or of the blocks that a list of kinds calls attention.
  [[nodiscard]] std::set<std::int64_t> numbers(const std::string& field) const {
    std::set<std::int64_t> result;
    if (!is_given(field)) return result;
    std::int64_t block = -1;
    for (const Json& item : flat[field].is_array() ? flat[field] : Json::array()) {
      ++block;
      const bool attention = item == "attention" || item == "full_attention";
      if (attention) result.insert(block);
      if (attention || item == "mamba" || item == "linear_attention") continue;
      if (!item.is_number_integer())
        fail("field '" + field + "': expected whole numbers, found " + item.dump());
      result.insert(item.get<std::int64_t>());
    }
    return result;
  }

  /// Blocks without experts: the first ones, all but every n-th, or those of a list.
  void add_sparse_blocks() {
    const SparseRules& sparse = rules.sparse;
    if (sparse.dense.empty()) return;
    const auto count = [&](const std::string& field, int otherwise) {
      return field.empty() || !is_given(field) ? otherwise : number_in<int>(whole(field)).value_or(otherwise);
    };
    const int first = count(sparse.first, 0), step = std::max(1, count(sparse.step, 1));
    const std::set<std::int64_t> dense = numbers(sparse.dense_layers), only = numbers(sparse.sparse_layers);
    BlockSettings settings;
    for (const auto& [setting, fields] : sparse.dense) settings.emplace_back(setting, number(fields, true));
    add_blocks([&](int layer) {
      const bool chosen = is_given(sparse.sparse_layers) ? only.contains(layer) : (layer + 1) % step == 0;
      const bool has_experts = layer >= first && chosen && !dense.contains(layer);
      return has_experts ? BlockSettings{} : settings;
    });
  }

  void add_blocks(const std::function<BlockSettings(int)>& settings_of) {
    model.blocks = grouped_blocks(layers(), settings_of, model.specification);
  }

  /// Blocks as Megatron's pattern lists them, a letter each.
  void add_pattern() {
    if (!is_given(rules.pattern) || !flat[rules.pattern].is_string())
      fail("field '" + rules.pattern + "': expected a text with a letter per block");
    const std::string letters = flat[rules.pattern].get<std::string>();
    const bool shortened = given_settings.find("layers") != nullptr;
    if (const auto count = static_cast<int>(letters.size());
        count < layers() || (count > layers() && !shortened))
      fail(fmt::format("field '{}': has {} letters for {} layers", rules.pattern, letters.size(), layers()));
    add_blocks([&](int layer) {
      return settings_of_letter(letters[layer], fmt::format("{}: field '{}'", file_path, rules.pattern));
    });
  }

  /// Blocks as Nemotron-NAS lists them, each with its own number of keys and feed-forward width, which is a
  /// multiple of 256 near 2/3 of `ffn_mult` hidden.
  void add_block_configs() {
    if (!is_given(rules.block_configs) || !flat[rules.block_configs].is_array())
      fail("field '" + rules.block_configs + "': expected a list with an entry per block");
    const Json& configs = flat[rules.block_configs];
    const double hidden = flat["hidden_size"].get<double>(),
                 heads = flat["num_attention_heads"].get<double>();
    if (static_cast<int>(configs.size()) != layers())
      fail("field '" + rules.block_configs + "': has " + std::to_string(configs.size()) + " entries for " +
           std::to_string(layers()) + " layers");
    add_blocks([&](int layer) {
      const Json& config = configs[layer];
      const auto part = [&](const char* name) {
        const Json value = config.is_object() ? config.value(name, Json()) : Json();
        if (!value.is_object()) fail(fmt::format("block_configs[{}]: '{}' is missing", layer, name));
        for (const char* other : {"replace_with_linear", "sparsify", "num_sink_tokens", "window_length"})
          if (const Json is = value.value(other, Json()); !is.is_null() && is != false)
            fail(fmt::format("block_configs[{}]: '{}' is {}, which is not computed yet", layer, other,
                             is.dump()));
        return value;
      };
      const auto value_of = [&](const Json& one, const char* name) {
        const double value = one.contains(name) && one[name].is_number() ? one[name].get<double>() : 0.0;
        if (!(value > 0.0 && value <= 1e6))
          fail(fmt::format("block_configs[{}]: '{}' must be a number above 0, at most 1000000", layer, name));
        return value;
      };
      const Json attention = part("attention"), feed = part("ffn");
      BlockSettings settings;
      if (attention.value("no_op", Json(false)) == true) {
        settings.emplace_back("attention", "0");
      } else {
        const double groups = heads / value_of(attention, "n_heads_in_group");
        if (groups != std::round(groups))
          fail(fmt::format("block_configs[{}]: 'n_heads_in_group' does not divide {} heads", layer, heads));
        settings.emplace_back("kv_heads", std::to_string(std::lround(groups)));
      }
      if (feed.value("no_op", Json(false)) == true)
        settings.emplace_back("dense", "0");
      else
        settings.emplace_back(
            "feed_forward",
            std::to_string(256 * static_cast<std::int64_t>(std::ceil(
                                     std::floor(2.0 * value_of(feed, "ffn_mult") * hidden / 3.0) / 256.0))));
      return settings;
    });
  }

  ConfigurationRules rules{};
  HuggingFaceModel model{};
};

/// `LlamaForCausalLM` is llama.
std::string type_of_architecture(const Json& fields) {
  const Json list = fields.value("architectures", Json());
  if (!list.is_array() || list.empty() || !list[0].is_string()) return "";
  std::string name = list[0].get<std::string>();
  for (const char* ending : {"For", "Model", "LMHead"})
    if (const auto at = name.find(ending); at != std::string::npos && at > 0) name.erase(at);
  const auto bare = [](std::string text) {
    std::erase_if(text, [](char c) { return c == '_' || c == '-'; });
    return lower(text);
  };
  for (const std::string& type : configuration_types())
    if (bare(type) == bare(name)) return type;
  return "";
}

}  // namespace

bool is_hugging_face(const std::string& specification) { return specification.starts_with(kPrefix); }

HuggingFaceModel read_configuration(const std::string& file, const Specification& given) {
  fs::path path = file;
  if (fs::is_directory(path)) path /= "config.json";
  Json fields = parse_loose_json(read_text(path), path.string());
  if (!fields.is_object())
    throw InputError("{}: expected an object of fields, as in config.json", path.string());
  std::vector<std::string> assumed, ignored;
  if (const Json text = fields.value("text_config", Json()); text.is_object() && !text.empty()) {
    for (const char* field : {"vocab_size", "tie_word_embeddings"})
      if (!text.contains(field) && fields.contains(field)) fields["text_config"][field] = fields[field];
    std::vector<std::string> parts;
    for (const auto& [name, value] : fields.items())
      if (name != "text_config" && value.is_object() && field_effects().is_part(name)) parts.push_back(name);
    assumed.push_back(text_model_without(parts));
    fields = Json(fields["text_config"]);
  }
  const bool named = fields.contains("model_type") && fields["model_type"].is_string();
  std::string type = named ? fields["model_type"].get<std::string>() : type_of_architecture(fields);
  if (type.empty())
    throw InputError(
        "{}: field 'model_type' is missing, and 'architectures' names no known type; known types: {}",
        path.string(), joined(configuration_types()));
  if (!named) assumed.push_back("model_type " + type + ", from field 'architectures'");
  if (const Json modules = fields.value("num_nextn_predict_layers", Json());
      modules.is_number_integer() && modules > 0 && given.find("mtp") == nullptr)
    assumed.push_back("multi-token prediction is left out, as transformers' classes do; mtp=" +
                      modules.dump() + " trains it, in the families that have the setting");
  const std::vector<std::string> known = configuration_types();
  if (std::ranges::find(known, type) == known.end())
    throw InputError("{}: {}", path.string(), unknown_name("model_type", type, known));
  Json flat = Json::object();
  add_flat(fields, "", flat);
  HuggingFaceModel model = ConfigurationReader{path.string(), type, std::move(flat), given}.read();
  const std::string classes = fields.value("architectures", Json()).dump();
  if (classes.find("For") != std::string::npos && !contains_any(classes, {"ForCausalLM", "ForConditional"}))
    assumed.push_back("the model ends as family " + model.specification.file + " does, not as " + classes);
  model.assumed.insert(model.assumed.begin(), assumed.begin(), assumed.end());
  return model;
}

HuggingFaceModel read_hugging_face(const std::string& specification) {
  const Specification given =
      Specification::parse("model", specification.substr(std::string(kPrefix).size()));
  HuggingFaceModel model = read_configuration(given.file, given);
  if (given.find("sequence") == nullptr)
    throw InputError("{}: the sequence length is missing; set it: {}{}:sequence=4096", given.file, kPrefix,
                     given.file);
  if (!model.obstacles.empty()) throw InputError("{}: {}", given.file, joined(model.obstacles, "; "));
  return model;
}

}  // namespace stepcast

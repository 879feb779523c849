#include "sim/plan/launch_reader.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>

#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/specification.hpp"
#include "core/table.hpp"
#include "models/execution.hpp"
#include "models/model.hpp"
#include "sim/plan/launch_entries.hpp"
#include "sim/plan/space.hpp"
#include "sim/replay/convention.hpp"
#include "sim/strategies/pipeline_layout.hpp"
#include "sim/strategies/tensor_parallel.hpp"
#include "topologies/cluster.hpp"

namespace stepcast {
namespace {

/// Programs whose files can be read, those with the most specific signs first.
constexpr std::array kReadablePrograms{"deepspeed", "hf", "torchtitan", "nemo", "megatron"};

const YamlNode& table_of(const std::string& program) {
  static std::map<std::string, YamlNode> tables;
  return cached(tables, program,
                [&] { return YamlNode::load(find_resource("launchers", program, ".yaml").string()); });
}

bool has_sign(const YamlNode& read, const std::string& text) {
  return std::ranges::any_of(
      read.items("signs"), [&](const YamlNode& sign) { return text.find(sign.text()) != std::string::npos; });
}

/// Variables of a script may have names of other programs' keys.
std::string program_of(const std::string& text) {
  auto programs = kReadablePrograms;
  if (is_script(text)) std::ranges::rotate(programs, std::ranges::find(programs, std::string("megatron")));
  const std::string plain = uncommented(text);
  for (const char* program : programs)
    if (has_sign(table_of(program).at("read"), plain)) return program;
  return "";
}

/// Reads the entries of one file by a table:
///
/// ```yaml
/// read:
///   syntax: arguments            # arguments, python, toml, json or yaml
///   signs: [--num-layers]        # texts, one of which the file contains
///   leaf: true                   # only the last part of nested keys counts
///   keys: {num-layers: layers}   # key: name of its value in the conditions and expressions below
///   model: {hidden-size: hidden} # the same, of the model; --model replaces all but the name `sequence`
///   defaults: {tensor: 1}        # values of missing keys
///   only: {optimizer: [adam]}    # values that are modelled
///   auto: [train_batch_size]     # keys whose number may be the text `auto`
///   lists: [recompute-modules]   # keys with several such values, which `+` joins
///   refused: {fp4-format: why}   # keys that change the step and are not modelled
///   cannot: [{data: why, if: {tensor: "> 1"}}]  # keys with a combination that is not modelled
///   assumed: [{data: "1, as it has none", if: {data: ""}}]      # keys and what is assumed of them
///   ignored: [log-*]             # patterns of keys without effect
///   set: [{data: "{world-size/tensor}", if: {tensor: "> 1"}}]     # in order; also `N up to a multiple of M`
///   settings: [{sequence_parallel: 1, if: {sequence-parallel: yes}}]  # of the model
///   options: [{strategy: ddp, if: {pipeline: 1}}]                 # of `predict`
/// ```
struct TableReader {
  const YamlNode& table;
  const std::string& file_name;
  const OptionTexts& given_options;

  LaunchReading read(const std::string& text) {
    rules.allow_only({"syntax", "signs", "leaf", "keys", "model", "defaults", "only", "auto", "lists",
                      "refused", "cannot", "assumed", "ignored", "set", "settings", "options"});
    reading.program = table.at("name").text();
    const LaunchFile file = reader_of(text)(text, file_name);
    reading.ignored = file.ignored;
    reading.assumed = file.assumed;
    taken = name_entries(file, file_name, rules, given_options);
    if (words.contains("world-size")) named_values.set("world-size", words.at("world-size"));
    for (const char* option : {"model", "batch", "precision"})
      named_values.set(option + std::string("-given"), words.contains(option) ? "yes" : "no");
    add_layers();
    evaluate("set", [&](const std::string& name, const std::string& value) {
      named_values.set(name, rounded_up(value));
    });
    evaluate("cannot", [&](const std::string& key, const std::string& why) { refuse(key, why); });
    evaluate("assumed", [&](const std::string& key, const std::string& what) {
      reading.assumed.push_back(spelled(key) + ": " + what);
    });
    add_domain();
    named_values.set("mesh", mesh());
    OptionTexts& options = reading.options;
    evaluate("options", [&](const std::string& name, const std::string& value) { options[name] = value; });
    if (words.contains("trace")) leave_out_kernels();
    for (const auto& [option, value] : words) options[option] = value;
    add_lighter_ends();
    add_settings();
    std::erase_if(options, [](const auto& option) { return option.second.empty(); });
    report();
    return std::move(reading);
  }

  using Reader = LaunchFile (*)(const std::string& text, const std::string& name);
  [[nodiscard]] Reader reader_of(const std::string& text) const {
    static const std::map<std::string, Reader> kReaders{{"arguments", read_script},
                                                        {"python", read_recipe},
                                                        {"toml", read_toml},
                                                        {"json", read_yaml},
                                                        {"yaml", read_yaml}};
    if (is_script(text) || file_name.ends_with(".sh")) return read_script;
    const Reader reader = rules.at("syntax").named("syntax", kReaders);
    const bool is_map = !assigns(uncommented(text)) && text.find(':') != std::string::npos;
    return reader == read_recipe && is_map ? read_yaml : reader;
  }

  /// Conditions of an entry, over all names of the table.
  [[nodiscard]] bool holds(const YamlNode& entry) const {
    if (!entry.has("if")) return true;
    Assignment values = named_values;
    for (const auto& [name, condition] : entries_of(entry.at("if"))) {
      if (values.find(name) == nullptr) values.set(name, "");
      if (values.value_or(name, "").empty() && condition.is_scalar() && condition.text().starts_with(">"))
        return false;
    }
    return entry.placed([&] { return Condition(entry.at("if"), values.names()).holds(values); });
  }

  template <class Use>
  void evaluate(const char* list, const Use& use) {
    for (const YamlNode& entry : rules.items(list)) {
      if (!holds(entry)) continue;
      for (const auto& [name, node] : entries_of(entry)) {
        if (name == "if") continue;
        const std::string text = node.text();
        for (const std::string& needed : names_in(text))
          if (named_values.find(needed) == nullptr || named_values.find(needed)->empty()) {
            const bool ranks = needed == "world-size" || needed == "nodes" || needed == "gpus-per-node";
            throw InputError("{}: '{}' is missing; {}", file_name, key_of(needed, rules),
                             ranks ? "give --world-size" : "write it into the file, or give --model");
          }
        use(name, expanded(entry, name, text));
      }
    }
  }

  [[nodiscard]] std::string expanded(const YamlNode& entry, const std::string& name,
                                     const std::string& text) const {
    static const std::regex kProduct(R"(\{[^{}]*[*/+][^{}]*\})");
    for (std::sregex_iterator at(text.begin(), text.end(), kProduct), end; at != end; ++at)
      for (const std::string& needed : names_in(at->str()))
        if (!number_in<double>(*named_values.find(needed)))
          refuse(key_of(needed, rules), "expected a number");
    const Expansion value = entry.placed([&] { return expand(text, named_values); });
    if (value.problem.empty()) return value.text;
    for (const std::string& needed : names_in(text))
      if (taken.named.contains(needed)) refuse(key_of(needed, rules), name + ": " + value.problem);
    throw InputError("{}: {}: {}", file_name, name, value.problem);
  }

  /// The key, or the alias of it that the file contains.
  [[nodiscard]] std::string spelled(const std::string& key) const {
    const auto alias = taken.named.find(name_of(key, rules));
    return taken.found.contains(key) || alias == taken.named.end() ? key : alias->second.key;
  }

  /// \throws InputError about a key or its alias, with line and value if the file contains it
  [[noreturn]] void refuse(const std::string& key, const std::string& message) const {
    if (const auto entry = taken.found.find(key); entry != taken.found.end())
      refuse_entry(file_name, entry->second, message);
    if (const auto alias = taken.named.find(name_of(key, rules)); alias != taken.named.end())
      refuse_entry(file_name, alias->second, message);
    throw InputError("{}: {}: {}", file_name, key, message);
  }

  /// GPUs of an NVLink domain, to each of which a flexible dispatcher sends a token once: those of a host of
  /// --cluster, or of a node of the file.
  void add_domain() {
    if (named_values.value_or("dispatcher", "") != "flex" || words.contains("dispatch")) return;
    std::string from = "the GPUs of a node";
    int domain = positive_number(named_values.value_or("gpus-per-node", "")).value_or(0);
    if (const auto cluster = words.find("cluster"); cluster != words.end()) {
      domain = static_cast<int>(load_cluster(cluster->second).hosts.front().devices.size());
      from = "the GPUs of a host of --cluster";
    }
    if (domain == 0) from = "as the file contains no number of GPUs per node";
    constexpr int kUsual = 8;  // of HGX boards
    domain = domain == 0 ? kUsual : domain;
    named_values.set("domain", std::to_string(domain));
    reading.assumed.push_back(
        fmt::format("NVLink domains of {}, {}: --dispatch flex{}", domain, from, domain));
  }

  /// A trace is of the kernels that it measured.
  void leave_out_kernels() {
    for (const ExecutionOption& option : execution_options())
      if (reading.options.erase(option.name) > 0)
        taken.ignored.push_back("--" + option.name + " (--trace has it)");
  }

  /// A given model with the file's length of sequences, which its text does not set.
  [[nodiscard]] std::string with_sequence(const std::string& model) const {
    const std::string length = taken.named.contains("sequence") ? *named_values.find("sequence") : "";
    if (length.empty() || Specification::parse("model", model).find("sequence") != nullptr) return model;
    if (!model.starts_with("hf:")) {
      const auto settings = load_model(model).settings;
      const auto own = settings.find("sequence");
      if (own == settings.end() || std::to_string(own->second) == length) return model;
    }
    return with_setting(model, "sequence", length);
  }

  /// Blocks of a given model, letters of a pattern, and stages by a layout such as `Et*9|t*10L` or
  /// `"layers.9","norm"`.
  void add_layers() {
    if (const auto model = words.find("model"); model != words.end()) {
      model->second = with_sequence(model->second);
      model_settings = load_model(model->second).settings;
    }
    for (const auto& [setting, name] :
         {std::pair{"layers", "layers"}, {"sequence", "model-sequence"}, {"experts", "experts"}})
      if (const auto found = model_settings.find(setting); found != model_settings.end())
        named_values.set(name, std::to_string(found->second));
    const std::string letters = std::to_string(named_values.value_or("pattern", "").size());
    named_values.set("letters", letters);
    named_values.set("whole-pattern", named_values.value_or("layers", letters) == letters ? "yes" : "no");
    std::vector<int> stages;
    if (const std::string layout = named_values.value_or("layout", ""); !layout.empty()) {
      stages = stages_of(layout, file_name);
    } else if (const std::string points = named_values.value_or("split-points", ""); !points.empty()) {
      const int all = positive_number(named_values.value_or("layers", "")).value_or(0);
      if (all == 0) throw InputError("{}: the number of layers is missing; --model sets it", file_name);
      stages = stages_between(points, all);
    }
    if (stages.empty()) return;
    if (std::ranges::any_of(stages, [](int blocks) { return blocks < 0; }))
      throw InputError("{}: the stages are not in the order of the model", file_name);
    named_values.set("split", split_text(stages));
    named_values.set("parts", std::to_string(stages.size()));
  }
  /// Splits as torchtitan does: embedding and head count as one block each, the first stages are larger.
  void add_lighter_ends() {
    OptionTexts& options = reading.options;
    if (named_values.value_or("lighter-ends", "") != "yes" || !options.contains("model") ||
        options.contains("split") || words.contains("split") || options["strategy"] != "pipeline")
      return;
    const auto model = load_model(options.at("model")).settings;
    const auto count = [&](const char* name) -> std::int64_t {
      return positive_number(named_values.value_or(name, "")).value_or(1);
    };
    const std::int64_t parts = count("pipeline") * count("virtual-stages");
    const std::int64_t all = model.contains("layers") ? model.at("layers") + 2 : 0;
    if (all < 2 * parts) return reading.assumed.push_back("stages with as equal numbers of blocks as can be");
    options["split"] = split_for(static_cast<int>(all - 2), static_cast<int>(parts), 1, 1);
  }

  /// Dimensions of more than one rank, and `stays`, as in --mesh; "" if one has all ranks.
  [[nodiscard]] std::string mesh() const {
    std::vector<std::string> order{"pipeline", "copies", "shard",  "data",
                                   "context",  "tensor", "expert", "expert_tensor"};
    if (named_values.value_or("stages-inside", "") == "yes")
      order = {"copies", "shard", "data", "context", "pipeline", "tensor", "expert", "expert_tensor"};
    const bool shards = named_values.value_or("shards", "no") == "yes";
    std::string text;
    for (const std::string& name : order) {
      if (shards ? name == "data" : name == "copies" || name == "shard") continue;
      const std::string size = named_values.value_or(name, "1");
      const bool stays = name == "shard" || name == named_values.value_or("stays", "");
      if (size.empty() || size == "0" || (size == "1" && !stays)) continue;
      text += (text.empty() ? "" : ",") + (name == "copies" ? std::string("data") : name) + "=" + size;
    }
    const bool in_one = text.find(',') == std::string::npos && !text.starts_with("tensor") &&
                        !text.starts_with("context") && !text.starts_with("expert") &&
                        text.ends_with("=" + named_values.value_or("world-size", ""));
    return in_one ? "" : text;
  }

  /// Settings of the model that the file decides, unless the model's specification does.
  void add_settings() {
    const auto model = reading.options.find("model");
    if (model == reading.options.end()) return;
    const Specification given = Specification::parse("model", model->second);
    if (!words.contains("model")) model_settings = load_model(model->second).settings;
    const auto& known = model_settings;
    std::set<std::string> of_convention;  // which sets them where the model's text does not
    if (const auto like = reading.options.find("like");
        like != reading.options.end() && !like->second.empty() && like->second != "none")
      of_convention = Convention(like->second).names();
    evaluate("settings", [&](const std::string& name, const std::string& value) {
      if (given.find(name) != nullptr) return;
      const int wanted = positive_number(value).value_or(0);
      if (!known.contains(name) && wanted > 0)
        reading.assumed.push_back("without " + name + "=" + value + ", a setting that the model lacks");
      else if (known.contains(name) && (known.at(name) != wanted || of_convention.contains(name) ||
                                        load_model(model->second).settings.at(name) != wanted))
        model->second = with_setting(model->second, name, value);
    });
  }

  void report() {
    std::string options;
    for (const auto& [name, value] : reading.options)
      if (!given_options.contains(name) || name == "model")
        options += " --" + name + (value == "yes" ? "" : " " + value);
    reading.understood.push_back(reading.program + ":" + options);
    if (reading.options.contains("like") && !given_options.contains("like"))
      reading.assumed.push_back("what " + reading.program + " does by itself: convention " +
                                reading.options.at("like"));
    for (const auto& [what, keys] : {std::pair{"keys without effect: ", &taken.ignored},
                                     {"keys that --model replaces: ", &taken.replaced},
                                     {"words that are not literal, behind ", &taken.unread}})
      if (!keys->empty()) reading.ignored.push_back(what + joined(sorted_unique(*keys)));
  }

  const YamlNode rules = table.at("read");
  NamedEntries taken{};
  Assignment& named_values = taken.values;
  OptionTexts& words = taken.words;
  std::map<std::string, std::int64_t> model_settings{};
  LaunchReading reading{};
};

/// Imports a launch file as options of a forecast.
Imported import_launch(const std::vector<std::string>& paths, const ImportTexts& options) {
  OptionTexts given;
  for (const char* option : {"model", "world-size"})
    if (const std::string value = value_or(options, option, ""); !value.empty()) given[option] = value;
  const LaunchReading reading = read_launch_text(read_text(paths.front()), paths.front(), "", given);
  Imported imported{.text = "launch: " + reading.program + "\noptions:\n",
                    .understood = reading.understood,
                    .assumed = reading.assumed,
                    .ignored = reading.ignored};
  for (const auto& [name, value] : reading.options)
    imported.text += fmt::format("  {}: {}\n", name, in_double_quotes(value));
  return imported;
}

const Registration<Importer> kLaunch{
    importers(), {.name = "launch", .value = {is_launch_text, import_launch}, .order = 80}};

}  // namespace

bool is_launch_text(const std::string& head) { return !program_of(head).empty(); }

LaunchReading read_launch_text(const std::string& text, const std::string& name, const std::string& program,
                               const OptionTexts& given) {
  const std::string found = program.empty() ? program_of(text) : program;
  if (found.empty())
    throw InputError("{}: the program that it starts is not known; read are files of {}", name,
                     joined(kReadablePrograms));
  try {
    return TableReader{table_of(found), name, given}.read(text);
  } catch (const InputError& error) {
    if (std::string_view(error.what()).starts_with(name)) throw;
    throw InputError("{}: {}", name, error.what());
  }
}

LaunchReading read_launch_file(const std::string& path, const OptionTexts& given) {
  const std::string text = read_text(path);
  if (!(path.ends_with(".yaml") || path.ends_with(".yml")) || text.find("\nlaunch: ") == std::string::npos)
    return read_launch_text(text, path, "", given);
  const YamlNode file = YamlNode::parse(text, path);
  file.allow_only({"launch", "options"});
  LaunchReading result{.program = file.at("launch").text(), .options = given};
  for (const auto& [option, value] : entries_of(file.at("options")))
    result.options.try_emplace(option, value.text());
  return result;
}

}  // namespace stepcast

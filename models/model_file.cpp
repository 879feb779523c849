#include "models/model_file.hpp"

#include <algorithm>
#include <filesystem>

#include "core/file.hpp"
#include "core/ranges.hpp"
#include "models/chakra.hpp"
#include "models/exported_program.hpp"
#include "models/given_layer.hpp"
#include "models/hugging_face.hpp"
#include "models/settings.hpp"

namespace stepcast {
namespace {

/// The file that this one is like.
YamlNode base_of(const YamlNode& own) {
  own.allow_only({"description", "like", "settings", "pattern"});
  const YamlNode like = own.at("like");
  const YamlNode base =
      like.placed([&] { return YamlNode::load(find_resource("models", like.text(), ".yaml").string()); });
  if (base.has("like")) like.fail("'" + like.text() + "' is like another model itself");
  return base;
}

/// Checks that a model's ends fit its input and loss.
void check_ends(const Model& model, const YamlNode& node) {
  if (model.segments.empty()) node.fail("a model has at least one segment");
  if (const auto twice = repeated_name(model.segments))
    node.fail("two segments have the name '{}'; `$i` counts repetitions", *twice);
  const Shape& output = model.segments.back().output;
  const Loss& loss = model.loss;
  const bool tokens = model.input.kind == "tokens";
  const bool per_position =
      tokens && (output == Shape{model.input.shape.front(), loss.classes} ||
                 (model.shares_classes() && output.front() == model.input.shape.front()));
  if (loss.kind == "cross_entropy" && output != Shape{loss.classes} && !per_position)
    node.fail("cross_entropy over {} classes needs as many outputs, per sample or per token", loss.classes);
  const std::string& first = model.segments.front().layers.front().kind;
  if (tokens && first != "embedding" && first != "operators")
    node.fail("the first layer of a model whose input is tokens must be an embedding");
  if (per_position && loss.classes < model.input.vocabulary)
    node.fail("the next token is one of " + std::to_string(model.input.vocabulary) +
              ", so there must be at least that many classes, found " + std::to_string(loss.classes));
  if (loss.kind == "binary_cross_entropy" && output != Shape{1})
    node.fail("binary_cross_entropy needs one output");
}

/// The description of a TorchScript file, which `measure` writes beside it.
std::filesystem::path description_of(const std::string& program) {
  if (!std::filesystem::exists(program)) throw InputError("{}: no such file", program);
  if (!std::filesystem::exists(program + ".yaml"))
    throw InputError("{}: {}.yaml is missing; 'stepcast measure --model {} --input 32x3x224x224' writes it",
                     program, program, program);
  return program + ".yaml";
}

}  // namespace

Model model_from(const YamlNode& own, const Specification& given) {
  const bool is_like = own.has("like");
  const YamlNode file = is_like ? base_of(own) : own;
  Settings settings;
  if (file.has("settings")) settings.read(file.at("settings"));
  if (is_like && own.has("settings")) settings.change(own.at("settings"));
  settings.apply(given);
  Model model = read_model(file, settings);
  const YamlNode segments = file.at("segments");
  check_ends(model, segments);
  if (const std::string twice = complete(model); !twice.empty())
    segments.fail("two parameters have the name '{}'; layers with parameters need different names", twice);
  if (model.optimizer.muon &&
      std::ranges::none_of(model.parameters, [&](const Parameter& one) { return model.by_muon(one); }))
    file.at("optimizer")
        .at("muon")
        .fail(
            "Muon updates weights of two dimensions in segments with `repeat`; there are none, set it to 0");
  if (model.trained_count() == 0 && std::ranges::any_of(model.parameters, &Parameter::frozen))
    segments.fail("all parameters are frozen; nothing is trained");
  const std::string differences = settings.differences();
  model.specification = given.file + (differences.empty() ? "" : ":" + differences);
  return model;
}

bool is_torch_script(const std::string& specification) { return specification.ends_with(".pt"); }

Model load_model(const std::string& specification) {
  if (is_chakra(specification)) return chakra_model(specification);
  if (specification.ends_with(".pt2")) {
    const std::string text = to_text(read_exported(exported_json(specification), specification).model);
    Model model = model_from(YamlNode::parse(text, specification), {.file = specification});
    model.name = std::filesystem::path(specification).stem().string();
    model.path = specification;
    return model;
  }
  HuggingFaceModel configured;
  if (is_hugging_face(specification)) configured = read_hugging_face(specification);
  Specification parts = is_hugging_face(specification) ? configured.specification
                                                       : Specification::parse("model", specification);
  const std::filesystem::path path =
      is_torch_script(parts.file) ? description_of(parts.file) : find_resource("models", parts.file, ".yaml");
  const YamlNode file = YamlNode::load(path.string());
  if (!is_hugging_face(specification)) configured = read_pattern(file, parts);
  const bool has_pattern = !is_hugging_face(specification) && !configured.specification.file.empty();
  const bool has_blocks = !configured.blocks.empty();
  // Equal blocks of a pattern are settings of the family.
  if (has_pattern && !has_blocks) parts.overrides = configured.specification.overrides;
  Model model = model_from(has_blocks ? YamlNode::parse(model_text(configured), specification) : file, parts);
  model.name = path.stem().string();
  model.path = path.string();
  if (has_blocks || has_pattern) model.specification = specification;
  return model;
}

}  // namespace stepcast

#include <algorithm>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "models/given_layer.hpp"
#include "models/layer_kinds.hpp"
#include "models/model_file.hpp"
#include "models/settings.hpp"

/// Reads a model file.
///
/// ```yaml
/// description: one line
/// settings: {hidden: 128, wide: 4*hidden}   # numbers that --model name:hidden=256 overrides
/// input: {kind: features, shape: [30]}      # image, features or tokens (with `vocabulary`); or just `none`
/// loss: binary_cross_entropy                # cross_entropy (with `classes`), binary_cross_entropy, none,
///                                           # or traced: its time is a trace's
/// loss_in_place: true                       # see Loss for this, loss_compiled, _eager, _fused, _chunks
/// optimizer: {kind: adam, learning_rate: 0.001}   # sgd (momentum, weight_decay), adam (weight_decay, and
///                                           # muon: 1, see models/muon.hpp), none
/// frozen: adapters                          # all parameters but those of adapters, unless it is 0
/// segments:
///   - name: fc1
///     repeat: 3                             # optional; `$i` in names counts from 0, or from `from`
///     frozen: 2                             # the first two are not trained; without `repeat` 0 or 1
///     layers:
///       - linear: {name: fc1, out: hidden}  # a number, or the name of a setting
///       - relu                              # without a name: a function without parameters
///       - dropout: {percent: 10, when: noisy}   # present unless the setting is 0; or `unless`
///       - tensor_parallel: {ranks: tensor, layers: [...]}  # shared by ranks; see models/layer.hpp
/// ```
///
/// A file with other sizes of a model contains `like: llama`, the `settings` that differ, and `description`.
namespace stepcast {
namespace {

/// Products of a layer's attributes stay far inside 64 bits.
constexpr std::int64_t kMaxElements = 16'777'216, kMaxRepetitions = 5'000;
constexpr const char* kTensorParallel = "tensor_parallel";

bool is_none(const YamlNode& node) { return node.is_scalar() && node.text() == "none"; }

double read_positive(const YamlNode& node, bool zero_allowed) {
  const double value = node.number();
  if (value < 0 || (value == 0 && !zero_allowed)) node.fail("must be positive, found '" + node.text() + "'");
  return value;
}

struct ModelReader {
  const Settings& settings;  ///< with the overrides applied

  /// Returns the contents of the file; `complete()` adds costs and tensors.
  /// \throws InputError naming file, line and key
  Model read(const YamlNode& file) {
    file.allow_only({"description", "settings", "input", "loss", "loss_in_place", "loss_eager", "loss_fused",
                     "loss_chunks", "loss_compiled", "classes", "optimizer", "per", "program", "frozen",
                     "segments"});
    if (file.has("program")) program_kind = file.at("program").one_of("program", {"TorchScript"});
    result.settings = settings.values();
    read_input(file);
    read_loss(file);
    read_optimizer(file);
    all_frozen = is_set(file, "frozen");
    const YamlNode segments = file.at("segments");
    for (const YamlNode& segment : segments.items()) read_segment(segment);
    const auto most = std::max<std::int64_t>(1, std::ranges::count_if(result.segments, &Segment::repeated));
    if (most_frozen > most)
      segments.fail("frozen is {}; take at most {}, the segments with `repeat`", most_frozen, most);
    if (all_frozen && most_frozen > 0)
      segments.fail("frozen={} has no effect beside adapters, which all blocks have; set one of them to 0",
                    most_frozen);
    return std::move(result);
  }

  void read_input(const YamlNode& file) {
    const YamlNode node = file.at("input");
    ModelInput& input = result.input;
    input.kind =
        is_none(node) ? "none" : node.at("kind").one_of("input kind", {"image", "features", "tokens"});
    if (file.has("per")) {
      const YamlNode per = file.at("per");
      if (input.kind != "none") per.fail("only a model with declared times (input: none) has it");
      input.declared_per = per.one_of("value", {"sample", "batch"});
    }
    if (input.kind == "none") return;
    std::vector<std::string> known{"kind", "shape"};
    if (input.kind == "tokens") known.emplace_back("vocabulary");
    node.allow_only(known);
    if (input.kind == "tokens") input.vocabulary = read_int(node.at("vocabulary"), 2);
    const YamlNode shape = node.at("shape");
    for (const YamlNode& extent : shape.items()) input.shape.push_back(read_count(extent, 1, kMaxElements));
    const std::size_t dimensions = input.kind == "image" ? 3 : 1;
    if (input.kind == "features" ? input.shape.empty() : input.shape.size() != dimensions)
      shape.fail(dimensions == 3            ? "an image has the shape [channels, height, width]"
                 : input.kind == "features" ? "features have a shape such as [count]"
                                            : "tokens have the shape [sequence]");
  }

  void read_loss(const YamlNode& file) {
    const YamlNode node = file.at("loss");
    Loss& loss = result.loss;
    loss.kind = node.one_of(
        "loss", {"cross_entropy", "binary_cross_entropy", "mean_square", "own", "traced", "none"});
    const bool has_classes = loss.kind == "cross_entropy";
    loss.in_place = is_set(file, "loss_in_place");
    loss.compiled = is_set(file, "loss_compiled");
    loss.eager = is_set(file, "loss_eager");
    loss.fused = is_set(file, "loss_fused");
    for (const auto& [key, given] : {std::pair{"classes", file.has("classes")},
                                     {"loss_in_place", loss.in_place},
                                     {"loss_compiled", loss.compiled},
                                     {"loss_eager", loss.eager},
                                     {"loss_fused", loss.fused}})
      if (given && !has_classes) file.at(key).fail("only loss cross_entropy has classes");
    if (loss.fused && loss.compiled)
      file.at("loss_compiled")
          .fail("has no effect beside loss_fused, whose kernel computes it; set one of them to 0");
    if (file.has("loss_chunks")) loss.chunks = read_int(file.at("loss_chunks"), 1);
    if (has_classes) loss.classes = read_int(file.at("classes"), 2);
    if ((loss.kind == "none") != (result.input.kind == "none"))
      node.fail("loss and input are both none (a model with declared times) or both given");
  }

  void read_optimizer(const YamlNode& file) {
    const YamlNode node = file.at("optimizer");
    Optimizer& optimizer = result.optimizer;
    optimizer.kind = "none";
    if (is_none(node)) return;
    optimizer.kind = node.at("kind").one_of("optimizer", {"sgd", "adam"});
    std::vector<std::string> known{"kind", "learning_rate", "weight_decay"};
    known.emplace_back(optimizer.kind == "sgd" ? "momentum" : "muon");
    node.allow_only(known);
    optimizer.muon = is_set(node, "muon");
    optimizer.learning_rate = read_positive(node.at("learning_rate"), false);
    if (node.has("momentum")) optimizer.momentum = read_positive(node.at("momentum"), true);
    if (node.has("weight_decay")) optimizer.weight_decay = read_positive(node.at("weight_decay"), true);
  }

  void read_segment(const YamlNode& node) {
    node.allow_only({"name", "repeat", "from", "frozen", "layers", "when", "unless"});
    if (!is_wanted(node)) return;
    const std::int64_t repeat = node.has("repeat") ? read_count(node.at("repeat"), 1, kMaxRepetitions) : 1;
    const std::int64_t from = node.has("from") ? read_count(node.at("from"), 0, repeat) : 0;
    const std::int64_t frozen = node.has("frozen") ? read_count(node.at("frozen"), 0, kMaxRepetitions) : 0;
    most_frozen = std::max(most_frozen, frozen);
    for (repetition = from; repetition < repeat; ++repetition) {
      Segment segment;
      segment.repeated = node.has("repeat");
      is_frozen = all_frozen || repetition < frozen;
      segment.name = read_name(node.at("name"));
      const YamlNode layers = node.at("layers");
      segment.layers =
          read_layers(layers, result.segments.empty() ? result.input.shape : result.segments.back().output);
      if (segment.layers.empty()) layers.fail("a segment has at least one layer");
      segment.output = segment.layers.back().output;
      for (const Layer& layer : segment.layers) {
        const bool declared = layer.kind == "fixed";
        if (declared != (result.input.kind == "none"))
          layers.fail(
              "a model whose input is none has only layers of kind fixed, any other model none of them");
        if (!declared) continue;
        if (!segment.fixed) segment.fixed.emplace();
        segment.fixed->forward += Seconds(number(layer, "forward") * 1e-9);
        segment.fixed->backward += Seconds(number(layer, "backward") * 1e-9);
      }
      result.segments.push_back(std::move(segment));
    }
    repetition = 0;
  }

  std::vector<Layer> read_layers(const YamlNode& node, const Shape& input) {
    std::vector<Layer> layers;
    for (const YamlNode& item : node.items()) {
      if (!is_there(item)) continue;
      const Shape& before = layers.empty() ? input : layers.back().output;
      if (item.is_map() && item.has(kTensorParallel)) {
        for (Layer& layer : read_shared(item.at(kTensorParallel), before)) layers.push_back(std::move(layer));
      } else {
        layers.push_back(read_layer(item, before));
      }
    }
    return layers;
  }

  /// Reads layers that ranks share, and adds their borders.
  std::vector<Layer> read_shared(const YamlNode& node, const Shape& input) {
    node.allow_only({"when", "unless", "ranks", "sequence", "regather", "batch_first", "output", "layers"});
    const int ranks = read_int(node.at("ranks"), 1);
    const YamlNode list = node.at("layers");
    if (shared.ranks > 1) node.fail("tensor_parallel cannot contain another one");
    if (ranks == 1) return read_layers(list, input);
    const bool sequence = is_set(node, "sequence"), regather = is_set(node, "regather");
    const bool batch_first = sequence && is_set(node, "batch_first");
    const bool stays_split =
        node.has("output") && node.at("output").one_of("output", {"sum", "split"}) == "split";
    if (regather && !sequence)
      node.at("regather")
          .fail("nothing is gathered if ranks have whole sequences; set sequence_parallel=1 too");
    if (parallel.tensor > 1) expect_as_before(node.at("ranks"), parallel.tensor, ranks);
    parallel.tensor = ranks;
    parallel.sequence_parallel = sequence;
    parallel.batch_first = batch_first;
    const auto items = filtered(list.items(), [&](const YamlNode& item) { return is_there(item); });
    if (items.empty()) list.fail("ranks share at least one layer");
    std::vector<Layer> layers;
    const bool regathers = regather && (!stays_split || result.transformer_engine()) && input.size() > 1;
    const auto add_border = [&](const char* kind, const Shape& before, bool bias) {
      layers.push_back(node.placed([&] { return border_of(kind, parallel, regathers, before, bias); }));
    };
    const bool enters = input.size() > 1;  // tokens are whole on every rank
    if (enters) add_border("tensor_enter", input, false);
    for (std::size_t i = 0; i < items.size(); ++i) {
      shared = {ranks, i + 1 == items.size() && !stays_split};
      layers.push_back(read_layer(items[i], layers.empty() ? input : layers.back().output));
    }
    shared = {};
    if (enters) layers.front().name = first_name({layers.begin() + 1, layers.end()});
    if (stays_split) return layers;
    const Layer last = layers.back();
    if (!last.texts.contains(kShared))
      list.fail("the last layer that ranks share must be a linear or an embedding, found " + last.kind);
    add_border("tensor_leave", last.output, last.sizes.contains("shared_bias"));
    layers.back().name = last.kind == "embedding" ? full_name(last, last.texts.at("word")) : last.name;
    return layers;
  }

  static std::string first_name(const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
      if (!layer.name.empty()) return layer.name;
      for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
        if (const std::string name = first_name(*branch); !name.empty()) return name;
    }
    return "";
  }

  /// True unless a `when` or `unless` of the layer excludes it: `when: tied`.
  [[nodiscard]] bool is_there(const YamlNode& item) const {
    if (!item.is_map() || item.keys().size() != 1) return true;
    const YamlNode node = item.at(item.keys()[0]);
    return !node.is_map() || is_wanted(node);
  }
  [[nodiscard]] bool is_wanted(const YamlNode& node) const {
    return (!node.has("when") || is_set(node, "when")) && !is_set(node, "unless");
  }
  [[nodiscard]] bool is_set(const YamlNode& node, const char* key) const {
    return node.has(key) && settings.evaluate(node.at(key), Unit::kFlag) != 0;
  }

  Layer read_layer(const YamlNode& node, const Shape& input) {
    const std::vector<std::string> keys = node.is_scalar() ? std::vector{node.text()} : node.keys();
    if (keys.size() != 1) node.fail("a layer is one `kind: {{attributes}}`, found {} keys", keys.size());
    Layer layer{.kind = keys[0], .input = input};
    std::vector<std::string> known = transformed(layer_kinds(), &LayerKind::name);
    std::erase_if(known, [](const std::string& kind) { return kind.starts_with("tensor_"); });
    known.emplace_back(kTensorParallel);
    if (layer.kind == kTensorParallel || std::ranges::find(known, layer.kind) == known.end())
      node.fail(unknown_name("layer kind", layer.kind, known));
    const YamlNode place = node.is_scalar() ? node : node.at(layer.kind);
    layer.kind == "operators" ? read_operators(place, layer) : read_attributes(place, layer);
    const LayerKind& kind = layer_kind(layer.kind);
    if (layer.kind == "embedding") check_embedding(place, layer);
    if (layer.texts.contains("to")) tie(place, layer);
    if (layer.kind == "self_attention") note_context(place, layer);
    if (layer.kind == "experts") {
      const auto ranks = static_cast<int>(size(layer, "ranks"));
      if (parallel.expert > 1) expect_as_before(place.at("ranks"), parallel.expert, ranks);
      parallel.expert = ranks;
      parallel.expert_tensor = static_cast<int>(size(layer, "tensor"));
      if (parallel.tensor > 1 && !parallel.sequence_parallel)
        place.fail("experts where {} ranks share layers need sequence_parallel=1; set it", parallel.tensor);
    }
    layer.frozen = layer.frozen || is_frozen;
    if (adapter_rank(layer) > 0 && shared.ranks > 1)
      place.fail("adapters of layers that {} ranks share are not modelled; set tensor=1 or lora=0",
                 shared.ranks);
    if (shared.ranks > 1) share_layer(place, shared.ranks, shared.is_last, layer);
    layer.output = place.placed([&] { return output_of(layer); });
    if (layer.name.empty() && !kind.needs_no_name && !parameters_of(layer).empty())
      place.fail("key 'name' is missing; it is part of the names of the parameters of " + layer.kind);
    return layer;
  }

  static void expect_as_before(const YamlNode& node, int before, int found) {
    if (found != before) node.fail("must be {}, as in the layers before, found {}", before, found);
  }

  void note_context(const YamlNode& node, const Layer& layer) {
    const auto ranks = static_cast<int>(size(layer, "context"));
    const bool ring = ranks > 1 && flag(layer, "ring");
    if (attends && ranks != parallel.context) expect_as_before(node.at("context"), parallel.context, ranks);
    if (attends && ring != parallel.ring) node.at("ring").fail("must be as in the layers before");
    attends = true;
    parallel.context = ranks;
    parallel.ring = ring;
    parallel.ulysses = ranks > 1 && flag(layer, "ulysses");
  }

  void check_embedding(const YamlNode& node, const Layer& layer) const {
    if (result.input.kind != "tokens" || !result.segments.empty())
      node.fail("an embedding must be in the first segment of a model whose input is tokens");
    if (size(layer, "vocabulary") < result.input.vocabulary)
      node.at("vocabulary")
          .fail("must be at least the input's vocabulary of " + std::to_string(result.input.vocabulary) +
                ", found " + std::to_string(size(layer, "vocabulary")));
  }

  /// Gives a tied layer the shape of the weight that it uses.
  void tie(const YamlNode& node, Layer& layer) const {
    const std::string& wanted = layer.texts.at("to");
    std::vector<std::string> known;
    for (const Segment& segment : result.segments)
      for (const Layer& owner : segment.layers)
        for (const LayerTensor& tensor : parameters_of(owner)) {
          if (tensor.shape.size() != 2) continue;
          known.push_back(full_name(owner, tensor.suffix));
          if (known.back() != wanted) continue;
          layer.sizes["rows"] = tensor.shape[0];
          layer.sizes["columns"] = tensor.shape[1];
          layer.frozen = owner.frozen;
          return;
        }
    node.at("to").fail(unknown_name("weight of an earlier segment", wanted, known));
  }

  void read_operators(const YamlNode& node, Layer& layer) {
    layer.given = std::make_shared<const GivenLayer>(read_given(node, program_kind));
    for (const std::string& name : layer.given->tied)
      if (!owned.contains(name)) node.at("tied").fail("no earlier layer owns '{}'", name);
    for (const LayerTensor& tensor : layer.given->parameters) owned.insert(tensor.suffix);
  }

  void read_attributes(const YamlNode& node, Layer& layer) {
    const LayerKind& kind = layer_kind(layer.kind);
    if (node.is_map()) {
      std::vector<std::string> known{"name", "when", "unless"};
      for (const Attribute& attribute : kind.attributes)
        if (!value_of_model(attribute)) known.push_back(attribute.key);
      known.insert(known.end(), kind.branches.begin(), kind.branches.end());
      node.allow_only(known);
    } else if (!node.is_scalar()) {
      node.fail("expected the attributes of " + layer.kind + " as keys and values");
    }
    if (node.has("name")) layer.name = read_name(node.at("name"));
    if (!kind.branches.empty()) {
      layer.body = read_layers(node.at(kind.branches[0]), layer.input);
      if (node.has(kind.branches[1])) layer.shortcut = read_layers(node.at(kind.branches[1]), layer.input);
    }
    for (const Attribute& attribute : kind.attributes) {
      if (const std::optional<bool> of_model = value_of_model(attribute)) {
        layer.sizes[attribute.key] = *of_model ? 1 : 0;
        continue;
      }
      const bool is_given = node.has(attribute.key);
      if (!is_given && attribute.required())
        node.fail("key '" + attribute.key + "' of " + layer.kind + " is missing");
      if (attribute.unit == Unit::kName)
        layer.texts[attribute.key] = is_given ? read_name(node.at(attribute.key)) : attribute.default_name;
      else if (is_given)
        layer.sizes[attribute.key] = read_size(node.at(attribute.key), attribute);
      else
        layer.sizes[attribute.key] =
            attribute.default_value ? *attribute.default_value : layer.sizes.at(attribute.same_as);
    }
    const std::int64_t every = value_or(layer.sizes, "full_every", 0);
    if (layer.sizes.contains("window") &&
        (layer.sizes["window"] >= layer.input[0] * value_or(layer.sizes, "context", 1) ||
         (every > 0 && (repetition + 1) % every == 0)))
      layer.sizes["window"] = 0;
  }

  /// Value of an attribute that the model sets; empty for attributes of the file.
  [[nodiscard]] std::optional<bool> value_of_model(const Attribute& attribute) const {
    if (attribute.key == kTransformerEngine) return result.transformer_engine();
    if (attribute.key == kCompiled) return result.compiled();
    return {};
  }

  [[nodiscard]] std::int64_t read_size(const YamlNode& node, const Attribute& attribute) const {
    const std::int64_t value = settings.evaluate(node, attribute.unit);
    const auto expect = [&](bool holds, const char* bound, std::int64_t limit) {
      if (!holds) node.fail("must be at {} {}, found {}", bound, limit, value);
    };
    expect(value >= attribute.least, "least", attribute.least);
    expect(attribute.unit != Unit::kCount || value <= kMaxElements, "most", kMaxElements);
    expect(attribute.unit != Unit::kFlag || value <= 1, "most", 1);
    return value;
  }

  [[nodiscard]] std::string read_name(const YamlNode& node) const {
    std::string name = node.text();
    if (name.empty()) node.fail("a name cannot be empty");
    if (const std::size_t place = name.find("$i"); place != std::string::npos)
      name.replace(place, 2, std::to_string(repetition));
    return name;
  }

  [[nodiscard]] std::int64_t read_count(const YamlNode& node, std::int64_t least, std::int64_t most) const {
    const std::int64_t value = settings.evaluate(node, Unit::kCount);
    if (value < least || value > most)
      node.fail("must be at least {} and at most {}, found {}{}", least, most, value,
                number_in<std::int64_t>(node.text()) ? "" : " (" + node.text() + ")");
    return value;
  }
  [[nodiscard]] int read_int(const YamlNode& node, std::int64_t least) const {
    return static_cast<int>(read_count(node, least, kMaxElements));
  }

  /// State while the layers of a tensor_parallel are read.
  struct Shared {
    int ranks = 1;
    bool is_last = false;  ///< true for the layer whose outputs are summed
  };

  Model result{};
  ModelParallel& parallel = result.parallel;
  Shared shared{};
  bool attends = false;
  std::string program_kind{};
  std::set<std::string> owned{};  ///< parameters of kind `operators`
  std::int64_t repetition = 0;
  bool is_frozen = false;   ///< true for layers of the segment that is read
  bool all_frozen = false;  ///< all parameters but those of adapters
  std::int64_t most_frozen = 0;
};

}  // namespace

Model read_model(const YamlNode& file, const Settings& settings) { return ModelReader{settings}.read(file); }

}  // namespace stepcast

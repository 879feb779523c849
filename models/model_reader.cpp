#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "core/file.hpp"
#include "models/hugging_face.hpp"
#include "models/layer.hpp"
#include "models/settings.hpp"

// clang-format off
/// Reads a model file.
///
/// ```yaml
/// description: one line
/// settings: {hidden: 128, wide: 4*hidden}       # numbers that --model name:hidden=256 overrides
/// input: {kind: features, shape: [30]}          # kind image, features or tokens (with `vocabulary`); or just `none`
/// loss: binary_cross_entropy                    # cross_entropy (with `classes`), binary_cross_entropy, none
/// loss_in_place: true                           # softmax and gradient overwrite the fp32 copy of the outputs: Megatron's
/// loss_eager: true                              # of PyTorch's kernels one by one, not compiled or fused
/// optimizer: {kind: adam, learning_rate: 0.001} # sgd (momentum, weight_decay), adam (weight_decay), or `none`
/// segments:
///   - name: fc1
///     repeat: 3                                 # optional; `$i` in names counts from 0, or with `from: 1` 1 and 2
///     layers:
///       - linear: {name: fc1, out: hidden}      # a number, or the name of a setting
///       - relu                                  # without a name: a function, which has no row
///       - dropout: {percent: 10, when: noisy}   # there unless the setting is 0; or `unless`
///       - tensor_parallel: {ranks: tensor, layers: [...]}  # shared by so many ranks; see models/layer.hpp
/// ```
///
/// A file that is another one's model in other sizes says so: `like: llama`, with the `settings` that differ, and its own
/// `description`.
// clang-format on
namespace stepcast {
namespace {

/// Products of a layer's attributes stay far inside 64 bits.
constexpr std::int64_t kMostElements = 1'000'000;
constexpr std::int64_t kMostRepetitions = 10'000;

bool is_none(const YamlNode& node) { return node.is_scalar() && node.text() == "none"; }

double read_positive(const YamlNode& node, bool zero_allowed) {
  const double value = node.number();
  if (value < 0 || (value == 0 && !zero_allowed)) node.fail("must be positive, found '" + node.text() + "'");
  return value;
}

class ModelReader {
 public:
  /// \param settings with the overrides applied
  explicit ModelReader(const Settings& settings) : settings_(settings) {}

  /// Everything that the file says; costs and tensors are added by `complete()`.
  /// \throws InputError naming file, line and key
  Model read(const YamlNode& file) {
    file.allow_only({"description", "settings", "input", "loss", "loss_in_place", "loss_eager", "classes",
                     "optimizer", "per", "segments"});
    model_ = Model{};
    model_.settings = settings_.values();
    read_input(file);
    read_loss(file);
    read_optimizer(file);
    if (file.has("per")) {
      const YamlNode per = file.at("per");
      if (model_.input_kind != "none") per.fail("only a model with declared times (input: none) says it");
      model_.per = per.one_of("value", {"sample", "batch"});
    }
    for (const YamlNode& segment : file.at("segments").items()) read_segment(segment);
    check_end(file);
    return std::move(model_);
  }

 private:
  void read_input(const YamlNode& file) {
    const YamlNode node = file.at("input");
    model_.input_kind = "none";
    if (is_none(node)) return;
    model_.input_kind = node.at("kind").one_of("input kind", {"image", "features", "tokens"});
    std::vector<std::string> known{"kind", "shape"};
    if (model_.input_kind == "tokens") known.emplace_back("vocabulary");
    node.allow_only(known);
    if (model_.input_kind == "tokens")
      model_.vocabulary = static_cast<int>(read_count(node.at("vocabulary"), 2, kMostElements));
    const YamlNode shape = node.at("shape");
    for (const YamlNode& extent : shape.items()) model_.input.push_back(read_count(extent, 1, kMostElements));
    const std::size_t dimensions = model_.input_kind == "image" ? 3 : 1;
    if (model_.input.size() != dimensions)
      shape.fail(dimensions == 3                   ? "an image has the shape [channels, height, width]"
                 : model_.input_kind == "features" ? "features have the shape [count]"
                                                   : "tokens have the shape [sequence]");
  }

  void read_loss(const YamlNode& file) {
    const YamlNode node = file.at("loss");
    model_.loss = node.one_of("loss", {"cross_entropy", "binary_cross_entropy", "none"});
    if (model_.loss == "cross_entropy") {
      model_.classes = static_cast<int>(read_count(file.at("classes"), 2, kMostElements));
    } else if (file.has("classes")) {
      file.at("classes").fail("only loss cross_entropy has classes");
    }
    for (const auto& [key, flag] :
         {std::pair{"loss_in_place", &model_.loss_in_place}, {"loss_eager", &model_.loss_eager}}) {
      *flag = file.has(key) && settings_.evaluate(file.at(key), Unit::kFlag) != 0;
      if (*flag && model_.loss != "cross_entropy") file.at(key).fail("only loss cross_entropy has classes");
    }
    if ((model_.loss == "none") != (model_.input_kind == "none"))
      node.fail("loss and input are both none (a model with declared times) or both given");
  }

  void read_optimizer(const YamlNode& file) {
    const YamlNode node = file.at("optimizer");
    Optimizer& optimizer = model_.optimizer;
    optimizer.kind = "none";
    if (is_none(node)) return;
    optimizer.kind = node.at("kind").one_of("optimizer", {"sgd", "adam"});
    std::vector<std::string> known{"kind", "learning_rate", "weight_decay"};
    if (optimizer.kind == "sgd") known.emplace_back("momentum");
    node.allow_only(known);
    optimizer.learning_rate = read_positive(node.at("learning_rate"), false);
    if (node.has("momentum")) optimizer.momentum = read_positive(node.at("momentum"), true);
    if (node.has("weight_decay")) optimizer.weight_decay = read_positive(node.at("weight_decay"), true);
  }

  void read_segment(const YamlNode& node) {
    node.allow_only({"name", "repeat", "from", "layers", "when", "unless"});
    if (!is_wanted(node)) return;
    const std::int64_t repeat = node.has("repeat") ? read_count(node.at("repeat"), 1, kMostRepetitions) : 1;
    const std::int64_t from = node.has("from") ? read_count(node.at("from"), 0, repeat - 1) : 0;
    for (repetition_ = from; repetition_ < repeat; ++repetition_) {
      Segment segment;
      segment.repeated = node.has("repeat");
      segment.name = read_name(node.at("name"));
      segment.input = model_.segments.empty() ? model_.input : model_.segments.back().output;
      const YamlNode layers = node.at("layers");
      segment.layers = read_layers(layers, segment.input);
      if (segment.layers.empty()) layers.fail("a segment has at least one layer");
      segment.output = segment.layers.back().output;
      for (const Layer& layer : segment.layers) {
        const bool declared = layer.kind == "fixed";
        if (declared != (model_.input_kind == "none"))
          layers.fail(
              "a model whose input is none has only layers of kind fixed, any other model none of them");
        if (!declared) continue;
        const auto add = [&](std::optional<Seconds>& sum, const char* key) {
          sum = sum.value_or(Seconds(0)) + Seconds(static_cast<double>(layer.sizes.at(key)) * 1e-9);
        };
        add(segment.fixed_forward, "forward");
        add(segment.fixed_backward, "backward");
      }
      model_.segments.push_back(std::move(segment));
    }
    repetition_ = 0;
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

  /// Layers that ranks share, with what stands around them.
  std::vector<Layer> read_shared(const YamlNode& node, const Shape& input) {
    node.allow_only({"ranks", "sequence", "again", "batch_first", "output", "layers"});
    const auto ranks = static_cast<int>(read_count(node.at("ranks"), 1, kMostElements));
    const auto flag = [&](const char* key) {
      return node.has(key) && settings_.evaluate(node.at(key), Unit::kFlag) != 0;
    };
    const bool sequence = flag("sequence"), again = flag("again"),
               batch_first = sequence && flag("batch_first");
    const bool stays_split =
        node.has("output") && node.at("output").one_of("output", {"sum", "split"}) == "split";
    const YamlNode list = node.at("layers");
    if (shared_.ranks > 1) node.fail("tensor_parallel stands inside of another one");
    if (ranks == 1) return read_layers(list, input);  // of one rank, nothing is in parts
    if (model_.tensor > 1 && model_.tensor != ranks)
      node.at("ranks").fail("must be " + std::to_string(model_.tensor) + ", as in the layers before, found " +
                            std::to_string(ranks));
    if (again && !sequence)
      node.at("again").fail(
          "nothing is gathered where ranks have whole sequences; set sequence_parallel=1 too");
    model_.tensor = ranks;
    model_.sequence_parallel = sequence;
    model_.batch_first = batch_first;
    std::vector<YamlNode> items;
    for (const YamlNode& item : list.items())
      if (is_there(item)) items.push_back(item);
    if (items.empty()) list.fail("ranks share at least one layer");
    std::vector<Layer> layers;
    const auto add_border = [&](const char* kind, const Shape& before, bool bias) {
      Layer border;
      border.kind = kind;
      border.input = before;
      border.sizes = {{"ranks", ranks},
                      {"sequence", sequence ? 1 : 0},
                      {"again", again && !stays_split && input.size() > 1 ? 1 : 0},
                      {"batch_first", batch_first ? 1 : 0},
                      {"bias", bias ? 1 : 0}};
      border.output = node.placed([&] { return output_of(border); });
      layers.push_back(std::move(border));
    };
    if (input.size() > 1) add_border("tensor_enter", input, false);  // tokens are whole everywhere
    const std::size_t border = layers.size();
    for (std::size_t i = 0; i < items.size(); ++i) {
      shared_ = {ranks, i + 1 == items.size() && !stays_split};
      layers.push_back(read_layer(items[i], layers.empty() ? input : layers.back().output));
    }
    shared_ = {};
    const Layer& last = layers.back();
    const std::string left = name_of(last);
    if (border > 0) layers.front().name = first_name({layers.begin() + 1, layers.end()});
    if (stays_split) return layers;
    if (!last.texts.contains(kShared))
      list.fail("the last of the layers that ranks share is a linear or an embedding, found " + last.kind);
    add_border("tensor_leave", last.output, last.sizes.contains("shared_bias"));
    layers.back().name = left;
    return layers;
  }

  /// An embedding's are the names of its tables.
  static std::string name_of(const Layer& layer) {
    return layer.kind == "embedding" ? full_name(layer, layer.texts.at("word")) : layer.name;
  }

  static std::string first_name(const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
      if (!layer.name.empty()) return layer.name;
      for (const std::vector<Layer>* branch : {&layer.body, &layer.shortcut})
        if (const std::string name = first_name(*branch); !name.empty()) return name;
    }
    return "";
  }

  /// Makes a layer one rank's part of it.
  void share(const YamlNode& node, Layer& layer) const {
    const auto divide = [&](const char* key, const std::string& what) {
      std::int64_t& size = layer.sizes.at(key);
      if (size % shared_.ranks != 0)
        node.fail(what + " " + std::to_string(size) + " cannot be divided among " +
                  std::to_string(shared_.ranks) + " ranks");
      size /= shared_.ranks;
    };
    if (layer.kind == "linear" && shared_.is_last) {
      layer.texts[kShared] = "rows";
      if (layer.sizes.at("bias") != 0) layer.sizes["shared_bias"] = 1;
      layer.sizes["bias"] = 0;
    } else if (layer.kind == "linear") {
      layer.texts[kShared] = "columns";
      divide("out", "outputs");
    } else if (layer.kind == "tied_linear") {
      if (shared_.is_last)
        node.fail("a tied_linear is shared where `output: split` leaves its outputs apart");
      layer.texts[kShared] = "columns";  // as the rows of its weight are
    } else if (layer.kind == "self_attention") {
      if (layer.sizes.at("fused") != 0) node.fail("ranks cannot share a fused projection of q, k and v");
      if (layer.sizes.at("head_size") == 0)
        layer.sizes["head_size"] = layer.input[1] / layer.sizes.at("heads");
      layer.texts[kShared] = "heads";
      divide("heads", "heads");
      divide("kv_heads", "kv_heads");
    } else if (layer.kind == "embedding") {
      if (layer.sizes.at("positions") + layer.sizes.at("types") > 0)
        node.fail("ranks share the words of an embedding; positions and types stand in layers of their own");
      layer.texts[kShared] = "rows of words";
      divide("vocabulary", "vocabulary");
    } else if (!layer_kind(layer.kind).parameters(layer).empty() || layer.kind == "residual") {
      node.fail("ranks cannot share a " + layer.kind +
                "; they share linear, tied_linear, self_attention and embedding");
    }
  }

  /// A layer or segment may depend on a setting: `when: tied`, `unless: tied`.
  [[nodiscard]] bool is_there(const YamlNode& item) const {
    if (!item.is_map() || item.keys().size() != 1) return true;
    const YamlNode node = item.at(item.keys()[0]);
    return !node.is_map() || is_wanted(node);
  }
  [[nodiscard]] bool is_wanted(const YamlNode& node) const {
    return (!node.has("when") || settings_.evaluate(node.at("when"), Unit::kFlag) != 0) &&
           (!node.has("unless") || settings_.evaluate(node.at("unless"), Unit::kFlag) == 0);
  }

  Layer read_layer(const YamlNode& node, const Shape& input) {
    Layer layer;
    const std::vector<std::string> keys = node.is_scalar() ? std::vector{node.text()} : node.keys();
    if (keys.size() != 1)
      node.fail("a layer is one `kind: {attributes}`, found " + std::to_string(keys.size()) + " keys");
    layer.kind = keys[0];
    layer.input = input;
    std::vector<std::string> known = layer_kind_names();
    std::erase_if(known, [](const std::string& kind) { return kind.starts_with("tensor_"); });
    known.emplace_back(kTensorParallel);
    if (layer.kind == kTensorParallel || std::ranges::find(known, layer.kind) == known.end())
      node.fail(unknown_name("layer kind", layer.kind, known));
    const YamlNode place = node.is_scalar() ? node : node.at(layer.kind);
    read_attributes(place, layer);
    const LayerKind& kind = layer_kind(layer.kind);
    if (layer.kind == "embedding") check_embedding(place, layer);
    if (layer.kind == "tied_linear") tie(place, layer);
    if (layer.kind == "self_attention") note_context(place, layer);
    if (layer.kind == "experts") note_experts(place, layer);
    if (shared_.ranks > 1) share(place, layer);
    layer.output = place.placed([&] { return output_of(layer); });
    if (layer.name.empty() && !kind.needs_no_name && !kind.parameters(layer).empty())
      place.fail("key 'name' is missing; the parameters of " + layer.kind + " are called after it");
    return layer;
  }

  void note_context(const YamlNode& node, const Layer& layer) {
    const auto ranks = static_cast<int>(layer.sizes.at("context"));
    if (has_attention_ && ranks != model_.context)
      node.at("context").fail("must be " + std::to_string(model_.context) +
                              ", as in the layers before, found " + std::to_string(ranks));
    const bool ring = ranks > 1 && layer.sizes.at("ring") != 0;
    if (has_attention_ && ring != model_.ring) node.at("ring").fail("must be as in the layers before");
    has_attention_ = true;
    model_.context = ranks;
    model_.ring = ring;
  }

  void note_experts(const YamlNode& node, const Layer& layer) {
    const auto ranks = static_cast<int>(layer.sizes.at("ranks"));
    if (model_.expert > 1 && ranks != model_.expert)
      node.at("ranks").fail("must be " + std::to_string(model_.expert) + ", as in the layers before, found " +
                            std::to_string(ranks));
    model_.expert = ranks;
  }

  void check_embedding(const YamlNode& node, const Layer& layer) const {
    if (model_.input_kind != "tokens" || !model_.segments.empty())
      node.fail("an embedding stands in the first segment of a model whose input are tokens");
    if (layer.sizes.at("vocabulary") < model_.vocabulary)
      node.at("vocabulary")
          .fail("must be at least the input's vocabulary of " + std::to_string(model_.vocabulary) +
                ", found " + std::to_string(layer.sizes.at("vocabulary")));
  }

  /// Gives a tied layer the shape of the weight that it uses.
  void tie(const YamlNode& node, Layer& layer) const {
    const std::string& wanted = layer.texts.at("to");
    std::vector<std::string> known;
    for (const Segment& segment : model_.segments)
      for (const Layer& owner : segment.layers)
        for (const LayerTensor& tensor : layer_kind(owner.kind).parameters(owner)) {
          if (tensor.shape.size() != 2) continue;
          known.push_back(full_name(owner, tensor.suffix));
          if (known.back() != wanted) continue;
          layer.sizes["rows"] = tensor.shape[0];
          layer.sizes["columns"] = tensor.shape[1];
          return;
        }
    node.at("to").fail(unknown_name("weight of an earlier segment", wanted, known));
  }

  void read_attributes(const YamlNode& node, Layer& layer) {
    const LayerKind& kind = layer_kind(layer.kind);
    if (node.is_map()) {
      std::vector<std::string> known{"name"};
      for (const Attribute& attribute : kind.attributes) known.push_back(attribute.key);
      known.insert(known.end(), kind.branches.begin(), kind.branches.end());
      known.insert(known.end(), {"when", "unless"});
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
      const bool is_given = node.has(attribute.key);
      const bool is_due = !attribute.standard && attribute.same_as.empty() && attribute.standard_name.empty();
      if (!is_given && is_due) node.fail("key '" + attribute.key + "' of " + layer.kind + " is missing");
      if (attribute.unit == Unit::kName) {
        layer.texts[attribute.key] = is_given ? read_name(node.at(attribute.key)) : attribute.standard_name;
        continue;
      }
      std::int64_t& value = layer.sizes[attribute.key];
      if (is_given) {
        const YamlNode given = node.at(attribute.key);
        value = settings_.evaluate(given, attribute.unit);
        if (value < attribute.least)
          given.fail("must be at least " + std::to_string(attribute.least) + ", found " +
                     std::to_string(value));
        if (attribute.unit == Unit::kCount && value > kMostElements)
          given.fail("must be at most " + std::to_string(kMostElements) + ", found " + std::to_string(value));
      } else {
        value = attribute.standard ? *attribute.standard : layer.sizes.at(attribute.same_as);
      }
    }
  }

  void check_end(const YamlNode& file) const {
    const YamlNode node = file.at("segments");
    if (model_.segments.empty()) node.fail("a model has at least one segment");
    std::vector<std::string> names;
    for (const Segment& segment : model_.segments) names.push_back(segment.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end())
      node.fail("segment name '" + *twice + "' stands twice; `$i` counts repetitions");
    const Shape& output = model_.segments.back().output;
    const bool per_position = model_.input_kind == "tokens" &&
                              (output == Shape{model_.input.front(), model_.classes} ||
                               (model_.shares_classes() && output.front() == model_.input.front()));
    if (model_.loss == "cross_entropy" && output != Shape{model_.classes} && !per_position)
      node.fail("cross_entropy over " + std::to_string(model_.classes) +
                " classes needs as many outputs, per sample or per token");
    if (model_.input_kind == "tokens" && model_.segments.front().layers.front().kind != "embedding")
      node.fail("the first layer of a model whose input are tokens is an embedding");
    if (per_position && model_.classes < model_.vocabulary)
      node.fail("the next token is one of " + std::to_string(model_.vocabulary) +
                ", so classes must be as many, found " + std::to_string(model_.classes));
    if (model_.loss == "binary_cross_entropy" && output != Shape{1})
      node.fail("binary_cross_entropy needs one output");
  }

  [[nodiscard]] std::string read_name(const YamlNode& node) const {
    std::string name = node.text();
    if (name.empty()) node.fail("a name cannot be empty");
    if (const std::size_t place = name.find("$i"); place != std::string::npos)
      name.replace(place, 2, std::to_string(repetition_));
    return name;
  }

  [[nodiscard]] std::int64_t read_count(const YamlNode& node, std::int64_t least, std::int64_t most) const {
    const std::int64_t value = settings_.evaluate(node, Unit::kCount);
    if (value < least || value > most)
      node.fail("must be at least " + std::to_string(least) + " and at most " + std::to_string(most) +
                ", found " + std::to_string(value));
    return value;
  }

  /// Of the layers that are read.
  struct Shared {
    int ranks = 1;
    bool is_last = false;  ///< whose outputs are summed
  };

  static constexpr const char* kTensorParallel = "tensor_parallel";
  const Settings& settings_;
  Model model_;
  Shared shared_;
  bool has_attention_ = false;
  std::int64_t repetition_ = 0;
};

}  // namespace

Model load_model(const std::string& specification) {
  const Specification parts = is_hugging_face(specification) ? read_hugging_face(specification)
                                                             : Specification::parse("model", specification);
  const std::filesystem::path path = find_resource("models", parts.file, ".yaml");
  const YamlNode own = YamlNode::load(path.string());
  const bool is_like = own.has("like");
  if (is_like) own.allow_only({"description", "like", "settings"});
  const YamlNode file = is_like ? own.at("like").placed([&] {
    return YamlNode::load(find_resource("models", own.at("like").text(), ".yaml").string());
  })
                                : own;
  if (is_like && file.has("like"))
    own.at("like").fail("'" + own.at("like").text() + "' is like another model itself");
  Settings settings;
  if (file.has("settings")) settings.read(file.at("settings"));
  if (is_like && own.has("settings")) settings.change(own.at("settings"));
  settings.apply(parts);
  Model model = ModelReader(settings).read(file);
  if (const std::string twice = complete(model); !twice.empty())
    file.at("segments")
        .fail("parameter '" + twice + "' stands twice; layers with parameters need names of their own");
  if (own.has("description")) model.description = own.at("description").text();
  model.name = path.stem().string();
  model.path = path.string();
  const std::string differences = settings.differences();
  model.specification = parts.file + (differences.empty() ? "" : ":" + differences);
  return model;
}

std::vector<std::string> model_names() { return resource_names("models", ".yaml"); }

}  // namespace stepcast

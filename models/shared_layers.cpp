#include "models/shared_layers.hpp"

#include "models/layer_kinds.hpp"

namespace stepcast {

void share_layer(const YamlNode& node, int ranks, bool is_last, Layer& layer) {
  const auto divide = [&](const char* key, const std::string& what) {
    node.placed([&] { expect_divisible(what, size(layer, key), ranks); });
    layer.sizes.at(key) /= ranks;
  };
  const std::string& kind = layer.kind;
  std::string by;
  if (kind == "linear" && is_last) {
    by = "rows";
    if (flag(layer, "bias")) layer.sizes["shared_bias"] = 1;
    layer.sizes["bias"] = 0;
  } else if (kind == "linear") {
    by = "columns";
    divide("out", "outputs");
  } else if (kind == "tied_linear") {
    if (is_last) node.fail("ranks share a tied_linear only with `output: split`");
    by = "columns";  // as the rows of its weight are
  } else if (kind == kNextTokens) {
    by = "columns";
    divide("out", "outputs");
  } else if (kind == kOwnHead) {
    by = "columns";
    divide("rows", "classes");
  } else if (kind == "self_attention") {
    if (flag(layer, "fused")) node.fail("ranks cannot share a fused projection of q, k and v");
    if (!flag(layer, "head_size")) layer.sizes["head_size"] = layer.input[1] / size(layer, "heads");
    by = "heads";
    divide("heads", "heads");
    divide("kv_heads", "kv_heads");
  } else if (kind == "latent_attention") {
    by = "heads";
    divide("heads", "heads");
  } else if (kind == "mamba") {
    by = "channels";
    divide("heads", "heads");
    divide("groups", "groups");
  } else if (kind == "embedding") {
    if (size(layer, "positions") + size(layer, "types") > 0)
      node.fail("ranks share the words of an embedding; positions and types need layers of their own");
    by = "rows of words";
    divide("vocabulary", "vocabulary");
  } else if (!parameters_of(layer).empty() || kind == "residual") {
    node.fail(
        "ranks cannot share a {}; they share linear, tied_linear, self_attention, latent_attention, mamba "
        "and embedding",
        kind);
  }
  if (!by.empty()) layer.texts[kShared] = by;
}

}  // namespace stepcast

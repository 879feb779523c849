#pragma once

#include <string>
#include <vector>

#include "core/yaml.hpp"
#include "models/model.hpp"
#include "models/settings.hpp"

// clang-format off
/// Reads a model file.
///
/// ```yaml
/// description: one line
/// settings: {hidden: 128, wide: 4*hidden}       # numbers that --model name:hidden=256 overrides
/// input: {kind: features, shape: [30]}          # kind image, features or tokens (with `vocabulary`); or just `none`
/// loss: binary_cross_entropy                    # cross_entropy (with `classes`), binary_cross_entropy, none
/// optimizer: {kind: adam, learning_rate: 0.001} # sgd (momentum, weight_decay), adam (weight_decay), or `none`
/// segments:
///   - name: fc1
///     repeat: 3                                 # optional; `$i` in names counts from 0
///     layers:
///       - linear: {name: fc1, out: hidden}      # a number, or the name of a setting
///       - relu                                  # without a name: a function, which has no row
/// ```
// clang-format on
namespace stepcast {

class ModelReader {
 public:
  /// \param settings with the overrides applied
  explicit ModelReader(const Settings& settings) : settings_(settings) {}

  /// Everything that the file says; costs and tensors are added by `complete()`.
  /// \throws InputError naming file, line and key
  Model read(const YamlNode& file);

 private:
  void read_input(const YamlNode& file);
  void read_loss(const YamlNode& file);
  void read_optimizer(const YamlNode& file);
  void read_segment(const YamlNode& node);
  Layer read_layer(const YamlNode& node, const Shape& input) const;
  std::vector<Layer> read_layers(const YamlNode& node, const Shape& input) const;
  void read_attributes(const YamlNode& node, Layer& layer) const;
  void check_embedding(const YamlNode& node, const Layer& layer) const;
  /// Gives a tied layer the shape of the weight that it uses.
  void tie(const YamlNode& node, Layer& layer) const;
  void check_end(const YamlNode& file) const;
  [[nodiscard]] std::string read_name(const YamlNode& node) const;
  [[nodiscard]] std::int64_t read_count(const YamlNode& node, std::int64_t least, std::int64_t most) const;

  const Settings& settings_;
  Model model_;
  std::int64_t repetition_ = 0;
};

}  // namespace stepcast

#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/yaml.hpp"

/// The points of a study file: trainings and clusters, told as options of `predict` and `run`.
namespace stepcast {

struct LabPoint {
  std::string name;                             ///< may name files
  std::map<std::string, std::string> settings;  ///< all that the file says of it, options among it
  std::vector<std::string> options;             ///< the settings that the programs know, in the file's order

  /// `--strategy ddp ...`: its options but those in `except`.
  [[nodiscard]] std::vector<std::string> words(const std::vector<std::string>& except = {}) const;
};

/// The trainings of `stepcast lab validate`, by name (`studies/lab/NAME.yaml`) or path.
///
///     name: "{training}.{world-size}"     of every point; `/` is left out. {key} is a gap for the key's value
///     like: lab                           another from which it takes the keys that it does not write itself
///     points:                             a list of grids: every combination of the values, the first key slowest
///       - {training: vgg, world-size: [2, 4]}
///     every: {compute: replayed}          what a grid says unless it says otherwise; gaps are filled
///     values: {training: {vgg: {model: vgg11-bn-cifar, batch: 8}}}    values that stand for several options
///     parameters: [rate]                  keys that only fill gaps
///
/// All other keys are options.
class LabMatrix {
 public:
  explicit LabMatrix(const std::string& name);
  /// \throws InputError with the line of a value that `values` does not have, or of a gap without a key
  [[nodiscard]] std::vector<LabPoint> points() const;
  /// A key of the file, else of the one that it is like. \throws InputError where both lack it
  [[nodiscard]] YamlNode at(const std::string& key) const;

 private:
  [[nodiscard]] LabPoint point(std::map<std::string, std::string> chosen,
                               std::vector<std::string> keys) const;

  std::vector<YamlNode> files_;  ///< its own, then the one that it is like
};

}  // namespace stepcast

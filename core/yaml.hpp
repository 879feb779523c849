#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "core/units.hpp"

/// Hand-written inputs are YAML. These readers name file, line and key in every error.
namespace stepcast {

/// A node with the file it came from and the keys that lead to it.
class YamlNode {
 public:
  /// Parses a file. \throws InputError with line and column of a syntax error.
  static YamlNode load(const std::string& path);
  /// Parses text; `name` stands for the file in messages.
  static YamlNode parse(const std::string& text, const std::string& name);

  [[nodiscard]] bool has(const std::string& key) const;
  /// The value of `key`. \throws InputError when it is missing.
  [[nodiscard]] YamlNode at(const std::string& key) const;
  [[nodiscard]] std::vector<YamlNode> items() const;  ///< of a sequence; \throws InputError otherwise
  [[nodiscard]] std::vector<std::string> keys() const;

  [[nodiscard]] bool is_map() const { return node_.IsMap(); }
  [[nodiscard]] bool is_sequence() const { return node_.IsSequence(); }
  [[nodiscard]] bool is_scalar() const { return node_.IsScalar(); }

  [[nodiscard]] std::string text() const;
  [[nodiscard]] long long integer() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] Seconds seconds() const;
  [[nodiscard]] Bytes bytes() const;
  [[nodiscard]] BytesPerSecond bytes_per_second() const;
  [[nodiscard]] FlopPerSecond flop_per_second() const;

  /// Refuses keys that are not in `known`, naming file, line, key and the nearest known key.
  void allow_only(const std::vector<std::string>& known) const;

  /// `models/vgg.yaml:12: segments[3].layers[0]: ` + message
  [[noreturn]] void fail(const std::string& message) const;

 private:
  YamlNode(const YAML::Node& node, std::string file, std::string where)
      : node_(node), file_(std::move(file)), where_(std::move(where)) {}
  YAML::Node node_;
  std::string file_;
  std::string where_;
};

}  // namespace stepcast

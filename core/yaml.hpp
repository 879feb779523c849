#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <ranges>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

/// Readers of hand-written YAML inputs, which name file, line and key in every error.
namespace stepcast {

/// Keys of a map, for error messages.
template <class Value>
std::vector<std::string> names_of(const std::map<std::string, Value>& things) {
  const auto names = std::views::keys(things);
  return {names.begin(), names.end()};
}

/// A node with its file and the path of keys to it. Nodes can be copied but not assigned: yaml-cpp would
/// change the document.
class YamlNode {
 public:
  /// Parses a file. \throws InputError with line and column of a syntax error.
  static YamlNode load(const std::string& path);
  /// Parses a file of stepcast's own, such as `models/operators/layers.yaml`.
  static YamlNode shipped(const std::string& path);
  /// Parses text; `name` stands for the file in messages.
  static YamlNode parse(const std::string& text, const std::string& name);

  [[nodiscard]] bool has(const std::string& key) const { return node_.IsMap() && node_[key].IsDefined(); }
  /// The value of `key`. \throws InputError if it is missing.
  [[nodiscard]] YamlNode at(const std::string& key) const;
  [[nodiscard]] std::vector<YamlNode> items() const;  ///< of a sequence; \throws InputError otherwise
  [[nodiscard]] std::vector<std::string> keys() const;
  /// Elements of a list, or the node itself.
  [[nodiscard]] std::vector<YamlNode> one_or_more() const {
    return is_sequence() ? items() : std::vector{*this};
  }
  /// Elements of the list `key`; none without it.
  [[nodiscard]] std::vector<YamlNode> items(const std::string& key) const {
    return has(key) ? at(key).items() : std::vector<YamlNode>{};
  }
  /// The text of `key`, or `otherwise` without it.
  [[nodiscard]] std::string text_or(const std::string& key, const std::string& otherwise) const {
    return has(key) ? at(key).text() : otherwise;
  }
  /// Whether `key` is `yes`.
  [[nodiscard]] bool flag(const std::string& key) const { return has(key) && at(key).boolean(); }

  [[nodiscard]] bool is_map() const { return node_.IsMap(); }
  [[nodiscard]] bool is_sequence() const { return node_.IsSequence(); }
  [[nodiscard]] bool is_scalar() const { return node_.IsScalar(); }

  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool has_lines() const;  ///< a text of several lines, which text() refuses
  [[nodiscard]] long long integer() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] Seconds seconds() const { return parsed(parse_seconds); }
  [[nodiscard]] Bytes bytes() const { return parsed(parse_bytes); }
  [[nodiscard]] BytesPerSecond bytes_per_second() const { return parsed(parse_bytes_per_second); }
  [[nodiscard]] FlopPerSecond flop_per_second() const { return parsed(parse_flop_per_second); }
  [[nodiscard]] Watts watts() const { return parsed(parse_watts); }

  /// The text, which is one of `known`. \throws InputError that names the unknown name of a `what` and the
  /// nearest known one
  [[nodiscard]] std::string one_of(const std::string& what, const std::vector<std::string>& known) const;
  /// The value with this name in `things`.
  template <class Value>
  [[nodiscard]] const Value& named(const std::string& what,
                                   const std::map<std::string, Value>& things) const {
    return things.at(one_of(what, names_of(things)));
  }

  /// Returns the result of `read`, and adds this node's place to its errors.
  template <class Read>
  decltype(auto) placed(Read read) const {
    try {
      return read();
    } catch (const InputError& error) {
      fail(error.what());
    } catch (const UsageError& error) {
      fail(error.what());
    }
  }

  /// The node itself. \throws InputError for a key that is not in `known`, with file, line and the nearest
  /// known key
  const YamlNode& allow_only(const std::vector<std::string>& known) const;

  /// `models/vgg.yaml:12: segments[3].layers[0]: ` + message
  [[noreturn]] void fail(const std::string& message) const;
  template <class First, class... Rest>
  [[noreturn]] void fail(fmt::format_string<First, Rest...> message, First&& first, Rest&&... rest) const {
    fail(fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...));
  }

 private:
  [[noreturn]] void fail_scalar(const std::string& expected) const;
  /// Adds file and line to the errors of a parser of units.
  template <class Value>
  Value parsed(Value parser(std::string_view text, std::string_view what)) const {
    return placed([&] { return parser(text(), "value"); });
  }

  YamlNode(const YAML::Node& node, std::string file, std::string where)
      : node_(node), file_(std::move(file)), where_(std::move(where)) {}
  YAML::Node node_;
  std::string file_;
  std::string where_;
};

}  // namespace stepcast

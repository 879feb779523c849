#include "core/yaml.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/file.hpp"

namespace stepcast {

YamlNode YamlNode::load(const std::string& path) { return parse(read_file(path), path); }

YamlNode YamlNode::parse(const std::string& text, const std::string& name) {
  try {
    return {YAML::Load(text), name, ""};
  } catch (const YAML::Exception& error) {
    throw InputError(name + ":" + std::to_string(error.mark.line + 1) + ":" +
                     std::to_string(error.mark.column + 1) + ": is not valid YAML: " + error.msg);
  }
}

void YamlNode::fail(const std::string& message) const {
  const int line = node_.Mark().line;
  throw InputError(file_ + (line >= 0 ? ":" + std::to_string(line + 1) : "") + ": " +
                   (where_.empty() ? "" : where_ + ": ") + message);
}

bool YamlNode::has(const std::string& key) const { return node_.IsMap() && static_cast<bool>(node_[key]); }

YamlNode YamlNode::at(const std::string& key) const {
  if (!node_.IsMap()) fail("expected keys and values, with '" + key + "' among them");
  if (!node_[key]) fail("key '" + key + "' is missing");
  return {node_[key], file_, where_.empty() ? key : where_ + "." + key};
}

std::vector<YamlNode> YamlNode::items() const {
  if (!node_.IsSequence()) fail("expected a list");
  std::vector<YamlNode> result;
  for (std::size_t i = 0; i < node_.size(); ++i)
    result.push_back({node_[i], file_, where_ + "[" + std::to_string(i) + "]"});
  return result;
}

std::vector<std::string> YamlNode::keys() const {
  if (!node_.IsMap()) fail("expected keys and values");
  std::vector<std::string> result;
  for (const auto& pair : node_) {
    result.push_back(pair.first.as<std::string>());
    if (std::count(result.begin(), result.end(), result.back()) > 1)
      YamlNode(pair.first, file_, where_).fail("key '" + result.back() + "' stands twice");
  }
  return result;
}

std::string YamlNode::text() const {
  if (!node_.IsScalar()) fail("expected a text");
  std::string text = node_.Scalar();
  while (text.ends_with('\n')) text.pop_back();  // of a block
  if (has_control_character(text)) fail("'" + text + "' holds a control character");
  return text;
}

long long YamlNode::integer() const {
  try {
    return node_.as<long long>();
  } catch (const YAML::Exception&) {
    fail("expected a whole number" + (node_.IsScalar() ? ", found '" + node_.Scalar() + "'" : std::string()));
  }
}

double YamlNode::number() const {
  double value = std::nan("");
  const bool is_number = node_.IsScalar() && YAML::convert<double>::decode(node_, value);
  if (!is_number || !(std::abs(value) <= 1e18))
    fail("expected a number of at most 1e18" +
         (node_.IsScalar() ? ", found '" + node_.Scalar() + "'" : std::string()));
  return value;
}

bool YamlNode::boolean() const {
  try {
    return node_.as<bool>();
  } catch (const YAML::Exception&) {
    fail("expected true or false" + (node_.IsScalar() ? ", found '" + node_.Scalar() + "'" : std::string()));
  }
}

namespace {

/// Runs a unit parser and adds file and line to what it complains about.
template <class Parser>
auto with_place(const YamlNode& node, Parser parser) {
  try {
    return parser(node.text(), "value");
  } catch (const InputError& error) {
    node.fail(error.what());
  }
}

}  // namespace

Seconds YamlNode::seconds() const { return with_place(*this, parse_seconds); }
Bytes YamlNode::bytes() const { return with_place(*this, parse_bytes); }
BytesPerSecond YamlNode::bytes_per_second() const { return with_place(*this, parse_bytes_per_second); }
FlopPerSecond YamlNode::flop_per_second() const { return with_place(*this, parse_flop_per_second); }

void YamlNode::allow_only(const std::vector<std::string>& known) const {
  static_cast<void>(keys());  // none stands twice
  for (const auto& pair : node_) {
    const auto key = pair.first.as<std::string>();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    YamlNode(pair.first, file_, where_).fail(unknown_name("key", key, known));
  }
}

}  // namespace stepcast

#include "core/yaml.hpp"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/file.hpp"
#include "core/number.hpp"

namespace stepcast {
namespace {

/// Reads a document without keeping it.
struct Skip final : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}
};

}  // namespace

YamlNode YamlNode::load(const std::string& path) { return parse(read_file(path), path); }

YamlNode YamlNode::shipped(const std::string& path) { return load((home_folder() / path).string()); }

YamlNode YamlNode::parse(const std::string& text, const std::string& name) {
  try {
    YAML::Node document = YAML::Load(text);  // the first document alone; LoadAll may not return
    const bool may_end = document.Style() == YAML::EmitterStyle::Flow ||
                         text.find("\n---") != std::string::npos || text.find("\n...") != std::string::npos;
    std::istringstream input(may_end ? text : "");
    YAML::Parser parser(input);
    Skip skip;
    if (parser.HandleNextDocument(skip) && parser.HandleNextDocument(skip))
      throw InputError("{}: text follows the first YAML document; one document is valid", name);
    return {document, name, ""};
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

YamlNode YamlNode::at(const std::string& key) const {
  if (!node_.IsMap()) fail("expected keys and values that contain '" + key + "'");
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
    if (!pair.first.IsScalar())
      YamlNode(pair.first, file_, where_).fail("a key must be one word, not a list, a map or nothing");
    result.push_back(pair.first.Scalar());
    if (std::ranges::count(result, result.back()) > 1)
      YamlNode(pair.first, file_, where_).fail("key '" + result.back() + "' is repeated");
  }
  return result;
}

bool YamlNode::has_lines() const {
  const std::string text = node_.IsScalar() ? node_.Scalar() : "";
  const std::size_t last = text.find_last_not_of('\n');
  return last != std::string::npos && text.find('\n') < last;
}

std::string YamlNode::text() const {
  if (!node_.IsScalar()) fail("expected a text");
  std::string text = node_.Scalar();
  while (text.ends_with('\n')) text.pop_back();  // of a block scalar
  if (has_control_character(text)) fail("'" + text + "' contains a control character");
  return text;
}

void YamlNode::fail_scalar(const std::string& expected) const {
  fail("expected " + expected + (node_.IsScalar() ? ", found '" + node_.Scalar() + "'" : std::string()));
}

long long YamlNode::integer() const {
  const auto value = node_.IsScalar() ? number_in<long long>(node_.Scalar(), 10) : std::nullopt;
  if (!value) fail_scalar("a whole number");
  return *value;
}

double YamlNode::number() const {
  double value = std::nan("");
  if (!node_.IsScalar() || !YAML::convert<double>::decode(node_, value) || !(std::abs(value) <= 1e18))
    fail_scalar("a number of at most 1e18");
  return value;
}

bool YamlNode::boolean() const {
  bool value = false;
  if (!node_.IsScalar() || !YAML::convert<bool>::decode(node_, value)) fail_scalar("true or false");
  return value;
}

std::string YamlNode::one_of(const std::string& what, const std::vector<std::string>& known) const {
  const std::string name = text();
  if (std::ranges::find(known, name) == known.end()) fail(unknown_name(what, name, known));
  return name;
}

const YamlNode& YamlNode::allow_only(const std::vector<std::string>& known) const {
  static_cast<void>(keys());  // none is repeated
  for (const auto& pair : node_) {
    const std::string& key = pair.first.Scalar();
    if (std::ranges::find(known, key) != known.end()) continue;
    YamlNode(pair.first, file_, where_).fail(unknown_name("key", key, known));
  }
  return *this;
}

}  // namespace stepcast

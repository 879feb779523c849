#include <boost/algorithm/string/replace.hpp>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

/// Keys of an option in a page: texts in which `{key}` is replaced.
struct PageOption {
  const YamlNode node;
  const PageTexts& texts;

  [[nodiscard]] std::string text(const std::string& key) const {
    std::string text = joined(transformed(node.at(key).one_or_more(), &YamlNode::text), "\n");
    for (const auto& [name, value] : texts) boost::replace_all(text, "{" + name + "}", value);
    return text;
  }

  [[nodiscard]] po::value_semantic* semantic() const {
    using Words = std::vector<std::string>;
    if (!node.has("type")) return scalar<std::string>();
    const std::string type = node.at("type").one_of(
        "type", {"flag", "yesno", "int", "unsigned", "double", "words", "multitoken", "composing"});
    if (type == "flag") return po::bool_switch();
    if (type == "yesno")
      return po::value<bool>()->default_value(node.at("default").one_of("default", {"yes", "no"}) == "yes",
                                              text("default"));
    if (type == "int") return scalar<int>();
    if (type == "unsigned") return scalar<unsigned>();
    if (type == "double") return scalar<double>();
    if (type == "words") return po::value<Words>();
    return type == "multitoken" ? po::value<Words>()->multitoken() : po::value<Words>()->composing();
  }

  template <class Value>
  [[nodiscard]] po::value_semantic* scalar() const {
    const auto read = [&](const char* key) {
      if constexpr (std::is_same_v<Value, std::string>) {
        return text(key);
      } else {
        const auto number = number_in<Value>(text(key));
        if (!number) node.at(key).fail("expected a number");
        return *number;
      }
    };
    auto* value = po::value<Value>();
    if (node.has("default"))
      value->default_value(read("default"), text(node.has("shown") ? "shown" : "default"));
    if (node.has("implicit")) value->implicit_value(read("implicit"));
    if (node.has("argument")) value->value_name(text("argument"));
    return value;
  }
};

}  // namespace

const YamlNode& command_page(const std::string& name) {
  static std::map<std::string, YamlNode> pages;
  return cached(pages, name, [&] {
    return YamlNode::shipped("commands/" + name + ".yaml")
        .allow_only({"description", "usage", "group", "positional", "options", "more", "costs", "kernels",
                     "free", "json", "yaml", "kinds", "job_script"});
  });
}

void declare_options(po::options_description& options, const std::string& page, const PageTexts& texts,
                     const std::string& section) {
  for (const auto& [name, entry] : entries_of(command_page(page), section)) {
    if (name.starts_with('+')) {
      PageTexts own;
      for (const std::string& key : entry.keys()) own[key] = entry.at(key).text();
      declare_options(options, name.substr(1), own);
    } else {
      const PageOption option{entry.allow_only({"type", "default", "shown", "implicit", "argument", "help"}),
                              texts};
      options.add_options()(name.c_str(), option.semantic(), option.text("help").c_str());
    }
  }
}

}  // namespace stepcast

#include "sim/strategies/options.hpp"

#include <algorithm>
#include <cctype>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"

namespace stepcast {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  return split(text + separator, separator);
}

std::string unknown_choice(const std::string& what, const std::string& name,
                           const std::vector<std::string>& known) {
  std::string plain;  // zero++, zeropp and ZeRO_PP are one name
  for (const unsigned char c : name)
    if (std::isalnum(c) != 0 || c == '+') plain += c == '+' ? 'p' : static_cast<char>(std::tolower(c));
  for (const YamlNode& one : YamlNode::shipped("commands/not_modelled.yaml").items())
    for (const YamlNode& part : one.items("names"))
      if (plain.find(part.text()) != std::string::npos)
        return fmt::format("{} '{}': {} is not modelled; nearest is {}", what, name, one.at("what").text(),
                           one.at("nearest").text());
  return unknown_name(what, name, known);
}

void require_one_of(const std::string& option, const std::string& value,
                    const std::vector<std::string>& known) {
  if (!contains(known, value)) throw UsageError("--{}: {}", option, unknown_choice(option, value, known));
}

std::optional<int> positive_number(const std::string& text) {
  const auto number = number_in<int>(text);
  return number && *number >= 1 && text.size() <= 6 ? number : std::nullopt;
}

std::vector<std::string> divisors(int number) {
  std::vector<std::string> all;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) all.push_back(std::to_string(i));
  return all;
}

std::string StrategyOption::canonical(const std::string& value) const {
  if (kind == OptionKind::kBytes) {
    const Bytes size = parsed_option("", [&] { return parse_bytes(value, "--" + name); });
    if (size.count() < least || size.count() > most)
      throw UsageError("--{} must be from {} to {}, got {}", name, to_text(Bytes(least)),
                       to_text(Bytes(most)), value);
    return exact_text(size);
  }
  if (kind == OptionKind::kNumber)
    return std::to_string(whole_number(name, value, static_cast<int>(least), static_cast<int>(most)));
  const std::vector<std::string> known =
      kind == OptionKind::kFlag ? std::vector<std::string>{"yes", "no"} : choices;
  if (!known.empty()) require_one_of(name, value, known);
  return value;
}

StrategyOptions::StrategyOptions(std::vector<StrategyOption> declared, const OptionTexts& given)
    : declared_(std::move(declared)), given_(given) {
  for (const StrategyOption& option : declared_) {
    const auto own = given.find(option.name);
    const auto other = given.find(option.follows);
    const auto& source = own != given.end() ? own : other;
    values_[option.name] = source != given.end() ? option.canonical(source->second) : option.standard;
  }
}

int StrategyOptions::number(const std::string& name) const { return std::stoi(text(name)); }

Bytes StrategyOptions::bytes(const std::string& name) const { return parse_bytes(text(name), "--" + name); }

void StrategyOptions::drop(const std::vector<std::string>& names) {
  for (const std::string& name : names) values_.erase(name);
}

void StrategyOptions::refuse(const std::vector<std::string>& names, const std::string& reason) {
  for (const StrategyOption& option : declared_)
    if (contains(names, option.name) && given(option.name) && text(option.name) != option.standard)
      throw UsageError("--{} has no effect {}", option.name, reason);
  drop(names);
}

std::vector<std::string> StrategyOptions::changed() const {
  std::vector<std::string> texts;
  for (const StrategyOption& option : declared_) {
    const auto value = values_.find(option.name);
    if (value == values_.end()) continue;
    const auto other = std::ranges::find_if(declared_, [&](const StrategyOption& candidate) {
      return candidate.name == option.follows && values_.contains(candidate.name) &&
             values_.at(candidate.name) != candidate.standard;
    });
    if (value->second == (other == declared_.end() ? option.standard : values_.at(other->name))) continue;
    texts.push_back(value->second == "yes" ? option.name : option.name + " " + value->second);
  }
  return texts;
}

}  // namespace stepcast

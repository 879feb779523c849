#include "plots/cases.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace stepcast {

std::vector<Case> complete_cases(const FigureInput& input) {
  std::vector<Case> cases = group_cases(input.results);
  std::erase_if(cases, [](const Case& one) { return one.launches.empty() || one.prediction == nullptr; });
  if (cases.empty())
    throw InputError("nothing to draw: give predicted and measured result files of the same configuration");
  return cases;
}

std::vector<ModelCases> by_model(const std::vector<Case>& cases) {
  std::vector<ModelCases> models;
  for (const Case& one : cases) {
    const Configuration& c = one.configuration;
    const std::string title = c.model + ", batch " + std::to_string(c.batch) + " per rank, " +
                              std::to_string(c.threads) + (c.threads == 1 ? " thread" : " threads");
    auto found =
        std::find_if(models.begin(), models.end(), [&](const ModelCases& m) { return m.title == title; });
    if (found == models.end()) found = models.insert(models.end(), ModelCases{title, {}});
    found->cases.push_back(&one);
  }
  return models;
}

std::string case_label(const Case& one) {
  const int ranks = one.configuration.world_size;
  return one.configuration.strategy + "\n" + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
}

namespace {

constexpr const char* kEllipsis = "\u2026";

/// These say what they are by themselves.
bool speaks_for_itself(const std::string& option) {
  return option == "schedule" || option == "split" || option == "sharding" || option == "mesh";
}

std::string option_text(const std::string& option, const std::string& value) {
  if (speaks_for_itself(option)) return value;
  if (option == "virtual-stages") return value + " virtual stages";
  return value == "yes" ? option : option + " " + value;
}

}  // namespace

std::string options_text(const std::map<std::string, std::string>& options, std::size_t characters) {
  std::vector<std::string> names = {"schedule", "split", "virtual-stages", "sharding", "wrap", "mesh"};
  std::erase_if(names, [&](const std::string& name) { return options.count(name) == 0; });
  for (const auto& [name, value] : options)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::string text;
  for (const std::string& name : names) {
    const std::string next = (text.empty() ? "" : ", ") + option_text(name, options.at(name));
    if (text.size() + next.size() > characters)
      return text.empty() ? shortened(next, characters) : text + ", " + kEllipsis;
    text += next;
  }
  return text;
}

std::string shortened(std::string text, std::size_t characters) {
  if (text.size() <= characters) return text;
  return text.substr(0, characters - 1) + kEllipsis;
}

}  // namespace stepcast

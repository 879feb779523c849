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

}  // namespace stepcast

#include "plots/cases.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {

std::vector<Case> complete_cases(const FigureInput& input) {
  std::vector<Case> cases = group_cases(input.results);
  std::erase_if(cases, [](const Case& one) { return !one.has_error(); });
  if (cases.empty())
    throw InputError("nothing to draw: give predicted and measured result files of the same configuration");
  return cases;
}

std::string model_title(const Configuration& c, const std::string& batch_of) {
  return c.model + ", batch " + std::to_string(c.batch) + " " + batch_of + ", " +
         counted(static_cast<std::size_t>(c.threads), "thread");
}

std::string case_label(const Case& one) {
  std::string label = label_of(one.configuration);
  for (std::size_t at = 0; (at = label.find(", ", at)) != std::string::npos;) label.replace(at, 2, "\n");
  return label + "\n" + counted(static_cast<std::size_t>(one.configuration.world_size), "rank");
}

int room_for_labels(const std::vector<Case>& cases) {
  constexpr int kLine = 14;
  std::ptrdiff_t most = 1;  // line breaks
  for (const Case& one : cases) {
    const std::string label = case_label(one);
    most = std::max(most, std::count(label.begin(), label.end(), '\n'));
  }
  return kLine * static_cast<int>(most - 1);
}

}  // namespace stepcast

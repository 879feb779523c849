#include "plots/cases.hpp"

#include <algorithm>
#include <regex>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {

std::string model_title(const Configuration& c, const std::string& batch_of) {
  return fmt::format("{}, batch {} {}, {}", c.model, c.batch, batch_of, counted(c.threads, "thread"));
}

std::string case_label(const Case& one) {
  return std::regex_replace(label_of(one.configuration), std::regex(", "), "\n") + "\n" +
         counted(one.configuration.world_size, "rank");
}

Drawing draw_by_model(style::Sheet sheet, const FigureInput& input,
                      style::Panel (*panel_of)(const std::string&, const std::vector<const Case*>&)) {
  const std::vector<Case> cases = filtered(group_cases(input.results), &Case::has_error);
  if (cases.empty())
    throw InputError("nothing to draw: give predicted and measured result files of the same configuration");
  constexpr int kLine = 14;   // points
  std::ptrdiff_t breaks = 1;  // of the longest label; panels have room for one
  for (const Case& one : cases) breaks = std::max(breaks, std::ranges::count(case_label(one), '\n'));
  for (const auto& [title, group] :
       grouped(cases, [](const Case& one) { return model_title(one.configuration); }))
    sheet.panels.push_back(panel_of(title, group));
  sheet.make_room(kLine * static_cast<int>(breaks - 1), 0);
  return sheet.drawing();
}

}  // namespace stepcast

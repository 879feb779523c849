#include "plots/cases.hpp"

#include <algorithm>
#include <cmath>

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

const LabReport& lab_of(const FigureInput& input) {
  if (input.labs.size() != 1 || input.labs.front().cases.empty())
    throw InputError("nothing to draw: give one file that 'stepcast lab validate' wrote (" +
                     std::string(kLabSchema) + ")");
  return input.labs.front();
}

std::string compute_look(const std::string& compute, std::string_view colour) {
  return style::fill("with points {} ps 1 lc rgb {q}",
                     {compute == "replayed" ? "pt 7" : "pt 6 lw 1.6", colour});
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

std::size_t line_block(style::Panel& panel, const std::string& name, std::vector<LinePoint> points) {
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  std::vector<std::string> rows;
  const auto known = [](const auto& value, double of) { return value ? of : std::nan(""); };
  for (const LinePoint& point : points) {
    const Estimate measured = point.measured.value_or(Estimate{});
    rows.push_back(style::row({point.x, known(point.predicted, point.predicted.value_or(0.0)),
                               known(point.measured, measured.value), known(point.measured, measured.low),
                               known(point.measured, measured.high)}));
  }
  return panel.block(name + ": x predicted measured low high", rows);
}

}  // namespace stepcast

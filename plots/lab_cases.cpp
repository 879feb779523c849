#include "plots/lab_cases.hpp"

#include <cmath>

#include "plots/style.hpp"
#include "sim/core/error.hpp"

namespace stepcast {

const LabReport& lab_of(const FigureInput& input) {
  if (input.labs.size() != 1 || input.labs.front().cases.empty())
    throw InputError("nothing to draw: give one file that 'stepcast lab validate' wrote (" +
                     std::string(kLabSchema) + ")");
  return input.labs.front();
}

namespace {

std::vector<double> multiples(const std::vector<double>& digits, double low, double high) {
  std::vector<double> values;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int power = first; power <= last; ++power)
    for (const double digit : digits) {
      const double value = digit * std::pow(10.0, power);
      if (value >= low && value <= high) values.push_back(value);
    }
  return values;
}

}  // namespace

std::string log_tics(double low, double high) {
  constexpr std::size_t kFewest = 4;
  const std::vector<std::vector<double>> finer = {{1.0, 2.0, 3.0, 5.0},
                                                  {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0},
                                                  {1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}};
  std::vector<double> values = multiples({1.0, 2.0, 5.0}, low, high);
  for (auto digits = finer.begin(); digits != finer.end() && values.size() < kFewest; ++digits)
    values = multiples(*digits, low, high);
  std::string tics;
  for (const double value : values)
    tics += (tics.empty() ? "" : ", ") + style::quote(style::number(value)) + " " + style::number(value);
  return "(" + tics + ")";
}

std::string empty_row(std::size_t columns) {
  std::string row = "NaN";
  for (std::size_t i = 1; i < columns; ++i) row += " NaN";
  return row + "\n";
}

}  // namespace stepcast

#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Summary of forecast errors: the one that every comparison of forecasts with measurements prints.
namespace stepcast {

/// Error of one forecast f of a measured m.
struct ForecastError {
  double relative = 0.0;  ///< f / m - 1
  std::string name{};     ///< of the row; may be empty
  std::string group{};    ///< rows with one group are summarised together; may be empty
};

/// Statistics of absolute errors. The 90th percentile interpolates between rows. All 0 without rows.
struct ErrorStatistics {
  double mean = 0.0, median = 0.0, p90 = 0.0, worst = 0.0;
};

struct Errors {
  std::size_t count = 0;
  double bias = 0.0;           ///< mean of f / m - 1
  ErrorStatistics relative{};  ///< of |f / m - 1|
  ErrorStatistics log{};       ///< of |ln(f / m)|: a factor of two too slow and one too fast count alike
  ForecastError worst_row{};   ///< the row with the largest |f / m - 1|

  /// exp(mean |ln(f / m)|) - 1
  [[nodiscard]] double geometric_mean() const;
};

Errors summary_of(const std::vector<ForecastError>& rows);

/// Summaries by group, in the order in which groups appear.
std::vector<std::pair<std::string, Errors>> errors_by_group(const std::vector<ForecastError>& rows);

/// A table for people: a row per group, and one of all rows. \param groups heading of their names
std::string errors_table(const std::string& groups, const std::vector<ForecastError>& rows);

/// `+1.4 %`; `-` if it is unknown.
std::string error_text(const std::optional<double>& error);

/// `count`, and with rows `<statistic>_absolute_relative_error`, `bias`, `mean_absolute_log_error`,
/// `worst_case`.
nlohmann::json errors_json(const Errors& errors);

}  // namespace stepcast

#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/evidence/errors.hpp"

/// The accuracy file studies/measured/accuracy.yaml: errors of every measured set, which a test compares with
/// today's and from which the tables of README and docs are generated. Blind scores are in blind.yaml beside
/// it.
namespace stepcast {

/// Errors of one set. Percentages by key: `log_mean`, `log_median` and `log_p90` of |ln(f/m)|; `mean`,
/// `median`, `p90` and `worst` of |f/m - 1|; `defaults` and `defaults_p90`, the same with nothing fitted, and
/// its median `on h100-sxm` and other shipped devices with at least five rows; medians of the baselines
/// `nearest_neighbour` and `constant_throughput`; the median error of `memory`. Keys without rows are absent.
struct SetAccuracy {
  std::string set{}, title{};
  std::size_t rows = 0, forecast = 0;
  std::map<std::string, double> percent{};
  /// `89 of 99`: groups of plans whose predicted best is within 3 % of the best; or empty.
  std::string ranking{};

  void add(const Errors& errors);
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SetAccuracy, set, title, rows, forecast, percent, ranking)

/// \throws InputError that names file, line, key and valid keys
std::vector<SetAccuracy> read_accuracy(const std::string& path);
std::string accuracy_yaml(const std::vector<SetAccuracy>& sets);

/// Differences from the file in either direction: other numbers of rows, and percentages that moved by more
/// than 0.3 points in sets of 100 rows and more, or 1.0 point in smaller ones. One line each.
std::vector<std::string> differences(const std::vector<SetAccuracy>& today,
                                     const std::vector<SetAccuracy>& file);

/// A table for people, one line per set.
std::string accuracy_text(const std::vector<SetAccuracy>& sets);

/// `text` with every generated table replaced: what stands between `<!-- NAME:begin -->` and `<!-- NAME:end
/// -->` becomes the Markdown table NAME. `accuracy` lists the known rows, `known-and-blind` adds the blind
/// scores.
/// \param blind path of blind.yaml \throws InputError if `text` has no table, or a table has no end
std::string with_tables(const std::string& text, const std::string& name,
                        const std::vector<SetAccuracy>& sets, const std::string& blind);

}  // namespace stepcast

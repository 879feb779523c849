#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// Published measurements of distributed training: what others measured, row by row, and which rows a
/// prediction may use.
namespace stepcast {

inline constexpr const char* kPublishedSchema = "stepcast.published/1";

/// By how much of their median step times of ranks may miss it and still agree with it.
inline constexpr double kRanksAgree = 0.05;

/// One row: a strategy at a size, with what was measured there.
// NOLINTNEXTLINE(bugprone-exception-escape): moving a json value throws nothing
struct PublishedRow {
  nlohmann::json facts;  ///< keys and values as they stand in the file
  std::string where;     ///< `published.json: case 'x': rows[2]`
  std::string strategy;  ///< first word: `fsdp`; or the method, where no strategy is meant
  int world_size = 1;
  bool fit = false;       ///< a prediction may use it; else it is only compared with
  bool withheld = false;  ///< its values are not public

  /// A value, or the mean of several; nothing where the row has none. \pre the key's values are numbers
  [[nodiscard]] std::optional<double> number(const std::string& key) const;
  /// The same, but of three step times or more the mean of those that agree (`kRanksAgree`): the ranks of a
  /// synchronous run take equally long, and one that says otherwise has timed something else.
  [[nodiscard]] std::optional<double> measured(const std::string& key) const;
  /// Numbers of the ranks that `measured` leaves out.
  [[nodiscard]] std::vector<int> ranks_left_out(const std::string& key) const;
  [[nodiscard]] std::string text(const std::string& key, const std::string& fallback) const;
  /// \throws InputError that names file, case and row
  [[noreturn]] void fail(const std::string& message) const;
};

// NOLINTNEXTLINE(bugprone-exception-escape): as above
struct PublishedCase {
  std::string id;
  std::string like;  ///< the shipped case whose model of the experiment it takes; its own id by default
  std::string where;
  nlohmann::json facts;  ///< without rows
  std::vector<PublishedRow> rows;

  [[nodiscard]] std::optional<double> number(const std::string& key) const;
  [[nodiscard]] std::string text(const std::string& key, const std::string& fallback) const;
  [[noreturn]] void fail(const std::string& message) const;
};

/// Reads a file of cases:
///
///     {"schema": "stepcast.published/1", "note": "...",
///      "cases": [{"id": "mine", "like": "bert-base-pipeline-h100x4", "model": "bert-base",
///                 "rows": [{"strategy": "pipeline", "world_size": 2, "split": "even",
///                           "throughput_samples_per_s": 748.5, "role": "fit"},
///                          {"strategy": "pipeline", "world_size": 4, "split": "6-2-2-2",
///                           "throughput_samples_per_s": null, "role": "predict", "withheld": true}]}]}
///
/// \throws InputError that names file, key, value and what would be valid
std::vector<PublishedCase> read_published(const std::string& path);

/// The shipped cases, `calibration/data/published.json`, and after them those of `more` ("": none); a case of
/// `more` with the id of a shipped one takes its place.
std::vector<PublishedCase> load_published(const std::string& more);

/// Path of the shipped file.
std::string published_path();

}  // namespace stepcast

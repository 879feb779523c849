#include "sim/validation/published.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

using nlohmann::json;

/// What a key's value may be.
enum class ValueKind : std::uint8_t {
  kText,
  kFlag,
  kCount,
  kAmount
};  // an amount: a number, several, or null
using KnownKey = std::pair<const char*, ValueKind>;

constexpr std::array kCaseKeys{"id",
                               "like",
                               "source",
                               "hardware",
                               "model",
                               "dataset",
                               "global_batch",
                               "batch_per_rank_distributed",
                               "dtype",
                               "optimizer",
                               "epochs",
                               "iterations_timed",
                               "seeds",
                               "batch_per_rank",
                               "hidden_layers",
                               "rows_in_dataset",
                               "work",
                               "gradient_sync",
                               "profile",
                               "breakdown_single_s",
                               "inferred",
                               "inconsistent",
                               "qualitative",
                               "kernel_times_us_one_gpu",
                               "all_reduce_kernel_us",
                               "profile_us",
                               "rows"};

constexpr std::array<KnownKey, 29> kRowKeys{{{"strategy", ValueKind::kText},
                                             {"method", ValueKind::kText},
                                             {"world_size", ValueKind::kCount},
                                             {"batch", ValueKind::kCount},
                                             {"cores", ValueKind::kCount},
                                             {"split", ValueKind::kText},
                                             {"granularity", ValueKind::kText},
                                             {"comment", ValueKind::kText},
                                             {"role", ValueKind::kText},
                                             {"withheld", ValueKind::kFlag},
                                             {"step_time_s", ValueKind::kAmount},
                                             {"throughput_samples_per_s", ValueKind::kAmount},
                                             {"stddev", ValueKind::kAmount},
                                             {"mean_peak_memory_mb", ValueKind::kAmount},
                                             {"peak_memory_mb_per_rank", ValueKind::kAmount},
                                             {"epoch_time_s", ValueKind::kAmount},
                                             {"epoch_times_s", ValueKind::kAmount},
                                             {"iterations", ValueKind::kAmount},
                                             {"iterations_per_epoch", ValueKind::kAmount},
                                             {"mean_iteration_s", ValueKind::kAmount},
                                             {"speedup", ValueKind::kAmount},
                                             {"efficiency", ValueKind::kAmount},
                                             {"total_time_s", ValueKind::kAmount},
                                             {"total_time_s_in_chart", ValueKind::kAmount},
                                             {"time_s", ValueKind::kAmount},
                                             {"compute_time_s", ValueKind::kAmount},
                                             {"communication_time_s", ValueKind::kAmount},
                                             {"collective_calls_per_epoch", ValueKind::kAmount},
                                             {"compute_to_communication", ValueKind::kAmount}}};

[[noreturn]] void fail_at(const std::string& where, const std::string& message) {
  throw InputError(where + ": " + message);
}

bool is_amount(const json& value) {
  const auto is_number = [](const json& one) {
    return one.is_number() && std::isfinite(one.get<double>()) && one.get<double>() >= 0.0;
  };
  if (value.is_array()) return !value.empty() && std::all_of(value.begin(), value.end(), is_number);
  return value.is_null() || is_number(value);
}

void check_value(const std::string& where, const std::string& key, const json& value, ValueKind kind) {
  const auto refuse = [&](const std::string& valid) {
    fail_at(where, "key '" + key + "': found " + value.dump() + ", expected " + valid);
  };
  switch (kind) {
    case ValueKind::kText:
      if (!value.is_string() || value.get<std::string>().empty()) refuse("a text");
      break;
    case ValueKind::kFlag:
      if (!value.is_boolean()) refuse("true or false");
      break;
    case ValueKind::kCount:
      if (!value.is_number_integer() || value.get<long long>() < 1 || value.get<long long>() > 1'000'000)
        refuse("a whole number from 1 to 1000000");
      break;
    case ValueKind::kAmount:
      if (!is_amount(value))
        refuse("a number of at least 0, a list of them, or null where nothing was measured");
      break;
  }
}

PublishedRow read_row(const json& node, const std::string& where) {
  if (!node.is_object()) fail_at(where, "found " + node.dump() + ", expected an object");
  std::vector<std::string> known;
  known.reserve(kRowKeys.size());
  for (const auto& [key, kind] : kRowKeys) known.emplace_back(key);
  for (const auto& [key, value] : node.items()) {
    const auto* const found = std::find_if(kRowKeys.begin(), kRowKeys.end(),
                                           [&name = key](const KnownKey& one) { return name == one.first; });
    if (found == kRowKeys.end()) fail_at(where, unknown_name("key", key, known));
    check_value(where, key, value, found->second);
  }
  if (node.contains("strategy") == node.contains("method"))
    fail_at(where, "expected either key 'strategy' or key 'method'");
  if (!node.contains("role")) fail_at(where, "key 'role' is missing; valid are fit, predict");
  const auto role = node["role"].get<std::string>();
  if (role != "fit" && role != "predict")
    fail_at(where, "key 'role': " + unknown_name("role", role, {"fit", "predict"}));
  PublishedRow row;
  row.facts = node;
  row.where = where;
  const std::string named = row.text("strategy", row.text("method", ""));
  row.strategy = named.substr(0, named.find_first_of(" ,"));
  row.world_size = node.value("world_size", 1);
  row.fit = role == "fit";
  row.withheld = node.value("withheld", false);
  if (row.fit && row.withheld)
    fail_at(where, "key 'withheld': found true in a row of role fit, expected false");
  return row;
}

PublishedCase read_case(const json& node, const std::string& file, std::size_t index) {
  const std::string place = file + ": cases[" + std::to_string(index) + "]";
  if (!node.is_object()) fail_at(place, "found " + node.dump() + ", expected an object");
  for (const char* key : {"id", "rows"})
    if (!node.contains(key)) fail_at(place, std::string("key '") + key + "' is missing");
  check_value(place, "id", node["id"], ValueKind::kText);
  PublishedCase result;
  result.id = node["id"].get<std::string>();
  result.where = file + ": case '" + result.id + "'";
  for (const auto& [key, value] : node.items())
    if (std::find(kCaseKeys.begin(), kCaseKeys.end(), key) == kCaseKeys.end())
      fail_at(result.where, unknown_name("key", key, {kCaseKeys.begin(), kCaseKeys.end()}));
  for (const char* key : {"like", "model", "dtype"})
    if (node.contains(key)) check_value(result.where, key, node[key], ValueKind::kText);
  for (const char* key : {"global_batch", "hidden_layers"})
    if (node.contains(key)) check_value(result.where, key, node[key], ValueKind::kCount);
  result.like = node.value("like", result.id);
  if (!node["rows"].is_array() || node["rows"].empty())
    fail_at(result.where, "key 'rows': found " + node["rows"].dump() + ", expected a list of rows");
  for (std::size_t i = 0; i < node["rows"].size(); ++i)
    result.rows.push_back(read_row(node["rows"][i], result.where + ": rows[" + std::to_string(i) + "]"));
  result.facts = node;
  result.facts.erase("rows");
  return result;
}

std::optional<double> number_in(const json& facts, const std::string& key) {
  if (!facts.contains(key) || facts[key].is_null()) return std::nullopt;
  if (!facts[key].is_array()) return facts[key].get<double>();
  double sum = 0.0;
  for (const json& value : facts[key]) sum += value.get<double>();
  return sum / static_cast<double>(facts[key].size());
}

}  // namespace

std::optional<double> PublishedRow::number(const std::string& key) const { return number_in(facts, key); }

std::vector<int> PublishedRow::ranks_left_out(const std::string& key) const {
  constexpr std::size_t kFewest = 3;  // of two that differ, either may be right
  if (key != "step_time_s" || !facts.contains(key) || !facts[key].is_array() || facts[key].size() < kFewest)
    return {};
  const auto values = facts[key].get<std::vector<double>>();
  const double middle = median(values);
  std::vector<int> ranks;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::abs(values[i] - middle) > kRanksAgree * middle) ranks.push_back(static_cast<int>(i));
  return ranks.size() < values.size() ? ranks : std::vector<int>{};
}

std::optional<double> PublishedRow::measured(const std::string& key) const {
  const std::vector<int> left_out = ranks_left_out(key);
  if (left_out.empty()) return number(key);
  double sum = 0.0;
  int count = 0;
  for (std::size_t i = 0; i < facts[key].size(); ++i) {
    if (std::find(left_out.begin(), left_out.end(), static_cast<int>(i)) != left_out.end()) continue;
    sum += facts[key][i].get<double>();
    ++count;
  }
  return sum / count;
}

std::string PublishedRow::text(const std::string& key, const std::string& fallback) const {
  return facts.value(key, fallback);
}

void PublishedRow::fail(const std::string& message) const { fail_at(where, message); }

std::optional<double> PublishedCase::number(const std::string& key) const { return number_in(facts, key); }

std::string PublishedCase::text(const std::string& key, const std::string& fallback) const {
  return facts.value(key, fallback);
}

void PublishedCase::fail(const std::string& message) const { fail_at(where, message); }

std::vector<PublishedCase> read_published(const std::string& path) {
  const json file = parse_json_file(path);
  if (!file.is_object() || !file.contains("cases") || !file["cases"].is_array())
    throw InputError(
        path +
        R"(: key 'cases' is missing or no list; expected {"cases": [{"id": "...", "rows": [...]}, ...]})");
  for (const auto& [key, value] : file.items())
    if (key != "cases" && key != "schema" && key != "note")
      throw InputError(path + ": " + unknown_name("key", key, {"cases", "note", "schema"}));
  if (file.value("schema", kPublishedSchema) != std::string(kPublishedSchema))
    throw InputError(path + ": key 'schema': found " + file["schema"].dump() + ", expected \"" +
                     kPublishedSchema + "\"");
  std::vector<PublishedCase> cases;
  for (std::size_t i = 0; i < file["cases"].size(); ++i) {
    cases.push_back(read_case(file["cases"][i], path, i));
    const std::string& id = cases.back().id;
    if (std::any_of(cases.begin(), cases.end() - 1, [&id](const auto& earlier) { return earlier.id == id; }))
      cases.back().fail("key 'id': two cases have it; expected different ones");
  }
  return cases;
}

std::string published_path() { return (home_folder() / "calibration" / "data" / "published.json").string(); }

std::vector<PublishedCase> load_published(const std::string& more) {
  std::vector<PublishedCase> cases = read_published(published_path());
  if (more.empty()) return cases;
  for (PublishedCase& one : read_published(more)) {
    const auto same = std::find_if(cases.begin(), cases.end(),
                                   [&one](const auto& shipped) { return shipped.id == one.id; });
    if (same == cases.end())
      cases.push_back(std::move(one));
    else
      *same = std::move(one);
  }
  return cases;
}

}  // namespace stepcast

#include "sim/evidence/rows.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ranges>
#include <set>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/statistics.hpp"

namespace stepcast {
namespace {

constexpr const char* kMeasured = "studies/measured";
constexpr const char* kPublished = "studies/published";

/// Whether `text` is one name in braces that has no value: a column that is empty in this row.
bool is_empty_column(const std::string& text, const Assignment& names) {
  if (!text.starts_with('{') || text.find('}') != text.size() - 1) return false;
  const std::string name = text.substr(1, text.size() - 2);
  return name.find_first_of("*/+") == std::string::npos && names.find(name) == nullptr;
}

/// Values of everything that an option of the row may contain.
Assignment names_for(const RowSet& set, const Row& row, const Assignment& options, const Assignment& fitted) {
  Assignment names = set.table ? fitted : row.values;
  names.add_missing(set.table ? row.values : fitted);
  names.add_missing({{"shipped", home_folder().string()}});
  for (const auto& [name, value] : options.values())
    if (value.find('{') == std::string::npos && names.find(name) == nullptr) names.set(name, value);
  return names;
}

}  // namespace

std::optional<double> Row::number(const std::string& quantity) const {
  const auto found = measured.find(quantity);
  return found == measured.end() ? std::nullopt : std::optional(mean(found->second));
}

std::vector<int> Row::ranks_left_out(const std::string& quantity) const {
  constexpr std::size_t kFewest = 3;  // of two that differ, either may be right
  const auto found = measured.find(quantity);
  if (quantity != "step_time_s" || found == measured.end() || found->second.size() < kFewest) return {};
  const double middle = median(found->second);
  std::vector<int> ranks;
  for (std::size_t i = 0; i < found->second.size(); ++i)
    if (std::abs(found->second[i] - middle) > kRanksAgree * middle) ranks.push_back(static_cast<int>(i));
  return ranks.size() < found->second.size() ? ranks : std::vector<int>{};
}

std::optional<double> Row::agreed(const std::string& quantity) const {
  auto numbers = optional_at(measured, quantity);
  const std::vector<int> others = ranks_left_out(quantity);
  for (const int rank : others | std::views::reverse) numbers->erase(numbers->begin() + rank);
  return numbers ? std::optional(mean(*numbers)) : std::nullopt;
}

std::string Row::leading() const {
  for (const RowQuantity& quantity : kRowQuantities)
    if (quantity.leads && measured.contains(quantity.name)) return quantity.name;
  return "step_time_s";
}

const std::string* RowSet::option(const Row& row, const std::string& name) const {
  const std::string* own = row.options.find(name);
  return own != nullptr ? own : predict.find(name);
}

std::vector<std::string> measured_ids() {
  return filtered(resource_names(kMeasured, ".yaml"),
                  [](const std::string& id) { return id != "accuracy" && id != "blind"; });
}

std::string measured_path(const std::string& id) { return find_resource(kMeasured, id, ".yaml").string(); }

std::vector<RowSet> load_published(const std::string& more) {
  std::vector<RowSet> sets;
  for (const std::string& name : resource_names(kPublished, ".yaml"))
    sets.push_back(read_rows((home_folder() / kPublished / (name + ".yaml")).string()));
  if (more.empty()) return sets;
  RowSet one = read_rows(more);
  auto same = std::ranges::find(sets, one.id(), &RowSet::id);
  if (same == sets.end()) same = sets.emplace(sets.end());
  *same = std::move(one);
  return sets;
}

std::vector<std::string> words_of(const RowSet& set, const Row& row, const Assignment& fitted) {
  Assignment options = row.options;
  options.add_missing(set.predict);
  Assignment names = names_for(set, row, options, fitted);
  const bool as_shipped = !set.free.empty() && fitted.values().empty();
  if (as_shipped)
    for (const FreeParameter& one : set.free) names.set(one.name, "unset");
  std::vector<std::string> words;
  for (const auto& [option, text] : options.values()) {
    if (set.table && is_empty_column(text, names)) continue;
    const std::string where = fmt::format("{}: option '{}'", row.where, option);
    Expansion filled = of_file(where, [&, &one = text] { return expand(one, names); });
    if (!filled.problem.empty()) throw InputError("{}: {}", where, filled.problem);
    if (option == "device" && as_shipped) filled.text = filled.text.substr(0, filled.text.find(':'));
    if (filled.text.empty() || filled.text == "unset") continue;  // unset: other than the set's other rows
    words.push_back("--" + option);
    const auto beside = std::filesystem::path(set.path).parent_path() / filled.text;
    if (option == "trace" && std::filesystem::exists(beside)) filled.text = beside.string();
    if (filled.text != "on") words.push_back(filled.text);  // a switch has no value
  }
  // Nothing is drawn, and if steps drain the first takes as long as any other.
  if (!set.table) words.insert(words.end(), {"--steps", "1", "--warmup", "0", "--resample", "no"});
  return words;
}

}  // namespace stepcast

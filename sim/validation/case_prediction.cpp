#include "sim/validation/case_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/error.hpp"

namespace stepcast {
namespace {

/// Smallest and largest value per rank over all candidates.
void widen(std::map<std::string, PredictedValue>& row, const RowValues& values) {
  for (const auto& [key, numbers] : values) {
    PredictedValue& range = row.at(key);
    for (std::size_t i = 0; i < std::min(numbers.size(), range.low.size()); ++i) {
      range.low[i] = std::min(range.low[i], numbers[i]);
      range.high[i] = std::max(range.high[i], numbers[i]);
    }
  }
}

using RowPrediction = std::map<std::string, PredictedValue>;

/// The first candidate's values, and how far the others are from them.
std::vector<RowPrediction> ranges_of(const std::vector<const Candidate*>& candidates) {
  std::vector<RowPrediction> rows(candidates.front()->rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const auto& [key, values] : candidates.front()->rows[i]) rows[i][key] = {values, values, values};
    for (const Candidate* candidate : candidates) widen(rows[i], candidate->rows[i]);
  }
  return rows;
}

/// `6-2-2-2 748.5 to 752.1 samples/s, step 0.04 s, mean peak 5210 MB`, `ddp x4 28.1 to 34.0 s (epoch_time_s)`
std::string row_summary(const PublishedRow& row, const RowPrediction& values) {
  std::string name = row.text("split", row_name(row));
  name = name.substr(0, name.find(" (")) + " ";
  const auto throughput = values.find("throughput_samples_per_s");
  const std::string leading = leading_quantity(row);
  std::string text;
  if (throughput != values.end())
    text = name + range_text(throughput->second) + " samples/s, step " +
           range_text(values.at("step_time_s")) + " s";
  else if (values.contains(leading))
    text = name + range_text(values.at(leading)) + " s (" + leading + ")";
  const auto memory = values.find("mean_peak_memory_mb");
  return memory == values.end() ? text : text + ", mean peak " + range_text(memory->second) + " MB";
}

/// What the candidates with each value of one choice predict.
std::string effect_of(const PublishedCase& published, const std::vector<const Candidate*>& candidates,
                      std::size_t choice) {
  std::vector<std::string> seen;
  std::string text = "unidentified: " + candidates.front()->choice[choice].first;
  for (const Candidate* first : candidates) {
    const std::string& value = first->choice[choice].second;
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
    std::vector<const Candidate*> with;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(with),
                 [&](const Candidate* one) { return one->choice[choice].second == value; });
    text += "; with " + value + ": " + summary(published, with);
  }
  return seen.size() > 1 ? text : "";
}

/// `, of which 3 take the source's chart (204.2 s) for ddp x2`; "" where all reproduce the fit rows.
std::string other_figures(const std::vector<Candidate>& candidates) {
  std::map<std::string, int> sets;
  for (const Candidate& candidate : candidates)
    if (!candidate.takes.empty()) ++sets[candidate.takes];
  std::string text;
  for (const auto& [figure, count] : sets)
    text += ", of which " + std::to_string(count) + (count == 1 ? " takes " : " take ") + figure;
  return text;
}

}  // namespace

Registry<CasePredictor>& case_predictors() {
  static Registry<CasePredictor> registry("predicted case");
  return registry;
}

CasePrediction predict_case(const PublishedCase& published) {
  const std::vector<std::string> known = case_predictors().names();
  if (std::find(known.begin(), known.end(), published.like) != known.end())
    return case_predictors().find(published.like).predict(published);
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  CasePrediction none;
  none.rows.resize(published.rows.size());
  none.not_predicted = "not predicted yet: no model of this experiment (there are: " + names + ")";
  if (published.like != published.id)
    published.fail("key 'like': " + unknown_name("predicted case", published.like, known));
  return none;
}

CasePrediction combine(const PublishedCase& published, const std::vector<Candidate>& candidates) {
  CasePrediction prediction;
  prediction.rows.resize(published.rows.size());
  if (candidates.empty()) {
    prediction.not_predicted = "not predicted: nothing plausible reproduces the rows of role fit";
    return prediction;
  }
  std::vector<const Candidate*> sorted;
  sorted.reserve(candidates.size());
  for (const Candidate& candidate : candidates) sorted.push_back(&candidate);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Candidate* a, const Candidate* b) {
    return a->implausibility < b->implausibility;
  });
  prediction.rows = ranges_of(sorted);
  prediction.alpha_beta = sorted.front()->alpha_beta;
  std::string central = "central prediction:";
  for (const auto& [name, value] : sorted.front()->choice)
    central.append(" ").append(name).append(" ").append(value).append(",");
  central.back() = ';';
  prediction.assumed.push_back(central + " fitted to it: " + sorted.front()->fitted);
  prediction.assumed.push_back("ranges are over " + std::to_string(sorted.size()) +
                               " sets of assumptions that reproduce the fit rows" +
                               other_figures(candidates));
  for (std::size_t choice = 0; choice < sorted.front()->choice.size(); ++choice) {
    std::string line = effect_of(published, sorted, choice);
    if (!line.empty()) prediction.unidentified.push_back(std::move(line));
  }
  return prediction;
}

std::string summary(const PublishedCase& published, const std::vector<const Candidate*>& candidates) {
  const std::vector<RowPrediction> rows = ranges_of(candidates);
  std::string text;
  for (std::size_t i = 0; i < published.rows.size(); ++i)
    if (!published.rows[i].fit) text += (text.empty() ? "" : " | ") + row_summary(published.rows[i], rows[i]);
  return text;
}

void forget_memory(std::vector<Candidate>& candidates) {
  for (Candidate& candidate : candidates)
    for (RowValues& row : candidate.rows)
      for (const char* key : {"peak_memory_mb_per_rank", "mean_peak_memory_mb", "memory_cv"}) row.erase(key);
}

Model published_model(const PublishedCase& published, const std::string& settings) {
  std::string name = published.text("model", "bert-base");
  name = name.substr(0, name.find(' '));
  try {
    return load_model(settings.empty() ? name : name + ":" + settings);
  } catch (const InputError& error) {
    published.fail("key 'model': found '" + name + "': " + error.what());
  }
}

const PublishedRow& fit_row(const PublishedCase& published, const std::string& strategy,
                            const std::string& key) {
  const auto found = std::find_if(published.rows.begin(), published.rows.end(), [&](const PublishedRow& row) {
    return row.fit && row.strategy == strategy && row.measured(key).value_or(0.0) > 0.0;
  });
  if (found == published.rows.end())
    published.fail("key 'rows': found no row of role fit and strategy '" + strategy + "' with a value of '" +
                   key + "', expected one");
  return *found;
}

void require_strategy(const PublishedRow& row, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), row.strategy) == known.end())
    row.fail("key 'strategy': " + unknown_name("strategy", row.strategy, known));
  if (row.strategy == "single" && row.world_size != 1)
    row.fail("key 'world_size': found " + std::to_string(row.world_size) +
             ", expected 1 of strategy 'single'");
}

RowValues row_values(const Result& result, double process_bytes) {
  Result whole = result;
  for (MemoryUse& rank : whole.memory) rank.peak_bytes += process_bytes;
  RowValues values;
  values["step_time_s"] = {whole.median_step_time_s()};
  values["throughput_samples_per_s"] = {whole.throughput_samples_per_s()};
  for (const MemoryUse& rank : whole.memory)
    values["peak_memory_mb_per_rank"].push_back(rank.peak_bytes / kPublishedMegabyte);
  values["mean_peak_memory_mb"] = {mean_of(values["peak_memory_mb_per_rank"])};
  values["stage_time_cv"] = {whole.stage_time_cv()};
  values["memory_cv"] = {whole.memory_cv()};
  values["bubble_fraction"] = {whole.bubble_fraction()};
  return values;
}

std::string range_text(const PredictedValue& value) {
  std::string text;
  for (std::size_t i = 0; i < value.low.size(); ++i) {
    const std::string low = short_number(value.low[i]);
    const std::string high = short_number(value.high[i]);
    text.append(i == 0 ? "" : " | ").append(low);
    if (low != high) text.append(" to ").append(high);
  }
  return text;
}

std::optional<double> relative_error(const PublishedRow& row, const std::string& key,
                                     const PredictedValue& value) {
  const std::optional<double> measured = row.measured(key);
  if (!measured || *measured <= 0.0) return std::nullopt;
  return mean_of(value.central) / *measured - 1.0;
}

std::string leading_quantity(const PublishedRow& row) {
  for (const char* key : {"throughput_samples_per_s", "step_time_s", "total_time_s", "epoch_time_s",
                          "mean_iteration_s", "time_s"})
    if (row.facts.contains(key)) return key;
  return "step_time_s";
}

std::string row_name(const PublishedRow& row) {
  std::string name = row.text("strategy", row.text("method", ""));
  if (row.facts.contains("world_size")) name += " x" + std::to_string(row.world_size);
  if (row.facts.contains("split")) name += " " + row.text("split", "");
  if (row.facts.contains("cores")) name += " " + std::to_string(row.facts["cores"].get<int>()) + " cores";
  return name;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace stepcast

#include "sim/validation/measured_forecast.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "calibration/fitter.hpp"
#include "core/error.hpp"
#include "core/number.hpp"
#include "core/processes.hpp"

namespace stepcast {
namespace {

constexpr double kUnanswered = 3.0;  // misfit in logarithms of a row that some parameters make impossible
constexpr double kAsGood = 0.03;     // by which the first choice may be slower than the best
constexpr int kDescents = 2;
constexpr double kSlopeStep = 0.1;    // standard deviations, for slopes
constexpr double kStatedRange = 2.0;  // standard deviations

struct Answer {
  double step_s = 0.0, memory = 0.0;
};

/// Asks for rows in so many processes, each for every jobs-th of them.
class Questions {
 public:
  Questions(const MeasuredSet& set, const AskPrediction& ask, int jobs)
      : set_(set), ask_(ask), jobs_(static_cast<std::size_t>(std::max(1, jobs))) {}

  using Parameters = std::map<std::string, double>;

  /// In this process, which remembers what it loads. \throws what `ask` throws
  Answer ask(std::size_t row, const Parameters& parameters) {
    ++asked_;
    const Result result = ask_(words_of(set_, set_.rows[row], parameters), true);
    Answer answer{result.median_step_time_s(), 0.0};
    for (const MemoryUse& use : result.memory)
      answer.memory = set_.memory_of_last ? use.peak_bytes : std::max(answer.memory, use.peak_bytes);
    return answer;
  }

  std::vector<Answer> ask_all(const std::vector<std::size_t>& rows, const Parameters& parameters) {
    const std::size_t before = asked_;
    std::vector<Answer> answers(rows.size());
    const auto bytes =
        parallel_map(rows.size(), rows.size() < 2 * jobs_ ? 1 : static_cast<int>(jobs_), [&](std::size_t i) {
          const Answer answer = ask_if_possible(rows[i], parameters);
          return std::string(reinterpret_cast<const char*>(&answer), sizeof answer);
        });
    for (std::size_t i = 0; i < rows.size(); ++i) std::memcpy(&answers[i], bytes[i].data(), sizeof(Answer));
    asked_ = before + rows.size();
    return answers;
  }

  [[nodiscard]] std::size_t asked() const { return asked_; }

 private:
  /// 0 where some parameters make it impossible.
  Answer ask_if_possible(std::size_t row, const Parameters& parameters) {
    try {
      return ask(row, parameters);
    } catch (const Error&) {
      return {};
    }
  }

  const MeasuredSet& set_;
  const AskPrediction& ask_;
  std::size_t jobs_;
  std::size_t asked_ = 0;
};

class SetFit {
 public:
  SetFit(const MeasuredSet& set, const AskPrediction& ask, const ForecastOptions& options)
      : set_(set), options_(options), questions_(set, ask, options.jobs) {}

  SetForecast run() {
    SetForecast result;
    result.rows.resize(set_.rows.size());
    const Questions::Parameters middle = parameters_at(std::vector<double>(set_.free.size(), 0.0));
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < set_.rows.size(); ++i) {
      if (!set_.rows[i].left_out.empty()) continue;
      try {
        note(result.rows[i], questions_.ask(i, middle));
        asked.push_back(i);
      } catch (const Error& error) {
        result.rows[i].refusal = error.what();
      }
    }
    if (!set_.free.empty() && !asked.empty()) {
      if (set_.folds > 0)
        cross_validate(asked, result);
      else
        fit_known(asked, result);
    }
    add_trivial(asked, result);
    result.questions = questions_.asked();
    return result;
  }

 private:
  static void note(RowForecast& row, const Answer& answer) {
    row.step_s = answer.step_s;
    row.memory = answer.memory;
  }

  [[nodiscard]] Questions::Parameters parameters_at(const std::vector<double>& deviations) const {
    Questions::Parameters result;
    for (std::size_t j = 0; j < deviations.size(); ++j)
      result[set_.free[j].parameter.name] = set_.free[j].parameter.at(deviations[j]);
    return result;
  }

  Residuals misfits_of(const std::vector<std::size_t>& rows) {
    return [this, rows](const std::vector<double>& deviations) {
      const std::vector<Answer> answers = questions_.ask_all(rows, parameters_at(deviations));
      std::vector<double> result;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double measured = set_.rows[rows[i]].step_s;
        result.push_back((answers[i].step_s > 0.0 ? std::log(answers[i].step_s / measured) : kUnanswered) /
                         options_.sigma);
      }
      return result;
    };
  }

  /// Rows are many and steps smooth: a descent with slopes measured at its start, and another from where it led.
  Fit fit_to(const std::vector<std::size_t>& rows) {
    const Residuals misfits = misfits_of(rows);
    Fit found{std::vector<double>(set_.free.size(), 0.0), 0.0, {}, {}};
    for (int round = 0; round < kDescents; ++round) {
      const NearFit from{{found.deviations, 0.0, slopes_at(misfits, found.deviations), {}}};
      found = fit(misfits, {found.deviations}, &from);
    }
    return found;
  }

  static std::vector<std::vector<double>> slopes_at(const Residuals& misfits,
                                                    const std::vector<double>& deviations) {
    const std::vector<double> here = misfits(deviations);
    std::vector<std::vector<double>> slopes(here.size());
    for (std::size_t j = 0; j < deviations.size(); ++j) {
      std::vector<double> moved = deviations;
      moved[j] += kSlopeStep;
      const std::vector<double> there = misfits(moved);
      for (std::size_t i = 0; i < here.size(); ++i) slopes[i].push_back((there[i] - here[i]) / kSlopeStep);
    }
    return slopes;
  }

  void forecast_rows(const std::vector<std::size_t>& rows, const Fit& found, int fold, bool fitted,
                     SetForecast& result) {
    const std::vector<Answer> answers = questions_.ask_all(rows, parameters_at(found.deviations));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      note(result.rows[rows[i]], answers[i]);
      result.rows[rows[i]].fold = fold;
      result.rows[rows[i]].fitted = fitted;
    }
  }

  void add_parameters(const Fit& found, SetForecast& result) const {
    const auto count = static_cast<Eigen::Index>(set_.free.size());
    Eigen::MatrixXd curvature = Eigen::MatrixXd::Identity(count, count);
    for (const std::vector<double>& row : found.slopes) {
      const auto slope = Eigen::Map<const Eigen::VectorXd>(row.data(), count);
      curvature += slope * slope.transpose();
    }
    const Eigen::MatrixXd covariance = curvature.inverse();
    for (std::size_t j = 0; j < set_.free.size(); ++j) {
      const PublishedParameter& one = set_.free[j];
      const double at = found.deviations[j], spread = kStatedRange * found.left[j];
      const double value = one.parameter.at(at);
      result.parameters.push_back({one.parameter.name, one.unit, one.source, value,
                                   one.parameter.at(at - spread), one.parameter.at(at + spread),
                                   found.left[j], value, value});
      std::vector<double>& row = result.correlation.emplace_back();
      for (Eigen::Index k = 0; k < count; ++k) {
        const auto i = static_cast<Eigen::Index>(j);
        row.push_back(covariance(i, k) / std::sqrt(covariance(i, i) * covariance(k, k)));
      }
    }
  }

  void fit_known(const std::vector<std::size_t>& asked, SetForecast& result) {
    std::vector<std::size_t> known, others;
    for (const std::size_t row : asked) (set_.rows[row].known ? known : others).push_back(row);
    if (known.empty())
      throw InputError(set_.path + ": no row is known to which the parameters could be fitted");
    const Fit found = fit_to(known);
    add_parameters(found, result);
    forecast_rows(known, found, -1, true, result);
    forecast_rows(others, found, -1, false, result);
  }

  void cross_validate(const std::vector<std::size_t>& asked, SetForecast& result) {
    const auto folds = static_cast<std::size_t>(set_.folds);
    if (asked.size() < 2 * folds)
      throw InputError(set_.path + ": " + std::to_string(asked.size()) + " rows are too few for " +
                       std::to_string(folds) + " folds");
    std::vector<std::size_t> drawn = asked;
    std::mt19937 random(options_.seed);
    for (std::size_t i = drawn.size() - 1; i > 0; --i) std::swap(drawn[i], drawn[random() % (i + 1)]);
    const Fit whole = fit_to(asked);
    add_parameters(whole, result);
    for (std::size_t fold = 0; fold < folds; ++fold) {
      std::vector<std::size_t> held, rest;
      for (std::size_t i = 0; i < drawn.size(); ++i) (i % folds == fold ? held : rest).push_back(drawn[i]);
      NearFit near;  // how rows change with parameters, not what was measured of them
      for (const std::size_t row : rest)
        near.fit.slopes.push_back(
            whole.slopes[static_cast<std::size_t>(std::ranges::find(asked, row) - asked.begin())]);
      const Fit found = fit(misfits_of(rest), {std::vector<double>(set_.free.size(), 0.0)}, &near);
      for (std::size_t j = 0; j < result.parameters.size(); ++j) {
        const double value = set_.free[j].parameter.at(found.deviations[j]);
        result.parameters[j].least = std::min(result.parameters[j].least, value);
        result.parameters[j].most = std::max(result.parameters[j].most, value);
      }
      forecast_rows(held, found, static_cast<int>(fold), false, result);
    }
  }

  /// How unlike two rows are: numbers by the logarithm of their ratio, words by whether they differ.
  static double distance(const MeasuredRow& a, const MeasuredRow& b) {
    double sum = 0.0;
    for (const auto& [name, value] : a.values.values()) {
      const std::string* other = b.values.find(name);
      const auto left = number_in<double>(value),
                 right = other != nullptr ? number_in<double>(*other) : std::nullopt;
      if (left && right && *left > 0.0 && *right > 0.0)
        sum += std::abs(std::log(*left / *right));
      else if (other == nullptr || *other != value)
        sum += 1.0;
    }
    return sum;
  }

  void add_trivial(const std::vector<std::size_t>& asked, SetForecast& result) const {
    for (const std::size_t row : asked) {
      const MeasuredRow& here = set_.rows[row];
      const MeasuredRow* nearest = nullptr;
      double least = std::numeric_limits<double>::infinity();
      std::vector<double> rates;
      for (const std::size_t other : asked) {
        const bool usable = set_.folds > 0 ? result.rows[other].fold != result.rows[row].fold
                                           : other != row && (set_.free.empty() || result.rows[other].fitted);
        if (!usable) continue;
        const MeasuredRow& there = set_.rows[other];
        rates.push_back(there.step_s / there.work);
        const double apart = distance(here, there);
        if (apart >= least) continue;
        least = apart;
        nearest = &there;
      }
      if (nearest == nullptr) continue;
      result.rows[row].nearest_s = nearest->step_s * here.work / nearest->work;
      result.rows[row].roofline_s = here.work * median(rates);
    }
  }

  const MeasuredSet& set_;
  ForecastOptions options_;
  Questions questions_;
};

}  // namespace

SetForecast forecast(const MeasuredSet& set, const AskPrediction& ask, const ForecastOptions& options) {
  return SetFit(set, ask, options).run();
}

SetSummary summary_of(const MeasuredSet& set, const SetForecast& forecast, const std::string& part) {
  SetSummary result;
  std::vector<double> errors, signed_errors, nearest, roofline, memory;
  struct Choice {
    double best = std::numeric_limits<double>::infinity(), first = 0.0,
           least = std::numeric_limits<double>::infinity();
    int rows = 0;
  };
  std::map<std::string, Choice> groups;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const MeasuredRow& row = set.rows[i];
    const RowForecast& said = forecast.rows[i];
    if (!part.empty() && row.part != part) continue;
    ++result.rows;
    if (!row.left_out.empty() || !said.refusal.empty()) {
      ++result.left_out[row.left_out.empty() ? "refused: " + said.refusal : row.left_out];
      continue;
    }
    if (said.fitted || !(said.step_s > 0.0)) continue;
    signed_errors.push_back(said.step_s / row.step_s - 1.0);
    errors.push_back(std::abs(signed_errors.back()));
    if (said.nearest_s) nearest.push_back(std::abs(*said.nearest_s / row.step_s - 1.0));
    if (said.roofline_s) roofline.push_back(std::abs(*said.roofline_s / row.step_s - 1.0));
    if (row.memory > 0.0 && said.memory > 0.0) memory.push_back(std::abs(said.memory / row.memory - 1.0));
    if (row.group.empty()) continue;
    Choice& group = groups[row.group];
    ++group.rows;
    group.best = std::min(group.best, row.step_s);
    if (said.step_s < group.least) {
      group.least = said.step_s;
      group.first = row.step_s;
    }
  }
  result.forecasts = errors.size();
  if (errors.empty()) return result;
  const auto mean = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  };
  result.mean = mean(errors);
  result.bias = mean(signed_errors);
  result.median = median(errors);
  result.p90 = quantile(errors, 0.9);
  result.worst = *std::ranges::max_element(errors);
  if (!nearest.empty()) result.nearest = median(nearest);
  if (!roofline.empty()) result.roofline = median(roofline);
  result.memory_rows = memory.size();
  if (!memory.empty()) result.memory_median = median(memory);
  for (const auto& [name, group] : groups) {
    if (group.rows < 2) continue;
    ++result.groups;
    if (group.first <= (1.0 + kAsGood) * group.best) ++result.chosen_well;
  }
  return result;
}

nlohmann::json json_of(const MeasuredSet& set, const SetForecast& forecast) {
  nlohmann::json json{{"id", set.id},
                      {"title", set.title},
                      {"source", set.source},
                      {"rows", nlohmann::json::array()},
                      {"parameters", nlohmann::json::array()},
                      {"correlation", forecast.correlation},
                      {"folds", set.folds},
                      {"questions", forecast.questions}};
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const MeasuredRow& row = set.rows[i];
    const RowForecast& said = forecast.rows[i];
    nlohmann::json one{{"name", row.name}};
    for (const auto& [name, value] : row.values.values()) one["values"][name] = value;
    if (!row.left_out.empty() || !said.refusal.empty()) {
      one["left_out"] = row.left_out.empty() ? said.refusal : row.left_out;
    } else {
      one.update({{"measured_s", row.step_s},
                  {"forecast_s", said.step_s},
                  {"error", said.step_s / row.step_s - 1.0},
                  {"fitted", said.fitted}});
      if (said.nearest_s) one["nearest_s"] = *said.nearest_s;
      if (said.roofline_s) one["roofline_s"] = *said.roofline_s;
      if (said.fold >= 0) one["fold"] = said.fold;
      if (!row.group.empty()) one["group"] = row.group;
      if (!row.part.empty()) one["part"] = row.part;
      if (row.memory > 0.0) one.update({{"measured_bytes", row.memory}, {"forecast_bytes", said.memory}});
    }
    json["rows"].push_back(std::move(one));
  }
  for (const RowParameter& one : forecast.parameters)
    json["parameters"].push_back({{"name", one.name},
                                  {"unit", one.unit},
                                  {"value", one.value},
                                  {"low", one.low},
                                  {"high", one.high},
                                  {"left", one.left},
                                  {"least_of_folds", one.least},
                                  {"most_of_folds", one.most},
                                  {"source", one.source}});
  return json;
}

}  // namespace stepcast

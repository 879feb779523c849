#include "sim/validation/case_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

constexpr double kNotDetermined = 0.8;  // of its range before, that is left of a parameter
constexpr std::size_t kPolished = 3;  // of the best combinations of choices, before one is taken for the best
constexpr std::size_t kMostNamed = 6;  // values of a choice that are told one by one

/// A case with a memory of what was asked.
class CaseModel {
 public:
  CaseModel(const PublishedCase& published, const AskPrediction& ask) : case_(published), ask_(ask) {}

  [[nodiscard]] std::size_t parameters() const { return case_.free.size(); }

  [[nodiscard]] Residuals misfits(const Chosen& chosen) {
    return [this, chosen](const std::vector<double>& deviations) {
      std::vector<double> all;
      for (const PublishedRow& row : case_.rows) {
        if (!row.fit) continue;
        const RowValues& values = at(row, chosen, deviations);
        for (const std::string& quantity : row.on) {
          if (!values.contains(quantity)) fail(row, "predicts no '" + quantity + "' to fit");
          all.push_back(std::log(mean_of(values.at(quantity)) / *row.agreed(quantity)) /
                        row.sigma.value_or(case_.sigma));
        }
      }
      return all;
    };
  }

  const RowValues& at(const PublishedRow& row, const Chosen& chosen, const std::vector<double>& deviations) {
    const std::vector<std::string> words = words_of(row, chosen, deviations);
    std::string key;
    for (const std::string& word : words) key.append(word).append(" ");
    auto found = known_.find(key);
    if (found == known_.end())
      found = known_.emplace(key, row_values(asked(row, words, true), scope_of(row, words))).first;
    return found->second;
  }

  /// What a rank alone plus uncontended communication would say of the row's leading quantity; 0: not known.
  double alpha_beta(const PublishedRow& row, const Chosen& chosen, const std::vector<double>& deviations) {
    const std::vector<std::string> words = words_of(row, chosen, deviations);
    const Result result = asked(row, words, false);
    const auto found = result.trivial_step_time_s.find("alpha_beta");
    if (found == result.trivial_step_time_s.end()) return 0.0;
    Result trivial;
    trivial.configuration = result.configuration;
    trivial.step_time_s = {{found->second}};
    const std::vector<double> values = quantity_named(row.leading()).value(trivial, scope_of(row, words));
    return values.empty() ? 0.0 : mean_of(values);
  }

 private:
  [[noreturn]] static void fail(const PublishedRow& row, const std::string& message) {
    throw InputError(row.where + ": " + message);
  }

  [[nodiscard]] Result asked(const PublishedRow& row, const std::vector<std::string>& words,
                             bool brief) const {
    try {
      return ask_(words, brief);
    } catch (const InputError& error) {
      fail(row, error.what());
    } catch (const UsageError& error) {
      fail(row, error.what());
    }
  }

  [[nodiscard]] std::vector<std::string> words_of(const PublishedRow& row, const Chosen& chosen,
                                                  const std::vector<double>& deviations) const {
    std::map<std::string, NamedValue> names{{"shipped", {0.0, "", home_folder().string()}}};
    for (std::size_t j = 0; j < case_.free.size(); ++j)
      names[case_.free[j].parameter.name] = {case_.free[j].parameter.at(deviations[j]), case_.free[j].unit,
                                             ""};
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const OpenChoice& choice = case_.open[i].choice;
      names[choice.name] = named_value(choice.values[chosen[i]]);
    }
    for (const auto& [name, value] : row.with) names[name] = named_value(value);
    Texts options = row.options;
    for (const auto& [name, value] : case_.predict)
      if (std::none_of(options.begin(), options.end(), [&](const auto& one) { return one.first == name; }))
        options.emplace_back(name, value);
    for (const auto& [name, value] : options) names.emplace(name, named_value(value));
    std::vector<std::string> words;
    for (const auto& [name, value] : options) {
      try {
        const std::string text = filled(value, names);
        if (text == "unset") continue;  // in a row: not as the others
        words.push_back("--" + name);
        if (text != "on") words.push_back(text);  // a switch has no value
      } catch (const InputError& error) {
        fail(row, "option '" + name + "': " + error.what());
      }
    }
    // Nothing is drawn, and where steps drain the first takes as long as any other.
    words.insert(words.end(), {"--steps", "1", "--warmup", "0", "--resample", "no"});
    return words;
  }

  static double word(const std::vector<std::string>& words, const std::string& option, double standard) {
    const auto found = std::find(words.begin(), words.end(), "--" + option);
    return found == words.end() ? standard : named_value(*(found + 1)).number;
  }

  /// As a DistributedSampler deals samples out: ceil(ceil(samples / ranks) / batch) steps of a rank in an epoch.
  [[nodiscard]] double steps_of(const PublishedRow& row, const std::vector<std::string>& words) const {
    if (row.steps) return *row.steps;
    if (!case_.samples) return 0.0;
    const double ranks = word(words, "world-size", 1.0), batch = word(words, "batch", 1.0);
    return case_.epochs * std::ceil(std::ceil(*case_.samples / ranks) / batch);
  }

  [[nodiscard]] RowScope scope_of(const PublishedRow& row, const std::vector<std::string>& words) const {
    RowScope scope;
    scope.steps = steps_of(row, words);
    scope.world_size = static_cast<int>(word(words, "world-size", 1.0));
    for (const PublishedRow& other : case_.rows)
      for (const char* quantity : {"total_time_s", "epoch_time_s"})
        if (other.fit && other.strategy == "single" && other.measured.contains(quantity))
          scope.alone_total = *other.agreed(quantity);
    return scope;
  }

  const PublishedCase& case_;
  const AskPrediction& ask_;
  std::map<std::string, RowValues> known_;
};

void widen(std::map<std::string, PredictedValue>& row, const RowValues& values) {
  for (const auto& [quantity, numbers] : values) {
    const auto found = row.find(quantity);
    if (found == row.end()) continue;
    for (std::size_t i = 0; i < std::min(numbers.size(), found->second.low.size()); ++i) {
      found->second.low[i] = std::min(found->second.low[i], numbers[i]);
      found->second.high[i] = std::max(found->second.high[i], numbers[i]);
    }
  }
}

using RowPredictions = std::vector<std::map<std::string, PredictedValue>>;

class CaseFit {
 public:
  CaseFit(const PublishedCase& published, const AskPrediction& ask)
      : case_(published), ask_(ask), model_(published, ask) {}

  CasePrediction predict() {
    fit_all();
    const ChosenFit& best = accepted_.front();
    std::vector<RowPredictions> each;  // of every accepted combination
    for (ChosenFit& one : accepted_) each.push_back(ranges(one));
    CasePrediction prediction;
    prediction.rows = each.front();
    for (const RowPredictions& other : each)
      for (std::size_t i = 0; i < other.size(); ++i)
        for (const auto& [quantity, value] : other[i]) {
          widen(prediction.rows[i], {{quantity, value.low}});
          widen(prediction.rows[i], {{quantity, value.high}});
        }
    prediction.left_out_error = left_out_error();
    for (std::size_t i = 0; i < case_.rows.size(); ++i)
      for (auto& [quantity, value] : prediction.rows[i]) {
        if (case_.rows[i].fit || !quantity_named(quantity).leads) continue;
        for (double& low : value.low) low *= std::exp(-prediction.left_out_error);
        for (double& high : value.high) high *= std::exp(prediction.left_out_error);
      }
    for (const PublishedRow& row : case_.rows)
      prediction.alpha_beta.push_back(model_.alpha_beta(row, best.chosen, best.fit.deviations));
    prediction.accepted = accepted_.size();
    prediction.objective = best.fit.objective;
    describe(prediction, each);
    return prediction;
  }

  /// The most probable prediction of a row's leading quantity, without ranges.
  double central(std::size_t row) {
    fit_all();
    const ChosenFit& best = accepted_.front();
    const RowValues& values = model_.at(case_.rows[row], best.chosen, best.fit.deviations);
    return mean_of(values.at(case_.rows[row].leading()));
  }

 private:
  void fit_all() {
    std::vector<OpenChoice> choices;
    for (const PublishedChoice& open : case_.open) choices.push_back(open.choice);
    accepted_ = search(choices, [this](const Chosen& chosen, const NearFit* near) {
      const Residuals misfits = model_.misfits(chosen);
      std::vector<std::vector<double>> starts = fixed_starts(model_.parameters());
      if (near == nullptr) return fit(misfits, starts);
      starts.resize(near->fit.slopes.empty() ? 1 : 0);
      starts.insert(starts.begin(), near->fit.deviations);
      return fit(misfits, starts, near);
    });
    for (std::size_t i = 0; i < std::min(kPolished, accepted_.size()); ++i) polish(accepted_[i]);
    std::stable_sort(accepted_.begin(), accepted_.end(), [](const ChosenFit& a, const ChosenFit& b) {
      return a.fit.objective < b.fit.objective;
    });
  }

  /// The root mean square of ln(predicted / measured) over the rows to fit, each predicted from the others; 0 of fewer than
  /// three, where too little is left.
  [[nodiscard]] double left_out_error() const {
    constexpr int kFewest = 3;
    double squares = 0.0;
    int rows = 0;
    if (std::count_if(case_.rows.begin(), case_.rows.end(), [](const auto& row) { return row.fit; }) <
        kFewest)
      return 0.0;
    for (std::size_t i = 0; i < case_.rows.size(); ++i) {
      if (!case_.rows[i].fit) continue;
      PublishedCase others = case_;
      others.rows[i].fit = false;
      const double predicted = CaseFit(others, ask_).central(i);
      squares += std::pow(std::log(predicted / *case_.rows[i].agreed(case_.rows[i].leading())), 2);
      ++rows;
    }
    return std::sqrt(squares / rows);
  }

  /// By how much the sum of squared misfits may rise: more where the best fit does not explain the rows as well as they are
  /// said to be measured.
  [[nodiscard]] double limit_of(const ChosenFit& one) {
    const ChosenFit& best = accepted_.front();
    double squares = 0.0;
    const std::vector<double> misfits = model_.misfits(best.chosen)(best.fit.deviations);
    for (const double misfit : misfits) squares += misfit * misfit;
    const double unexplained = std::max(1.0, squares / static_cast<double>(misfits.size()));
    return kAccepted * unexplained - (one.fit.objective - best.fit.objective);
  }

  /// With slopes of its own. Without choices there is nothing that it was near to.
  void polish(ChosenFit& one) {
    if (case_.open.empty()) return;
    one.fit = polished(model_.misfits(one.chosen), one.fit);
  }

  /// Names that were chosen; numbers do not count.
  [[nodiscard]] Chosen names_chosen(const Chosen& chosen) const {
    Chosen names;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (!case_.open[i].choice.ordered) names.push_back(chosen[i]);
    return names;
  }

  /// Predictions of one combination, with ranges if it is the first of its names.
  RowPredictions ranges(ChosenFit& one) {
    const bool first = followed_.insert(names_chosen(one.chosen)).second;
    if (first && &one != &accepted_.front()) polish(one);
    RowPredictions rows(case_.rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (const auto& [quantity, values] : model_.at(case_.rows[i], one.chosen, one.fit.deviations))
        rows[i][quantity] = {values, values, values};
    const double limit = limit_of(one);
    if (!first || limit <= 0.0) return rows;
    const Residuals misfits = model_.misfits(one.chosen);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const PublishedRow& row = case_.rows[i];
      if (row.fit) continue;
      const FittedValue range = fitted_range(
          misfits, one.fit,
          [&](const std::vector<double>& deviations) {
            return std::log(mean_of(model_.at(row, one.chosen, deviations).at(row.leading())));
          },
          limit);
      for (const std::vector<double>& deviations : range.at) {
        widen(rows[i], model_.at(row, one.chosen, deviations));
        for (std::size_t j = 0; j < rows.size(); ++j)
          if (case_.rows[j].fit) widen(rows[j], model_.at(case_.rows[j], one.chosen, deviations));
      }
    }
    return rows;
  }

  void describe(CasePrediction& prediction, const std::vector<RowPredictions>& each) const {
    const ChosenFit& best = accepted_.front();
    for (std::size_t j = 0; j < case_.free.size(); ++j) {
      const PublishedParameter& free = case_.free[j];
      const double at = best.fit.deviations[j], left = best.fit.left[j];
      prediction.fitted.push_back({free.parameter.name, free.unit, free.source, free.parameter.at(at),
                                   free.parameter.at(at - 2.0 * left), free.parameter.at(at + 2.0 * left),
                                   left});
      const FittedParameter& fitted = prediction.fitted.back();
      const std::string range =
          short_number(fitted.low) + " to " + short_number(fitted.high) + " " + free.unit;
      if (left > kNotDetermined)
        prediction.unidentified.push_back("not determined by the rows to fit: " + free.parameter.name + ", " +
                                          range + " (" + free.source + ")");
      else
        prediction.assumed.push_back("fitted: " + free.parameter.name + " " + short_number(fitted.value) +
                                     " " + free.unit + " (" + range + "; before any row " +
                                     short_number(free.parameter.low) + " to " +
                                     short_number(free.parameter.high) + ": " + free.source + ")");
    }
    for (std::size_t c = 0; c < case_.open.size(); ++c) {
      const OpenChoice& choice = case_.open[c].choice;
      prediction.chosen[choice.name] = choice.values[best.chosen[c]];
      prediction.assumed.push_back("chosen: " + choice.name + " " + choice.values[best.chosen[c]] + " (" +
                                   case_.open[c].source + ")");
      if (std::string line = effect_of(c, each); !line.empty())
        prediction.unidentified.push_back(std::move(line));
    }
    prediction.assumed.push_back("what was measured is taken to be within " + percent_text(case_.sigma) +
                                 " (one standard deviation): " + case_.sigma_because);
    for (const PublishedRow& row : case_.rows)
      if (row.sigma)
        prediction.assumed.push_back(row.name + " is taken to be within " + percent_text(*row.sigma) + ": " +
                                     row.sigma_because);
    if (prediction.left_out_error > 0.0)
      prediction.assumed.push_back(
          "ranges are wider by " + percent_text(prediction.left_out_error) +
          ", by which rows to fit are missed that are predicted from the others (root mean square)");
    if (prediction.accepted > 1)
      prediction.assumed.push_back(
          "ranges are over " + counted(prediction.accepted, "combination") +
          " of choices that the rows to fit allow, and over the parameters of the best ones");
    prediction.assumed.insert(prediction.assumed.end(), case_.assumed.begin(), case_.assumed.end());
  }

  /// `unidentified: schedule; with gpipe: ...; with 1f1b: ...`; "" where one value is left.
  [[nodiscard]] std::string effect_of(std::size_t choice, const std::vector<RowPredictions>& each) const {
    const OpenChoice& open = case_.open[choice].choice;
    std::map<std::size_t, std::vector<std::size_t>> with;  // combinations by value
    for (std::size_t i = 0; i < accepted_.size(); ++i) with[accepted_[i].chosen[choice]].push_back(i);
    if (with.size() < 2) return "";
    std::string text = "unidentified: " + open.name;
    if (with.size() > kMostNamed) {
      text += ", " + open.values[with.begin()->first] + " to " + open.values[with.rbegin()->first];
      std::erase_if(with, [&](const auto& one) {
        return one.first != with.begin()->first && one.first != with.rbegin()->first &&
               one.first != accepted_.front().chosen[choice];
      });
    }
    for (const auto& [value, combinations] : with) {
      text += "; with " + open.values[value] + ":";
      for (std::size_t row = 0; row < case_.rows.size(); ++row) {
        if (case_.rows[row].fit) continue;
        const std::string quantity = case_.rows[row].leading();
        double low = INFINITY, high = 0.0;
        for (const std::size_t i : combinations) {
          low = std::min(low, mean_of(each[i][row].at(quantity).low));
          high = std::max(high, mean_of(each[i][row].at(quantity).high));
        }
        text += std::string(text.back() == ':' ? " " : " | ") + case_.rows[row].name + " " +
                range_text({{low}, {low}, {high}}) + " (" + quantity + ")";
      }
    }
    return text;
  }

  const PublishedCase& case_;
  const AskPrediction& ask_;
  CaseModel model_;
  std::vector<ChosenFit> accepted_;
  std::set<Chosen> followed_;
};

}  // namespace

CasePrediction predict_case(const PublishedCase& published, const AskPrediction& ask) {
  return CaseFit(published, ask).predict();
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

std::optional<double> relative_error(const PublishedRow& row, const std::string& quantity,
                                     const PredictedValue& value) {
  const std::optional<double> measured = row.agreed(quantity);
  if (!measured) return std::nullopt;
  return mean_of(value.central) / *measured - 1.0;
}

}  // namespace stepcast

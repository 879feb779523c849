#include "calibration/fitter.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace stepcast {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kFarthest = 4.0;     // standard deviations
constexpr double kLongestStep = 2.0;  // of one round
constexpr double kDifference = 1e-2;  // standard deviations, for slopes
constexpr double kSame = 1e-6;        // of the objective
constexpr double kConverged = 1e-8;   // reduction of the objective that another step promises
constexpr double kRough = 1e-2;       // the same, beginning near another fit
constexpr double kCoarse = 0.1;       // the same, of one start of several
constexpr double kApart = 0.1;        // standard deviations between two minima
constexpr int kRoughRounds = 5;
constexpr double kStill = 4e-3;  // standard deviations: 1e-3 of a range. A shorter step ends a rough descent.
constexpr double kHopeless = 2.0;  // times kAccepted above the best: choices are not followed
constexpr double kLargestDamping = 1e9;
constexpr int kMostRounds = 100;

VectorXd vector_of(const std::vector<double>& values) {
  return Eigen::Map<const VectorXd>(values.data(), static_cast<Eigen::Index>(values.size()));
}
std::vector<double> list_of(const VectorXd& values) { return {values.data(), values.data() + values.size()}; }

/// Settings of a descent.
struct Manner {
  double enough = kConverged;
  bool rough = false;  ///< slopes are followed, never measured
  double stop_above = std::numeric_limits<double>::infinity();
};

/// Levenberg-Marquardt descent from one start.
class Descent {
 public:
  /// \param slopes to begin with; empty: they are measured
  Descent(const Residuals& residuals, const std::vector<double>& start,
          const std::vector<std::vector<double>>& slopes, Manner manner)
      : residuals_(residuals),
        manner_(std::move(manner)),
        z_(vector_of(start)),
        r_(vector_of(residuals(start))) {
    if (slopes.empty()) {
      measure_slopes();
      return;
    }
    slopes_.resize(r_.size(), z_.size());
    for (Eigen::Index i = 0; i < r_.size(); ++i) slopes_.row(i) = vector_of(slopes[i]).transpose();
  }

  Fit run() {
    for (int round = 0; round < (manner_.rough ? kRoughRounds : kMostRounds) && damping_ < kLargestDamping;
         ++round) {
      const VectorXd step = next_step();
      const double linear = linear_objective(step), promised = objective() - linear;
      if (manner_.stop_above < linear) {  // of the whole step, not of its first part
        const VectorXd whole = curvature().ldlt().solve(-gradient());
        const double least = linear_objective(whole);
        if (least > manner_.stop_above) {
          Fit given_up = result();
          given_up.objective = least;
          return given_up;
        }
      }
      if (promised < manner_.enough) {
        if (measured_ || manner_.rough) break;
        measure_slopes();
        continue;
      }
      if (manner_.rough && step.cwiseAbs().maxCoeff() < kStill) {
        r_ += slopes_ * step;
        z_ += step;
        break;
      }
      take(step, promised);
    }
    return result();
  }

 private:
  [[nodiscard]] double objective() const { return r_.squaredNorm() + z_.squaredNorm(); }
  [[nodiscard]] double linear_objective(const VectorXd& step) const {
    return (r_ + slopes_ * step).squaredNorm() + (z_ + step).squaredNorm();
  }
  [[nodiscard]] VectorXd gradient() const { return slopes_.transpose() * r_ + z_; }
  [[nodiscard]] MatrixXd curvature() const {
    return slopes_.transpose() * slopes_ + MatrixXd::Identity(z_.size(), z_.size());
  }

  void measure_slopes() {
    slopes_.resize(r_.size(), z_.size());
    const bool coarse = manner_.enough >= kCoarse;  // half as many evaluations
    for (Eigen::Index j = 0; j < z_.size(); ++j) {
      VectorXd up = z_, down = z_;
      up(j) += kDifference;
      if (!coarse) down(j) -= kDifference;
      slopes_.col(j) =
          (vector_of(residuals_(list_of(up))) - (coarse ? r_ : vector_of(residuals_(list_of(down))))) /
          (up(j) - down(j));
    }
    measured_ = true;
  }

  /// Step within the bounds: parameters that would leave them stop there, and the others are solved again.
  [[nodiscard]] VectorXd next_step() const {
    MatrixXd damped = curvature();
    damped.diagonal() *= 1.0 + damping_;
    const VectorXd farthest = VectorXd::Constant(z_.size(), kFarthest);
    const VectorXd least = -farthest - z_, most = farthest - z_;
    VectorXd step = VectorXd::Zero(z_.size());
    std::set<Eigen::Index> ended;
    for (bool more = true; more;) {
      MatrixXd left = damped;
      VectorXd side = -gradient();
      for (const Eigen::Index j : ended) side -= damped.col(j) * step(j);
      for (const Eigen::Index j : ended) {
        left.row(j).setZero();
        left.col(j).setZero();
        left(j, j) = 1.0;
        side(j) = step(j);
      }
      step = left.ldlt().solve(side);
      more = false;
      for (Eigen::Index j = 0; j < step.size(); ++j) {
        if (step(j) >= least(j) && step(j) <= most(j)) continue;
        step(j) = std::clamp(step(j), least(j), most(j));
        more = ended.insert(j).second || more;
      }
    }
    const double longest = step.size() == 0 ? 0.0 : step.cwiseAbs().maxCoeff();
    return longest > kLongestStep ? VectorXd(step * (kLongestStep / longest)) : step;
  }

  void take(const VectorXd& step, double promised) {
    const VectorXd there = z_ + step, residual = vector_of(residuals_(list_of(there)));
    const double now = residual.squaredNorm() + there.squaredNorm();
    const double kept = (objective() - now) / promised;
    const VectorXd surprise = residual - r_ - slopes_ * step;
    if (now < objective() || manner_.rough) {
      slopes_ += surprise * step.transpose() / step.squaredNorm();
      measured_ = false;
    }
    if (now < objective()) {
      r_ = residual;
      z_ = there;
      damping_ = kept > 0.25 ? damping_ / 10.0 : std::max(1e-3, damping_);
      if (kept < 0.25 && !manner_.rough) measure_slopes();
    } else if (!measured_ && !manner_.rough) {
      measure_slopes();
    } else {
      damping_ = std::max(1e-3, 10.0 * damping_);
    }
  }

  [[nodiscard]] Fit result() const {
    Fit found{list_of(z_), objective(), {}, {}};
    for (Eigen::Index i = 0; i < r_.size(); ++i) found.slopes.push_back(list_of(slopes_.row(i).transpose()));
    const MatrixXd left = curvature().inverse();
    for (Eigen::Index j = 0; j < z_.size(); ++j) found.left.push_back(std::sqrt(left(j, j)));
    return found;
  }

  const Residuals& residuals_;
  Manner manner_;
  VectorXd z_, r_;
  MatrixXd slopes_;
  bool measured_ = false;  ///< slopes_, here
  double damping_ = 0.0;
};

double distance(const Fit& fit) { return vector_of(fit.deviations).squaredNorm(); }

/// Lower objective, or an equal one nearer to the middle.
bool beats(const Fit& a, const Fit& b) {
  if (std::abs(a.objective - b.objective) > kSame) return a.objective < b.objective;
  return distance(a) < distance(b) - kSame;
}

/// All searched choices and their fits.
struct Search {
  const std::vector<OpenChoice>& choices;
  const std::function<Fit(const Chosen&, const NearFit*)>& fit_one;

  std::vector<ChosenFit> run() {
    Chosen middle;
    for (const OpenChoice& choice : choices)
      middle.push_back(
          choice.ordered ? static_cast<std::size_t>(std::lround(std::sqrt(choice.values.size()))) - 1 : 0);
    try_combinations(0, middle);
    for (const Chosen& start : bottoms)
      if (accepted(start)) follow(start);
    std::vector<ChosenFit> all;
    for (const auto& [chosen, found] : known)
      if (accepted(chosen)) all.push_back({chosen, found});
    std::ranges::stable_sort(all, [](const ChosenFit& a, const ChosenFit& b) { return beats(a.fit, b.fit); });
    return all;
  }

  [[nodiscard]] const Fit& at(const Chosen& chosen) {
    const auto found = known.find(chosen);
    if (found != known.end()) return found->second;
    const auto beside = nearest(chosen);
    NearFit near{{}, lowest + kHopeless * kAccepted};
    if (beside != known.end()) {
      near.fit = beside->second;
      // With other names the model may differ: slopes and the limit do not apply.
      if (chosen_names(choices, beside->first) != chosen_names(choices, chosen))
        near = {{near.fit.deviations, near.fit.objective, {}, {}}};
    }
    const Fit& fresh =
        known.emplace(chosen, fit_one(chosen, beside == known.end() ? nullptr : &near)).first->second;
    lowest = std::min(lowest, fresh.objective);
    return fresh;
  }
  [[nodiscard]] bool accepted(const Chosen& chosen) { return at(chosen).objective <= lowest + kAccepted; }

  /// Fit whose choices are the fewest steps from these.
  [[nodiscard]] std::map<Chosen, Fit>::const_iterator nearest(const Chosen& chosen) const {
    auto best = known.end();
    double least = std::numeric_limits<double>::infinity();
    for (auto other = known.begin(); other != known.end(); ++other) {
      double steps = chosen_names(choices, other->first) == chosen_names(choices, chosen) ? 0.0 : 100.0;
      for (std::size_t i = 0; i < chosen.size(); ++i)
        if (choices[i].ordered) steps += std::abs(std::log((other->first[i] + 1.0) / (chosen[i] + 1.0)));
      if (steps >= least) continue;
      least = steps;
      best = other;
    }
    return best;
  }

  void try_combinations(std::size_t from, Chosen chosen) {
    if (from < choices.size()) {
      if (choices[from].ordered) return try_combinations(from + 1, chosen);
      for (chosen[from] = 0; chosen[from] < choices[from].values.size(); ++chosen[from])
        try_combinations(from + 1, chosen);
      return;
    }
    if (!bottoms.empty()) {  // numbers from where another combination was best
      const Chosen& best =
          *std::ranges::min_element(bottoms, {}, [&](const Chosen& other) { return at(other).objective; });
      for (std::size_t i = 0; i < chosen.size(); ++i)
        if (choices[i].ordered) chosen[i] = best[i];
    }
    for (const double factor : {2.0, 1.3, 1.0})
      for (bool better = true; better;) {
        better = false;
        for (const Chosen& next : around(chosen, factor))
          if (at(next).objective < at(chosen).objective - kSame) {
            chosen = next;
            better = true;
            break;
          }
      }
    static_cast<void>(at(chosen));
    bottoms.push_back(chosen);
  }

  /// Ordered choices one step to both sides, alone and against each other; a factor of 1 is the next value.
  [[nodiscard]] std::vector<Chosen> around(const Chosen& from, double factor) const {
    std::vector<Chosen> all;
    for (std::size_t i = 0; i < choices.size(); ++i)
      for (const int up : {1, -1}) {
        if (!choices[i].ordered) continue;
        for (std::size_t j = 0; j <= i; ++j) {
          if (!choices[j].ordered) continue;
          Chosen next = from;
          next[i] = moved(i, from[i], up, factor);
          if (j != i) next[j] = moved(j, from[j], -up, factor);
          all.push_back(std::move(next));
        }
      }
    return all;
  }

  [[nodiscard]] std::size_t moved(std::size_t choice, std::size_t index, int up, double factor) const {
    const auto value = static_cast<double>(index + 1);
    double next = up > 0 ? value * factor : value / factor;
    if (std::abs(std::lround(next) - value) < 1.0) next = value + up;
    const auto most = static_cast<double>(choices[choice].values.size());
    return static_cast<std::size_t>(std::lround(std::clamp(next, 1.0, most))) - 1;
  }

  /// Searches the limits of acceptance from a bottom in every direction, with growing, then halved steps.
  void follow(const Chosen& bottom) {
    const std::size_t ways = around(bottom, 1.0).size();
    for (std::size_t way = 0; way < ways; ++way)
      for (double factor = 1.0, inside = 1.0, outside = 0.0; true;) {
        (accepted(around(bottom, factor)[way]) ? inside : outside) = factor;
        const double next =
            outside == 0.0 ? (factor == 1.0 ? 1.25 : factor * factor) : std::sqrt(inside * outside);
        if (next > 64.0 || (outside > 0.0 && outside / inside < 1.1)) break;
        factor = next;
      }
  }

  std::map<Chosen, Fit> known{};
  std::vector<Chosen> bottoms{};
  double lowest = std::numeric_limits<double>::infinity();
};

}  // namespace

double FreeParameter::at(double deviations) const {
  const double from = linear ? low : std::log(low), to = linear ? high : std::log(high);
  const double value = (from + to) / 2.0 + deviations * (to - from) / 4.0;
  return std::clamp(linear ? value : std::exp(value), least, most);
}

Chosen chosen_names(const std::vector<OpenChoice>& choices, const Chosen& chosen) {
  Chosen names;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (!choices[i].ordered) names.push_back(chosen[i]);
  return names;
}

Fit fit(const Residuals& residuals, const std::vector<std::vector<double>>& starts, const NearFit* near) {
  if (near != nullptr && !near->fit.slopes.empty()) {
    Fit best;
    for (const std::vector<double>& start : starts) {
      const Manner manner{.enough = kRough, .rough = true, .stop_above = near->stop_above};
      Fit found = Descent(residuals, start, near->fit.slopes, manner).run();
      if (std::isinf(best.objective) || beats(found, best)) best = std::move(found);
    }
    return best;
  }
  std::vector<Fit> coarse;
  double least = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& start : starts) {
    coarse.push_back(Descent(residuals, start, {}, {.enough = kCoarse}).run());
    least = std::min(least, coarse.back().objective);
  }
  std::vector<Fit> minima;
  for (const Fit& one : coarse) {
    if (one.objective > least + kCoarse) continue;
    const bool known = std::ranges::any_of(minima, [&](const Fit& other) {
      return (vector_of(other.deviations) - vector_of(one.deviations)).norm() < kApart;
    });
    if (!known) minima.push_back(near != nullptr ? one : polished(residuals, one));
  }
  return *std::ranges::min_element(minima, beats);
}

Fit polished(const Residuals& residuals, const Fit& found) {
  return Descent(residuals, found.deviations, found.slopes, {}).run();
}

std::vector<std::vector<double>> fixed_starts(std::size_t parameters) {
  std::vector<std::vector<double>> starts{std::vector<double>(parameters, 0.0)};
  for (const double side : {1.0, -1.0}) {
    starts.emplace_back(parameters, side);
    for (std::size_t j = 0; j < parameters; ++j) starts.back()[j] = j % 2 == 0 ? side : -side;
  }
  return starts;
}

std::vector<ChosenFit> search(const std::vector<OpenChoice>& choices,
                              const std::function<Fit(const Chosen&, const NearFit* near)>& fit_one) {
  return Search{choices, fit_one}.run();
}

}  // namespace stepcast

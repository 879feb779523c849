#include "runner/measure/sampler.hpp"

#include <algorithm>
#include <numeric>

#include "core/ranges.hpp"

namespace stepcast {

Sampler::Sampler(RankSession& session, std::vector<SampledCase> cases, const SamplerSettings& settings)
    : session_(session), settings_(settings), watch_(session, settings.threads_per_rank) {
  if (settings.stolen_is_own) watch_.own_stolen_time();
  for (SampledCase& one : cases) {
    if (one.ranks.empty()) one.ranks = all_ranks(session.ranks.world_size);
    cases_.push_back({std::move(one)});
  }
  forget();
}

int Sampler::wanted() const {
  return std::max(std::min(kFewestSamples, settings_.rounds), (2 * settings_.rounds + 2) / 3);
}

void Sampler::run(std::size_t index) {
  const SampledCase& one = cases_[index].definition;
  for (int window = 0; window < one.windows; ++window) {
    const double begin = wall_clock_s();
    if (one.prepare) one.prepare();
    watch_.begin();
    Note note{index, one.work(), {}, 0.0};
    note.machine = watch_.end(one.ranks);
    if (one.alone && (one.ranks.size() == 1 || !watch_.crowded())) {
      // Never below the CPU time: an interruption at the end may count as delay, but not as time.
      note.cost.time_s = std::max(note.cost.time_s - note.cost.queued_s, note.cost.cpu_s);
      if (note.cost.queued_s > 0.0)
        note.machine.lost_fraction = std::min(note.machine.lost_fraction, note.machine.stolen);
      note.machine.queued_fraction = 0.0;
    }
    note.elapsed_s = wall_clock_s() - begin;
    notes_.push_back(std::move(note));
  }
}

void Sampler::settle() {
  std::vector<double> mine{wall_clock_s() - began_s_};
  for (const Note& note : notes_) {
    mine.insert(mine.end(),
                {note.cost.time_s, note.cost.cpu_s, note.machine.probe_per_s, note.machine.lost_fraction,
                 note.machine.queued_fraction, note.elapsed_s, static_cast<double>(note.cost.values.size())});
    mine.insert(mine.end(), note.cost.values.begin(), note.cost.values.end());
  }
  const auto all = session_.control->all_gather_numbers("samples", mine);
  spent_s_ = all.front().front();
  auto next = transformed(all, [](const std::vector<double>& theirs) { return theirs.data() + 1; });
  std::vector<double> round_s(cases_.size(), 0.0);
  for (const Note& note : notes_) {
    const double before_s = cases_[note.index].spent_s;
    add_sample(cases_[note.index], next);
    round_s[note.index] += cases_[note.index].spent_s - before_s;
  }
  notes_.clear();
  for (std::size_t i = 0; i < cases_.size(); ++i)
    if (round_s[i] > 0.0) cases_[i].round_s = round_s[i];
  // The system's clock is too coarse for the lost time of samples that are as short as its tick. Run-queue
  // delay is exact, but threads of a rank also wait for each other: only what exceeds the least of all
  // samples is lost.
  for (Case& one : cases_)
    for (std::size_t i = 0; i < one.lost.size(); ++i) {
      const double least = *std::ranges::min_element(one.queued);
      one.set.machine.lost_fraction[i] = std::clamp(std::max(one.lost[i], one.queued[i] - least), 0.0, 1.0);
    }
}

/// \param next by rank, where its numbers of this sample begin; moved to those of the next sample
void Sampler::add_sample(Case& one, std::vector<const double*>& next) {
  const Ranks& ranks = one.definition.ranks;
  const auto count = static_cast<double>(ranks.size());
  std::vector<double> probes;
  double slowest_s = 0.0, mean_s = 0.0, cpu_s = 0.0, lost = 0.0, queued = 0.0, elapsed_s = 0.0;
  auto& values = one.values.emplace_back();
  for (std::size_t rank = 0; rank < next.size(); ++rank) {
    constexpr std::ptrdiff_t kNumbers = 7;
    const double* numbers = next[rank];
    next[rank] += kNumbers + static_cast<std::ptrdiff_t>(numbers[6]);
    elapsed_s = std::max(elapsed_s, numbers[5]);
    if (std::ranges::find(ranks, static_cast<int>(rank)) == ranks.end()) continue;
    slowest_s = std::max(slowest_s, numbers[0]);
    mean_s += numbers[0] / count;
    cpu_s += numbers[1] / count;
    probes.push_back(numbers[2]);
    lost = std::max(lost, numbers[3]);
    queued += numbers[4];
    values.emplace_back(numbers + kNumbers, next[rank]);
  }
  one.set.time_s.push_back(one.definition.takes_slowest ? slowest_s : mean_s);
  one.set.cpu_s.push_back(cpu_s);
  one.set.machine.add(slowest_probe(probes), lost);
  one.lost.push_back(lost);
  one.queued.push_back(queued);
  one.spent_s += elapsed_s;
}

void Sampler::forget() {
  for (Case& one : cases_) {
    Case empty{one.definition};
    empty.set.probe = one.definition.name;
    empty.set.path_class = one.definition.path_class;
    empty.set.bytes = one.definition.bytes;
    empty.round_s = one.round_s;
    empty.given_up = one.given_up;
    one = std::move(empty);
  }
}

void Sampler::give_up(std::size_t index) {
  cases_[index].given_up = true;
  cases_[index].round_s = 0.0;
}

void Sampler::run_rounds(const OnSample& on_case, const OnSample& on_round) {
  for (int round = 0; round < settings_.rounds; ++round) {
    const std::vector<int> rounds =
        rounds_within(transformed(cases_, &Case::round_s), settings_.rounds - round,
                      std::max(0, std::min(kFewestSamples, settings_.rounds) - round), left_s());
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (rounds[i] == 0 || cases_[i].given_up) continue;
      run(i);
      if (on_case) on_case(cases_[i].definition.name);
    }
    settle();
    if (on_round) on_round("round " + std::to_string(round + 1));
  }
}

bool Sampler::repeat() {
  constexpr double kTurn = 1.0;
  std::vector<double> probes;
  for (const Case& one : cases_)
    probes.insert(probes.end(), one.set.machine.probe_per_s.begin(), one.set.machine.probe_per_s.end());
  const double best = best_probe(std::move(probes));
  std::vector<std::size_t> lacking;
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    const std::vector<char> clean = without_interference(cases_[i].set.machine, best);
    if (!cases_[i].given_up && std::ranges::count(clean, 1) < wanted() * cases_[i].definition.windows)
      lacking.push_back(i);
  }
  const std::vector<std::size_t> turn = cases_to_repeat(lacking, transformed(cases_, &Case::round_s),
                                                        transformed(cases_, &Case::spent_s), kTurn, left_s());
  for (const std::size_t i : turn) run(i);
  settle();
  return !turn.empty();
}

std::vector<int> rounds_within(const std::vector<double>& cost_s, int rounds, int least, double left_s) {
  std::vector<int> result(cost_s.size(), rounds);
  double sum_s = rounds * std::accumulate(cost_s.begin(), cost_s.end(), 0.0);
  while (sum_s > left_s) {
    std::size_t longest = cost_s.size();
    for (std::size_t i = 0; i < cost_s.size(); ++i)
      if (result[i] > least &&
          (longest == cost_s.size() || result[i] * cost_s[i] > result[longest] * cost_s[longest]))
        longest = i;
    if (longest == cost_s.size()) break;
    --result[longest];
    sum_s -= cost_s[longest];
  }
  return result;
}

std::vector<std::size_t> cases_to_repeat(const std::vector<std::size_t>& lacking,
                                         const std::vector<double>& cost_s,
                                         const std::vector<double>& spent_s, double turn_s, double left_s) {
  std::vector<std::size_t> order = lacking;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return spent_s[a] < spent_s[b]; });
  std::vector<std::size_t> turn;
  double sum_s = 0.0;
  for (const std::size_t one : order) {
    sum_s += cost_s[one];
    if (sum_s > left_s || (!turn.empty() && sum_s > turn_s)) break;
    turn.push_back(one);
  }
  return turn;
}

}  // namespace stepcast

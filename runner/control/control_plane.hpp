#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"
#include "runner/control/store.hpp"

namespace stepcast {

/// Messages between the ranks of a job that are not training data: texts, clock readings, host names,
/// results. They go through the job's store, independent of the backend. A call takes 0.1 to some
/// milliseconds, so none belongs into what is timed.
///
/// Every rank makes the same calls in the same order; `what` names the call in keys and errors. \throws
/// TimeoutError that names the ranks that did not take part in time; RunError if the store is gone
class ControlPlane {
 public:
  ControlPlane(std::shared_ptr<Store> store, int rank, int world_size, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(rank), world_size_(world_size), timeout_(timeout) {}

  /// The texts of all ranks, by rank, at every rank.
  std::vector<std::string> all_gather(const std::string& what, const std::string& text) {
    publish(what, text);
    return collect(what);
  }

  /// As all_gather() at rank 0; the other ranks continue at once, with an empty list.
  std::vector<std::string> gather(const std::string& what, const std::string& text) {
    publish(what, text);
    return rank_ == 0 ? collect(what) : std::vector<std::string>();
  }

  /// The numbers of all ranks, by rank, at every rank; ranks may have different counts. Numbers travel as
  /// their shortest texts, which read back as the same numbers.
  std::vector<std::vector<double>> all_gather_numbers(const std::string& what,
                                                      const std::vector<double>& mine) {
    const auto number = [](const std::string& word) { return number_in<double>(word).value(); };
    return transformed(all_gather(what, joined(mine, " ")),
                       [&](const std::string& text) { return transformed(words_in(text), number); });
  }

 private:
  std::string key(const std::string& what, int rank) const {
    return "control/" + std::to_string(calls_) + "/" + what + "/" + std::to_string(rank);
  }

  void publish(const std::string& what, const std::string& text) {
    ++calls_;
    store_->set(key(what, rank_), {text.begin(), text.end()});
  }

  std::vector<std::string> collect(const std::string& what) {
    std::vector<std::string> texts;
    for (int rank = 0; rank < world_size_; ++rank) {
      try {
        const std::vector<char> text = store_->get(key(what, rank));
        texts.emplace_back(text.begin(), text.end());
      } catch (const TimeoutError&) {
        const std::vector<int> missing =
            missing_ranks(*store_, all_ranks(world_size_), [&](int other) { return key(what, other); });
        throw TimeoutError("rank {}: {}: of {} ranks these did not answer within {}: {}", rank_, what,
                           world_size_, to_text(Seconds(timeout_)), joined(missing));
      }
    }
    return texts;
  }

  std::shared_ptr<Store> store_;
  int rank_;
  int world_size_;
  std::chrono::milliseconds timeout_;
  int calls_ = 0;
};

}  // namespace stepcast

#include "runner/control/control_plane.hpp"

#include <utility>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/units.hpp"

namespace stepcast {

ControlPlane::ControlPlane(std::shared_ptr<Store> store, int rank, int world_size,
                           std::chrono::milliseconds timeout)
    : store_(std::move(store)), rank_(rank), world_size_(world_size), timeout_(timeout) {}

std::string ControlPlane::key(const std::string& what, int rank) const {
  return "control/" + std::to_string(calls_) + "/" + what + "/" + std::to_string(rank);
}

void ControlPlane::publish(const std::string& what, const std::string& text) {
  ++calls_;
  store_->set(key(what, rank_), {text.begin(), text.end()});
}

std::vector<std::string> ControlPlane::collect(const std::string& what) {
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

std::vector<std::string> ControlPlane::all_gather(const std::string& what, const std::string& text) {
  publish(what, text);
  return collect(what);
}

std::vector<std::string> ControlPlane::gather(const std::string& what, const std::string& text) {
  publish(what, text);
  return rank_ == 0 ? collect(what) : std::vector<std::string>();
}

/// Numbers travel as their shortest texts, which read back as the same numbers.
std::vector<std::vector<double>> ControlPlane::all_gather_numbers(const std::string& what,
                                                                  const std::vector<double>& mine) {
  const auto number = [](const std::string& word) { return number_in<double>(word).value(); };
  return transformed(all_gather(what, joined(mine, " ")),
                     [&](const std::string& text) { return transformed(words_in(text), number); });
}

}  // namespace stepcast

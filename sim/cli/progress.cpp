#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <utility>

#include "core/environment.hpp"
#include "core/units.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLineEvery{10};
constexpr std::chrono::milliseconds kDrawEvery{50};
constexpr int kBarWidth = 30;

}  // namespace

bool interactive() {
  return ::isatty(STDERR_FILENO) != 0 && process_environment("TERM").value_or("dumb") != "dumb";
}

struct Progress::State {
  std::string what;
  int total = 0;
  int done = 0;
  bool bar = interactive();
  Clock::time_point start = Clock::now();
  Clock::time_point last = Clock::now();

  [[nodiscard]] std::string remaining() const {
    if (done == 0 || total == 0) return "";
    const Seconds passed = Clock::now() - start;
    return ", " + to_text(passed * (static_cast<double>(total - done) / done)) + " left";
  }

  void draw(const std::string& now) {
    const int filled = total > 0 ? kBarWidth * std::min(done, total) / total : 0;
    std::cerr << "\r\033[K" << what << " [" << std::string(static_cast<std::size_t>(filled), '#')
              << std::string(static_cast<std::size_t>(kBarWidth - filled), ' ') << "] " << done << '/'
              << total << remaining() << (now.empty() ? "" : "  " + now) << std::flush;
  }

  void line(const std::string& now) {
    std::cerr << what << ": " << done << '/' << total << remaining() << (now.empty() ? "" : ", " + now)
              << std::endl;
  }
};

Progress::Progress(std::string what, int total) : state_(std::make_unique<State>()) {
  state_->what = std::move(what);
  state_->total = total;
}

Progress::~Progress() {
  if (state_->bar) std::cerr << "\r\033[K" << std::flush;
}

void Progress::advance(const std::string& now) {
  ++state_->done;
  const auto instant = Clock::now();
  if (instant - state_->last < (state_->bar ? Clock::duration(kDrawEvery) : Clock::duration(kLineEvery)))
    return;
  state_->last = instant;
  state_->bar ? state_->draw(now) : state_->line(now);
}

}  // namespace stepcast

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "core/environment.hpp"
#include "core/units.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

constexpr std::chrono::seconds kLineEvery{10};
constexpr std::chrono::milliseconds kDrawEvery{50};
constexpr int kBarWidth = 30;

}  // namespace

bool interactive() {
  return ::isatty(STDERR_FILENO) != 0 && process_environment("TERM").value_or("dumb") != "dumb";
}

Progress::~Progress() {
  if (bar_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::advance(const std::string& now) {
  ++done_;
  const auto instant = Clock::now();
  if (instant - last_ < (bar_ ? Clock::duration(kDrawEvery) : Clock::duration(kLineEvery))) return;
  last_ = instant;
  const Seconds left = (instant - start_) * (static_cast<double>(total_ - done_) / done_);
  const auto count =
      fmt::format("{}/{}{}", done_, total_, total_ == 0 ? "" : fmt::format(", {} left", to_text(left)));
  if (!bar_) {
    std::cerr << what_ << ": " << count << (now.empty() ? "" : ", " + now) << std::endl;
    return;
  }
  const auto filled = static_cast<std::size_t>(total_ > 0 ? kBarWidth * std::min(done_, total_) / total_ : 0);
  std::cerr << fmt::format("\r\033[K{} [{:{}}] {}{}", what_, std::string(filled, '#'), kBarWidth, count,
                           now.empty() ? "" : "  " + now)
            << std::flush;
}

}  // namespace stepcast

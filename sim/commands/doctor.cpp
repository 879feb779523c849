#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/program.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"
#include "records/watch.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/examination.hpp"
#include "sim/cli/option.hpp"

namespace stepcast::doctor_command {
namespace {

/// The machine over one second: the median of some probes, which take a hundredth of the time.
MachineState next_second(Watch& watch) {
  constexpr int kProbes = 8;
  std::vector<double> probes;
  for (int probe = 1; probe <= kProbes; ++probe) {
    std::this_thread::sleep_for(std::chrono::duration<double>(1.0 * probe / kProbes - watch.elapsed_s()));
    if (probe < kProbes) probes.push_back(probe_speed());
  }
  MachineState state = watch.end();
  probes.push_back(state.probe_per_s);
  state.probe_per_s = median(probes);
  return state;
}

ExitCode watch_machine(int seconds, bool json) {
  Watch watch(static_cast<int>(usable_cores().size()));
  double best = 0.0;
  if (!json) std::cout << "second  stolen   lost to others  speed probe  of the best so far\n" << std::flush;
  for (int second = 1; seconds == 0 || second <= seconds; ++second) {
    const MachineState state = next_second(watch);
    best = std::max(best, state.probe_per_s);
    if (json)
      std::cout << nlohmann::json{{"second", second},
                                  {"stolen", state.stolen},
                                  {"lost_fraction", state.lost_fraction},
                                  {"probe_per_s", state.probe_per_s}};
    else
      std::cout << fmt::format("{:6}  {:5.1f}%  {:14.1f}%  {:9.0f}/s  {:17.0f}%", second,
                               100.0 * state.stolen, 100.0 * state.lost_fraction, state.probe_per_s,
                               100.0 * state.probe_per_s / best);
    std::cout << std::endl;
  }
  return ExitCode::kDone;
}

ExitCode run(const po::variables_map& values) {
  const int seconds = int_option(values, "seconds", 0);
  const bool watch = flag_option(values, "watch"), json = flag_option(values, "json");
  if (seconds > 0 && !watch) throw UsageError("--seconds requires --watch");
  if (watch) return watch_machine(seconds, json);
  const std::vector<Finding> findings = examine_machine();
  if (json) {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [what, verdict, found, remedy] : findings)
      all.push_back({{"what", what}, {"verdict", to_text(verdict)}, {"found", found}, {"remedy", remedy}});
    std::cout << all.dump(1) << '\n';
    return ExitCode::kDone;
  }
  Table table({"what", "verdict", "found"});
  std::string remedies;
  for (const auto& [what, verdict, found, remedy] : findings) {
    table.add({what, to_text(verdict), found});
    if (!remedy.empty()) remedies += fmt::format("  {}: {}\n", what, remedy);
  }
  std::cout << table.text() << (remedies.empty() ? "\nNothing to correct.\n" : "\nTo correct:\n" + remedies);
  return ExitCode::kDone;
}

const Registration<Command> kDoctor{commands(), "doctor", {.run = run}, 1};

}  // namespace
}  // namespace stepcast::doctor_command

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/enum_table.hpp"
#include "core/specification.hpp"
#include "core/units.hpp"

/// Failure data: what interrupts or slows down a training, how often, and what it needs.
namespace stepcast {

/// What a rate counts: a rate of a `run` is that of the whole job, whatever its size.
enum class FailureUnit : std::uint8_t { kDevice, kHost, kRack, kSwitch, kRun };
inline constexpr auto kFailureUnits = enum_names<FailureUnit>("device", "host", "rack", "switch", "run");

enum class FailureEffect : std::uint8_t {
  kRestart,  ///< transient: the same hosts restart
  kRepair,   ///< hosts are replaced by spares, or wait for their repair; what their memory held is lost
  kPlanned,  ///< announced: the training writes a checkpoint before it stops
  kSlow,     ///< a host is slow for a while, and the training with it
};
inline constexpr auto kFailureEffects = enum_names<FailureEffect>("restart", "repair", "planned", "slow");

struct FailureComponent {
  std::string name;
  FailureUnit per = FailureUnit::kDevice;
  FailureEffect effect = FailureEffect::kRestart;
  double per_s = 0.0;       ///< events of one unit per second
  double count = 0.0;       ///< observed events, from which the rate follows; 0: the rate is stated
  double at_most = 0.0;     ///< units beyond these add no events; 0: all count
  int hosts = 1;            ///< of a rack; hosts that one event takes
  Seconds lasts{0};         ///< mean repair, planned stop, or slow episode; 0 s: unknown repair, no stop
  double slowdown = 0.0;    ///< of a slow host: fraction of the training's rate
  Seconds detection{-1.0};  ///< below 0 s: that of the recovery
  Seconds outage{0};        ///< from the failure to the next step; 0 s: the sum of the recovery's parts
};

/// Times from a failure to the next step, by the names of files and options. `per_rank` is initialisation for
/// each rank; the load of the checkpoint is added.
using Recovery = std::map<std::string, Seconds>;
/// Sets a part. \throws InputError for an unknown part, or a time without unit
void set_part(Recovery& recovery, const std::string& part, const std::string& time);

struct FailureSet {
  std::string name;
  std::string source{};
  std::vector<std::string> assumes{};
  std::vector<FailureComponent> components{};
  Recovery recovery{{"detection", Seconds(60)},  {"diagnosis", Seconds(120)},     {"scheduling", Seconds(60)},
                    {"per_rank", Seconds(0.02)}, {"initialisation", Seconds(60)}, {"warm_up", Seconds(30)}};
};

/// Loads failure data:
///
///     NAME or FILE.yaml      a shipped or own file
///     mtbf=3h                mean time between failures of the job, after which its hosts restart;
///                            mtbf=50000h/device of each device, or /host, with which the host leaves
///     FILE.csv               log of interruptions, see failures_of_log()
///
/// A file has `components`, each with `name`, `per`, `effect`, and `count` (with the file's `observed:
/// {devices: 16384, hosts: 2048, time: 54d}`) or `rate: 6.5/1000 per host-day`. \throws InputError that names
/// file, line and key
FailureSet load_failures(const std::string& text);

/// Lower and upper bound at level 90 % of a rate that follows from a count, over the rate. \pre count > 0
std::pair<double, double> count_interval(double count);

}  // namespace stepcast

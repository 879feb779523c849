#pragma once

#include <limits>
#include <unordered_map>
#include <vector>

#include "sim/kineto/names.hpp"
#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// Whose an operation is: the model's, or the strategy's.
enum class Owner : std::uint8_t { kModel, kCopies, kCollective, kBlocked };

/// Where a call on a CPU thread belongs.
struct Place {
  int step = -1;
  StepPart part = StepPart::kRest;
  Owner owner = Owner::kModel;
  int operation = -1;  ///< of the step; -1: none
  int call = -1;       ///< of the step's collectives; -1: none
};

/// A launch on a CPU thread.
struct HostLaunch {
  Place place{};
  double time = std::numeric_limits<double>::lowest();
};
/// By correlation; of several with one number the last.
using HostLaunches = std::unordered_map<int, HostLaunch>;

/// The last step that began before.
int step_at(const std::vector<ProfiledStep>& steps, double time);

/// Follows the CPU threads of a profile, and gives each moment and each launch its place. Time between two
/// operations counts for the later one: Python's, mostly.
///
/// - forward: differentiable operations of the main thread before the last autograd node of the step
/// - backward: inside `autograd::engine::evaluate_function`, on any thread; its operation is the one that
///   created the node with this sequence number. `AccumulateGrad` has none: it follows its node.
/// - optimizer: `Optimizer.step#`, and what the main thread runs between the backward and it (clipping); of
///   one around a closure with the backward, what follows that
/// - input: `enumerate(DataLoader)`, and what runs before the first operation of the forward
/// \param steps names and times of the host's steps, in order; filled
HostLaunches sweep_host(const KinetoFile& file, const std::vector<NameKind>& kinds, int main_track,
                        std::vector<ProfiledStep>& steps);

}  // namespace stepcast

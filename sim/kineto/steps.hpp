#pragma once

#include <map>
#include <utility>

#include "sim/kineto/device_times.hpp"

/// Where the training steps of a profile begin and end, and which of them count.
namespace stepcast {

/// Begins of events by kind, sorted.
using EventBegins = std::map<NameKind, std::vector<double>>;

/// A GradScaler's update counts as the optimizer's, which it may have skipped.
EventBegins begins_of(const KinetoFile& file, const std::vector<NameKind>& kinds);

/// Steps, and the thread that they run on; -1: none. They are those of `ProfilerStep#`. Without these, or if
/// they begin between forward and backward, a step lasts from the end of one `Optimizer.step#` to the end of
/// the next after a backward; of one alone, from the thread's first event. Updates inside nodes are no ends.
std::pair<int, std::vector<ProfiledStep>> steps_of(const KinetoFile& file, const std::vector<NameKind>& kinds,
                                                   EventBegins& begins, std::vector<std::string>& notes);

/// Leaves out steps that lack events of the device, as the file was cut or the profiler lost them: those with
/// 5 % fewer than another or with fewer calls of NCCL that ended, and those whose calls, forward or update
/// have none. If all steps of a whole file lack some, they stay.
void drop_cut_steps(const KinetoFile& file, const DeviceReport& device, std::vector<ProfiledStep>& steps,
                    std::vector<std::string>& notes);

/// Leaves out steps without a backward, those that took much longer than others with as many gradients, and
/// those with the gradients and updates of several steps.
void drop_steps(EventBegins& begins, const DeviceReport& device, std::vector<ProfiledStep>& steps,
                std::vector<std::string>& notes);

/// Reports steps with several updates that follow backwards of their own.
void note_updates(EventBegins& begins, const ProfiledStep& step, std::vector<std::string>& notes);

}  // namespace stepcast

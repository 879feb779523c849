#pragma once

#include "sim/kineto/rank_profile.hpp"

namespace stepcast {

/// The collective that an event of a CPU thread calls; without a `kind` for barriers and waits.
/// \param index of KinetoFile::events
ProfiledCollective called_collective(const KinetoFile& file, int index);

}  // namespace stepcast

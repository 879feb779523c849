#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runner/backend/backend.hpp"

namespace stepcast {

/// PyTorch's ProcessGroupGloo over all ranks of the job, with connections of its own beside those of a
/// Backend, over the same interface, and with c10d's default of two communication threads. Every rank calls
/// it, once per store. \throws RunError when the ranks cannot be connected
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const BackendConfig& place);

}  // namespace stepcast

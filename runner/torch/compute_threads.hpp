#pragma once

namespace stepcast {

/// Sets the number of compute threads of this process, and takes the work that LibTorch does at its first
/// use. Includes no LibTorch. \pre the environment says the same, see `require_thread_environment`
void set_compute_threads(int threads);

}  // namespace stepcast

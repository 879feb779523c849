#pragma once

namespace stepcast {

/// What of stepcast-runner is built on LibTorch is a library of its own beside the program,
/// libstepcast-torch.so, loaded when it is first asked for: LibTorch takes half a second of processor time to
/// load, which launchers, virtual clusters, benches of communication and replayed compute need not pay. It
/// enters what it has into the registries of runner/control and runner/engine. \throws CapabilityError when
/// it is not there or cannot be loaded
void load_torch_library();

/// The function of this name in the loaded library or one that it needs (LibTorch, its BLAS), nullptr where there is none.
void* torch_symbol(const char* name);

}  // namespace stepcast

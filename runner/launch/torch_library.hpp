#pragma once

namespace stepcast {

/// Loads libstepcast-torch.so, the part of stepcast-runner that uses LibTorch. LibTorch takes half a second
/// of CPU time to load, which launchers, virtual clusters, benches of communication and replayed compute do
/// not need. The library adds its entries to the registries of runner/control and runner/engine. \throws
/// CapabilityError if it cannot be loaded
void load_torch_library();

/// The function of this name in the loaded library or one that it needs (LibTorch, its BLAS), nullptr if
/// there is none.
void* torch_symbol(const char* name);

}  // namespace stepcast

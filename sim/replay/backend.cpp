#include "sim/replay/backend.hpp"

#include "core/error.hpp"

namespace stepcast {

std::string backend_for(const std::string& asked, const Calibration* calibration, const Cluster& cluster) {
  if (!asked.empty() && asked != "gloo" && asked != "nccl")
    throw UsageError(unknown_name("backend", asked, {"gloo", "nccl"}));
  if (calibration != nullptr) {
    if (!asked.empty() && asked != calibration->backend)
      throw UsageError("--backend " + asked + " goes without a calibration of " + calibration->backend);
    if (asked.empty() && calibration->backend != "nccl" && cluster.has_devices())
      throw UsageError("cluster '" + cluster.specification + "' has GPUs, whose ranks talk NCCL, but the " +
                       "calibration is of " + calibration->backend + "; leave it out, or say --backend " +
                       calibration->backend);
    return calibration->backend;
  }
  if (!asked.empty()) return asked;
  return cluster.has_devices() ? "nccl" : "";
}

}  // namespace stepcast

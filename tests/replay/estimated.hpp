#pragma once

#include <string>

#include "models/execution.hpp"
#include "sim/replay/device_estimate.hpp"

/// Models and their estimated costs, with options that change kernels and what runs beside them.
namespace stepcast::estimated {

inline const std::string kMoe = "moe:layers=2,hidden=1024,heads=8,feed_forward=2048,sequence=2048";
inline const std::string kLlama =
    "llama:layers=4,hidden=4096,heads=32,kv_heads=8,feed_forward=14336,sequence=4096";

inline Model model_of(const std::string& name, const Execution& execution,
                      const std::string& precision = "bf16", bool transposes = true) {
  Model model = in_precision(load_model(name), Precision::parse(precision), true, transposes);
  apply(execution, model);
  return model;
}

inline PhaseCosts costs_of(const std::string& name, const Execution& execution,
                           const std::string& device = "h100-sxm", const std::string& precision = "bf16") {
  return estimated_costs(model_of(name, execution, precision), device_model(device), 2, 1);
}

}  // namespace stepcast::estimated

#include "runner/engine/torch_engine.hpp"

#include "core/error.hpp"
#include "runner/launch/torch_library.hpp"

namespace stepcast {

void require_trained(const Precision& precision, bool on_gpu) {
  const std::string asked = "--precision " + to_text(precision);
  if (!on_gpu && precision.compute != "fp32" && precision.compute != "bf16")
    throw CapabilityError(asked + " requires --device cuda: on CPUs models are trained in fp32 and bf16");
  if (precision.products != "none")
    throw CapabilityError(
        asked +
        " is forecast, by 'stepcast predict --device', and not trained: nothing here multiplies in float8");
  Precision standard = Precision::parse(precision.compute);
  if (!on_gpu && precision.reduction == "bf16") standard.reduction = "bf16";
  if (precision == standard) return;
  throw CapabilityError("{}: models are trained in {}", asked,
                        on_gpu ? "fp32, tf32, bf16 and fp16 as they are, without other parts"
                               : "fp32 and bf16, with reduction=bf16 as the only part that may differ");
}

Registry<TorchEngine>& torch_engines() {
  static Registry<TorchEngine> registry("LibTorch engine");
  return registry;
}

const TorchEngine& torch_engine() {
  if (torch_engines().entries().empty()) load_torch_library();
  return torch_engines().entries().front().value;
}

}  // namespace stepcast

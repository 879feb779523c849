#include "models/execution.hpp"

#include <algorithm>
#include <sstream>

#include "core/error.hpp"
#include "core/table.hpp"
#include "models/model.hpp"

namespace stepcast {

const std::vector<ExecutionOption>& execution_options() {
  static const std::vector<ExecutionOption> kOptions{
      {"attention",
       &Execution::attention,
       {"flash2", "flash3", "flash4", "cudnn", "ck"},
       "kinds of fused attention in order of preference, as cudnn+flash2; the first one counts that has "
       "rates on "
       "the device"},
      {"experts",
       &Execution::experts,
       {"loop", "streams", "grouped"},
       "GEMMs of experts: loop, one after the other; streams, side by side with a launch for each "
       "(Transformer "
       "Engine); grouped, one kernel"},
      {"graph",
       &Execution::graph,
       {"none", "layer", "full"},
       "kernels that CUDA graphs launch: none; layer, those of blocks without their experts; full, those of "
       "forward and backward"},
  };
  return kOptions;
}

std::vector<std::string> choices_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '+');) parts.push_back(part);
  return parts;
}

void set_execution(const ExecutionOption& option, const std::string& text, Execution& execution) {
  const std::vector<std::string> parts = choices_of(text);
  for (const std::string& part : parts)
    if (std::ranges::find(option.known, part) == option.known.end())
      throw InputError(unknown_name("value", part, option.known));
  if (parts.empty()) throw InputError("a value is missing; known are {}", joined(option.known));
  execution.*option.member = text;
}

std::string to_text(const Execution& execution) {
  std::vector<std::string> changed;
  for (const ExecutionOption& option : execution_options())
    if (execution.*option.member != Execution().*option.member)
      changed.push_back(option.name + " " + execution.*option.member);
  return joined(changed, ", ");
}

/// The first kernel of a layer that is captured stands for the launch of its graph.
void apply(const Execution& execution, Model& model) {
  model.execution = execution;
  const auto capture = [&](LayerWork& work, bool& first) {
    for (Kernel& kernel : work.kernels) {
      kernel.captured = execution.graph == "full" || (execution.graph == "layer" && !first);
      first = false;
    }
  };
  for (Segment& segment : model.segments) {
    bool first = true;
    for (std::vector<LayerWork>* works : {&segment.work, &segment.recomputed.work})
      for (LayerWork& work : *works) {
        for (Kernel& kernel : work.kernels)
          if (const Gemm* gemm = kernel.gemm();
              gemm != nullptr && gemm->times > 1.0 && execution.experts == "grouped") {
            kernel.launches = 1;
            kernel.backward_launches = std::min(kernel.backward_launches, 2);
          }
        if (execution.graph == "full" || (segment.repeated && !work.has_router())) capture(work, first);
      }
  }
}

}  // namespace stepcast

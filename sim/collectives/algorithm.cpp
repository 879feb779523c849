#include "sim/collectives/algorithm.hpp"

namespace stepcast {

Registry<Algorithm>& algorithms() {
  static Registry<Algorithm> registry("collective algorithm");
  return registry;
}

const Algorithm& algorithm_for(CollectiveKind kind, const std::string& backend) {
  const Algorithm* ideal = nullptr;
  for (const auto& entry : algorithms().entries()) {
    if (entry.thing.kind != kind) continue;
    const std::string name = entry.name.substr(entry.name.find('/') + 1);
    if (!backend.empty() && name.starts_with(backend + "_")) return entry.thing;
    if (ideal == nullptr && name.find('_') == std::string::npos) ideal = &entry.thing;
  }
  if (ideal == nullptr) throw UsageError(std::string("no algorithm for the collective ") + to_text(kind));
  return *ideal;
}

}  // namespace stepcast

#include "sim/strategies/offload.hpp"

#include <cmath>
#include <set>
#include <string>

#include "core/error.hpp"
#include "core/number.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {

int Offload::units(int count) const {
  const int leaving = blocks > 0 ? blocks : static_cast<int>(std::lround(activations * count));
  if (leaving < 1 || leaving > count)
    throw UsageError(
        "--offload {}: a rank has {} blocks or recomputed units; take 1 to {} of them, or a share",
        to_text(*this), count, count);
  return leaving;
}

Offload parse_offload(const std::string& text) {
  Offload offload;
  if (text == "none") return offload;
  std::set<std::string> found;
  for (const std::string& part : parts_of(text, '+')) {
    const std::size_t equals = part.find('=');
    const std::string what = part.substr(0, equals);
    if (!found.insert(what).second) throw UsageError("--offload {}: '{}' is given twice", text, what);
    const bool given = equals != std::string::npos;
    const std::string value = given ? part.substr(equals + 1) : "1.0";
    const auto share = number_in<double>(value);
    const bool is_share = share && *share > 0.0 && *share <= 1.0;
    if (const auto blocks = positive_number(value); what == "activations" && blocks)
      offload.blocks = *blocks;
    else if (what == "activations" && is_share)
      offload.activations = *share;
    else if (what == "optimizer" && is_share)
      offload.optimizer = *share;
    else if (what == "parameters" && (!given || value == "compute"))
      offload.parameters = true, offload.computed = given;
    else
      throw UsageError(
          "--offload {}: '{}' must be activations, optimizer or parameters, joined by +; activations=N of "
          "the first N blocks of a rank, activations=0.5 and optimizer=0.5 of a share, parameters=compute "
          "for shards in the precision of compute",
          text, part);
  }
  if (offload.parameters && found.contains("optimizer"))
    throw UsageError("--offload {}: parameters leave with their whole optimizer; leave optimizer out", text);
  if (offload.parameters) offload.optimizer = 1.0;
  return offload;
}

std::string to_text(const Offload& offload) {
  std::string text;
  const auto add = [&](const std::string& what, double share) {
    if (share <= 0.0) return;
    text += (text.empty() ? "" : "+") + what + (share == 1.0 ? "" : "=" + fmt::format("{}", share));
  };
  if (offload.blocks > 0) text = "activations=" + std::to_string(offload.blocks);
  add("activations", offload.activations);
  add("optimizer", offload.parameters ? 0.0 : offload.optimizer);
  add(offload.computed ? "parameters=compute" : "parameters", offload.parameters ? 1.0 : 0.0);
  return text.empty() ? "none" : text;
}

}  // namespace stepcast

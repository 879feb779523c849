#include "topologies/nccl_parameters.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

/// Effect of a clock on a number.
enum class Scale : std::uint8_t { kTime, kRate, kNone };

/// One number of NcclParameters, as files name it.
struct NcclParameterRow {
  const char* name;
  double NcclParameters::*member;
  const char* unit;
  Scale scale;
};

#define STEPCAST_NCCL_ROW(name, unit, scale) \
  NcclParameterRow{#name, &NcclParameters::name, unit, Scale::scale},
constexpr std::array kParameters{STEPCAST_NCCL_PARAMETERS(STEPCAST_NCCL_ROW)};

struct Generation {
  int from = 0;
  NcclParameters parameters;
};

std::map<std::string, double> numbers(const YamlNode& node) {
  std::map<std::string, double> result;
  for (const auto& [name, value] : entries_of(node)) {
    if (std::ranges::find(NcclParameters::names(), name) == NcclParameters::names().end())
      value.fail(unknown_name("law", name, NcclParameters::names()));
    result[name] = value.number();
    if (!(result[name] >= 0.0)) value.fail("expected at least 0");
  }
  return result;
}

Generation read_generation(const YamlNode& node, const std::map<std::string, double>& shared) {
  node.allow_only({"from", "clock", "times", "set"});
  const double clock = node.at("clock").number();
  if (!(clock > 0.0)) node.at("clock").fail("expected GHz above 0");
  std::map<std::string, double> values;
  for (const NcclParameterRow& one : kParameters)
    values[one.name] = shared.at(one.name) * (one.scale == Scale::kTime   ? 1.0 / clock
                                              : one.scale == Scale::kRate ? clock
                                                                          : 1.0);
  if (node.has("times"))
    for (const auto& [name, factor] : numbers(node.at("times"))) values[name] *= factor;
  if (node.has("set"))
    for (const auto& [name, value] : numbers(node.at("set"))) values[name] = value;
  Generation generation{static_cast<int>(node.at("from").integer()), {}};
  generation.parameters.set(values);
  return generation;
}

std::vector<Generation> read_generations() {
  const YamlNode file = YamlNode::shipped("topologies/devices/nccl.yaml").allow_only({"laws", "generations"});
  const std::map<std::string, double> shared = numbers(file.at("laws"));
  for (const std::string& name : NcclParameters::names())
    if (!shared.contains(name)) file.at("laws").fail("key '{}' is missing", name);
  const YamlNode generations = file.at("generations");
  std::vector<Generation> result = transformed(
      generations.keys(), [&](const auto& name) { return read_generation(generations.at(name), shared); });
  if (result.empty()) generations.fail("expected at least one generation");
  std::ranges::sort(result, {}, &Generation::from);
  return result;
}

}  // namespace

const std::vector<std::string>& NcclParameters::names() {
  static const std::vector<std::string> names =
      transformed(kParameters, [](const NcclParameterRow& one) { return std::string(one.name); });
  return names;
}

const char* NcclParameters::unit(std::size_t index) { return kParameters.at(index).unit; }

void NcclParameters::set(const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) {
    const NcclParameterRow& row = named(kParameters, &NcclParameterRow::name, "law of NCCL", name);
    if (!(value >= 0.0) || (value == 0.0 && row.scale == Scale::kRate))
      throw InputError("law of NCCL '{}': expected {} 0", name, value == 0.0 ? "above" : "at least");
    this->*row.member = value;
  }
}

std::map<std::string, double> NcclParameters::values() const {
  std::map<std::string, double> result;
  for (const NcclParameterRow& one : kParameters) result[one.name] = this->*one.member;
  return result;
}

const NcclParameters& nccl_parameters(int compute_capability) {
  static const std::vector<Generation> generations = read_generations();
  return last_up_to(generations, compute_capability, &Generation::from).parameters;
}

}  // namespace stepcast

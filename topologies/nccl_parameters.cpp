#include "topologies/nccl_parameters.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

/// What a clock does to a number.
enum class Scale : std::uint8_t { kTime, kRate, kNone };

struct LawText {
  const char* name;
  const char* unit;
  Scale scale;
};

constexpr std::array<LawText, kNcclLaws> kTexts{{
    {"launch", "us", Scale::kTime},
    {"ll_hop", "us", Scale::kTime},
    {"ll_fill", "us", Scale::kTime},
    {"ll_fill_hop", "us", Scale::kTime},
    {"ll_blocks", "us", Scale::kTime},
    {"ll_rate", "GB/s", Scale::kRate},
    {"ll128_start", "us", Scale::kTime},
    {"ll128_hop", "us", Scale::kTime},
    {"ll128_reached", "", Scale::kNone},
    {"simple_start", "us", Scale::kTime},
    {"simple_hop", "us", Scale::kTime},
    {"simple_fill", "us", Scale::kTime},
    {"simple_fill_hop", "us", Scale::kTime},
    {"nvls_start", "us", Scale::kTime},
    {"nvls_fill", "us", Scale::kTime},
    {"message_start", "us", Scale::kTime},
    {"message_peer", "us", Scale::kTime},
    {"message_rate", "GB/s", Scale::kRate},
    {"message_first", "KiB", Scale::kNone},
    {"message_fill", "us", Scale::kTime},
    {"local", "", Scale::kNone},
    {"pcie_reached", "", Scale::kNone},
    {"socket_rate", "GB/s", Scale::kNone},
    {"sockets_rate", "GB/s", Scale::kNone},
    {"host_burst", "", Scale::kNone},
}};

struct Generation {
  int from = 0;
  NcclParameters laws;
};

std::map<std::string, double> numbers(const YamlNode& node) {
  std::map<std::string, double> result;
  for (const std::string& name : node.keys()) {
    const YamlNode value = node.at(name);
    if (std::find(NcclParameters::names().begin(), NcclParameters::names().end(), name) ==
        NcclParameters::names().end())
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
  for (const LawText& text : kTexts)
    values[text.name] = shared.at(text.name) * (text.scale == Scale::kTime   ? 1.0 / clock
                                                : text.scale == Scale::kRate ? clock
                                                                             : 1.0);
  if (node.has("times"))
    for (const auto& [name, factor] : numbers(node.at("times"))) values[name] *= factor;
  if (node.has("set"))
    for (const auto& [name, value] : numbers(node.at("set"))) values[name] = value;
  Generation generation{static_cast<int>(node.at("from").integer()), {}};
  generation.laws.set(values);
  return generation;
}

std::vector<Generation> read_generations() {
  const YamlNode file = YamlNode::load(nccl_law_file().string());
  file.allow_only({"laws", "generations"});
  const std::map<std::string, double> shared = numbers(file.at("laws"));
  for (const std::string& name : NcclParameters::names())
    if (!shared.contains(name)) file.at("laws").fail("key '" + name + "' is missing");
  std::vector<Generation> result;
  for (const std::string& name : file.at("generations").keys())
    result.push_back(read_generation(file.at("generations").at(name), shared));
  if (result.empty()) file.at("generations").fail("expected at least one generation");
  std::sort(result.begin(), result.end(),
            [](const Generation& a, const Generation& b) { return a.from < b.from; });
  return result;
}

}  // namespace

const std::vector<std::string>& NcclParameters::names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const LawText& text : kTexts) result.emplace_back(text.name);
    return result;
  }();
  return names;
}

const char* NcclParameters::unit(NcclLaw law) { return kTexts[static_cast<std::size_t>(law)].unit; }

void NcclParameters::set(const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) {
    const auto found = std::find(names().begin(), names().end(), name);
    if (found == names().end()) throw InputError(unknown_name("law of NCCL", name, names()));
    if (!(value >= 0.0)) throw InputError("law of NCCL '" + name + "': expected at least 0");
    values_[static_cast<std::size_t>(found - names().begin())] = value;
  }
}

std::map<std::string, double> NcclParameters::values() const {
  std::map<std::string, double> result;
  for (std::size_t i = 0; i < kNcclLaws; ++i) result[names()[i]] = values_[i];
  return result;
}

std::filesystem::path nccl_law_file() { return home_folder() / "topologies" / "devices" / "nccl.yaml"; }

const NcclParameters& nccl_parameters(int compute_capability) {
  static const std::vector<Generation> generations = read_generations();
  const Generation* found = &generations.front();
  for (const Generation& generation : generations)
    if (generation.from <= compute_capability) found = &generation;
  return found->laws;
}

}  // namespace stepcast

#include "sim/train/failures.hpp"

#include <algorithm>
#include <array>

#include "core/expression.hpp"
#include "core/file.hpp"
#include "core/ranges.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr const char* kExample = "write for example '6.5/1000 per host-day' or '1 per run-week'";

const std::map<std::string, double> kTimeUnits{
    {"hour", 3600.0}, {"day", 86400.0}, {"week", 7 * 86400.0}, {"year", 365.25 * 86400.0}};

/// Reads `6.5/1000 per host-day` into `per_s` and `per`.
void read_rate(const YamlNode& node, FailureComponent& component) {
  const std::string text = node.text();
  const std::size_t per = text.find(" per "), dash = text.find('-', std::min(per, text.size()));
  if (per == std::string::npos || dash == std::string::npos)
    node.fail("rate '{}' has no unit; {}", text, kExample);
  const std::string unit = text.substr(per + 5, dash - per - 5), time = text.substr(dash + 1);
  if (!kTimeUnits.contains(time))
    node.fail("rate '{}': {}; {}", text, unknown_name("time", time, names_of(kTimeUnits)), kExample);
  const auto number = node.placed([&] { return evaluate(text.substr(0, per), {}); });
  if (!number || !(*number >= 0.0)) node.fail("rate '{}' must be at least 0; {}", text, kExample);
  component.per = node.placed([&] { return value_of(kFailureUnits, "unit", unit); });
  component.per_s = *number / kTimeUnits.at(time);
}

/// Reads `count`, whose exposure is that of the file's `observed`.
void read_count(const YamlNode& file, const YamlNode& node, FailureComponent& component) {
  component.count = node.at("count").number();
  if (!(component.count >= 0.0)) node.at("count").fail("expected a count of at least 0");
  component.per = node.placed([&] { return value_of(kFailureUnits, "unit", node.text_or("per", "device")); });
  if (!file.has("observed"))
    node.at("count").fail("needs the file's 'observed: {devices: 16384, hosts: 2048, time: 54d}'");
  const YamlNode observed = file.at("observed");
  observed.allow_only({"devices", "hosts", "racks", "switches", "runs", "time"});
  static const std::array<const char*, 5> kUnits{"devices", "hosts", "racks", "switches", "runs"};
  const double units = observed.at(kUnits.at(static_cast<std::size_t>(component.per))).number();
  const double exposure = units * observed.at("time").seconds().count();
  if (!(exposure > 0.0)) observed.fail("expected numbers and a time above 0");
  component.per_s = component.count / exposure;
}

FailureComponent read_component(const YamlNode& file, const YamlNode& node) {
  node.allow_only({"name", "per", "effect", "count", "rate", "at_most", "hosts", "lasts", "slowdown",
                   "detection", "outage"});
  FailureComponent component{.name = node.at("name").text()};
  if (node.has("rate") == node.has("count")) node.fail("expected one of 'count' and 'rate'");
  if (node.has("rate") && node.has("per")) node.at("per").fail("'rate' contains the unit already");
  node.has("rate") ? read_rate(node.at("rate"), component) : read_count(file, node, component);
  component.effect =
      node.placed([&] { return value_of(kFailureEffects, "effect", node.text_or("effect", "restart")); });
  if (node.has("at_most")) component.at_most = node.at("at_most").number();
  if (node.has("hosts")) component.hosts = static_cast<int>(node.at("hosts").integer());
  if (component.hosts < 1 || component.hosts > 100'000) node.at("hosts").fail("expected 1 to 100000 hosts");
  if (component.per == FailureUnit::kRack && !node.has("hosts")) node.fail("'hosts' of a rack is missing");
  if (component.at_most < 0.0) node.at("at_most").fail("expected a number of at least 0");
  if (node.has("lasts")) component.lasts = node.at("lasts").seconds();
  if (node.has("detection")) component.detection = node.at("detection").seconds();
  if (node.has("outage")) component.outage = node.at("outage").seconds();
  const FailureEffect effect = component.effect;
  const bool slow = effect == FailureEffect::kSlow, planned = effect == FailureEffect::kPlanned;
  const bool takes_hosts = effect == FailureEffect::kRepair && component.per != FailureUnit::kSwitch;
  for (const auto& [key, useless] :
       {std::pair("lasts", effect == FailureEffect::kRestart || (planned && node.has("outage"))),
        {"detection", planned || slow},
        {"outage", slow},
        {"hosts", !takes_hosts && component.per != FailureUnit::kRack}})
    if (useless && node.has(key))
      node.at(key).fail("has no effect with effect '{}' of a {}{}; leave it out",
                        row_of(kFailureEffects, effect).name, row_of(kFailureUnits, component.per).name,
                        node.has("outage") ? " with 'outage'" : "");
  if (slow != node.has("slowdown")) node.fail("effect 'slow', and no other, requires 'slowdown'");
  if (slow && !node.has("lasts")) node.fail("'lasts' of slow episodes is missing");
  if (slow) component.slowdown = node.at("slowdown").number();
  if (!(component.slowdown >= 0.0 && component.slowdown < 1.0))
    node.at("slowdown").fail("expected a fraction from 0 to below 1");
  return component;
}

FailureSet read_failures(const std::string& path) {
  const YamlNode file = YamlNode::load(path);
  file.allow_only({"name", "description", "source", "assumes", "observed", "recovery", "components"});
  FailureSet set{.name = file.at("name").text(), .source = file.text_or("source", "")};
  set.assumes = transformed(file.items("assumes"), &YamlNode::text);
  for (const YamlNode& node : file.items("components")) set.components.push_back(read_component(file, node));
  for (const auto& one : entries_of(file, "recovery"))
    one.second.placed([&] { set_part(set.recovery, one.first, one.second.text()); });
  return set;
}

/// `mtbf=3h`, `mtbf=50000h/device`.
FailureSet failures_of_mtbf(const std::string& text) {
  const std::string value = text.substr(text.find('=') + 1);
  const std::size_t slash = std::min(value.find('/'), value.size());
  const Seconds mtbf = parse_seconds(value.substr(0, slash), "mtbf");
  if (!(mtbf > Seconds(0)))
    throw InputError("mtbf: '{}' must be above 0 s; write for example mtbf=3h", value);
  FailureComponent component{.name = "failures", .per = FailureUnit::kRun, .per_s = 1.0 / mtbf.count()};
  if (slash < value.size()) component.per = value_of(kFailureUnits, "unit", value.substr(slash + 1));
  if (component.per == FailureUnit::kRack || component.per == FailureUnit::kSwitch)
    throw InputError("mtbf: '{}': of device, host or run; racks and switches need a failure file", value);
  return {.name = text, .components = {component}};
}

}  // namespace

void set_part(Recovery& recovery, const std::string& part, const std::string& time) {
  if (!recovery.contains(part))
    throw InputError(unknown_name("part of a recovery", part, names_of(recovery)));
  recovery[part] = parse_seconds(time, part);
}

FailureSet load_failures(const std::string& text) {
  if (text.starts_with("mtbf=")) return failures_of_mtbf(text);
  const Specification given = Specification::parse("failures", text);
  if (given.file.ends_with(".csv")) return failures_of_log(given);
  return read_failures(find_resource("reliability", text, ".yaml").string());
}

}  // namespace stepcast

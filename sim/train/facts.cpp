#include <algorithm>
#include <map>
#include <set>

#include "core/ranges.hpp"
#include "models/model.hpp"
#include "sim/strategies/mesh.hpp"
#include "sim/strategies/strategy.hpp"
#include "sim/train/training.hpp"
#include "topologies/devices.hpp"

namespace stepcast {
namespace {

/// Specification without the degrees of a mesh.
std::string whole_model(const std::string& model) {
  const Specification given = Specification::parse("model", model);
  std::string text = given.file;
  for (const auto& [key, value] : given.overrides) {
    const auto degrees = ModelParallel{}.degrees();
    if (std::ranges::any_of(degrees, [&](const auto& degree) { return key == degree.first; })) continue;
    text += (text == given.file ? ":" : ",") + key + "=" + value;
  }
  return text;
}

}  // namespace

HostFacts host_facts(const Cluster& cluster) {
  HostFacts facts{.storage = cluster.storage};
  const Host& host = cluster.hosts.front();
  const int all = std::max(1, static_cast<int>(host.devices.size()));
  facts.devices = host.tray > 0 ? std::min(host.tray, all) : all;
  const double part = 1.0 * facts.devices / all;
  facts.memory = part * host.memory;
  facts.storage.host_rate = part * facts.storage.host_rate;
  std::map<int, std::set<int>> at_switch;
  for (const Link& link : cluster.links)
    for (const auto& [at, from] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
      const Node &a = cluster.node(at), &b = cluster.node(from);
      if (a.kind == NodeKind::kSwitch && b.host >= 0) at_switch[at].insert(b.host);
      if (a.kind == NodeKind::kSwitch && b.host == 0) facts.to_network += part * link.bandwidth;
      const bool below = b.kind == NodeKind::kDevice || b.kind == NodeKind::kPcieSwitch;
      if (a.kind == NodeKind::kSocket && b.host == 0 && below) facts.to_memory += part * link.bandwidth;
    }
  for (const auto& [node, hosts] : at_switch) {
    facts.at_switch = std::max(facts.at_switch, static_cast<int>(static_cast<double>(hosts.size()) / part));
    facts.switches += hosts.contains(0) ? 1 : 0;
  }
  return facts;
}

Bytes state_bytes(const std::string& model, const std::string& precision) {
  Model whole = load_model(whole_model(model));
  whole.precision = Precision::parse(precision);
  const auto count = static_cast<double>(whole.parameter_count());
  const auto trained = static_cast<double>(whole.trained_count());
  const double muon_count =
      sum_of(whole.parameters, [&](const Parameter& one) { return whole.muon_elements(one); });
  return Bytes(count * bytes_of(whole.precision.parameters)) + whole.optimizer_bytes(trained, muon_count);
}

TrainingFacts training_facts(const Result& result) {
  const Configuration& run = result.configuration;
  TrainingFacts facts{.text = run.model + (run.model.empty() ? "" : ", ") + run.label,
                      .ranks = run.world_size,
                      .cluster = run.cluster};
  facts.step_s = result.median_step_time_s();
  facts.samples_per_step = 1.0 * run.batch * run.data_parallel;
  const auto option = [&](const std::string& name, const std::string& otherwise) {
    const auto found = run.options.find(name);
    return found == run.options.end() || found->second.empty() ? otherwise : found->second;
  };
  const bool trains = !strategies().has(run.strategy) || strategies().find(run.strategy).trains;
  if (!trains || option("forward-only", "") == "yes") throw UsageError("'{}' is no training", run.label);
  const std::string text = option("mesh", "");
  const Mesh mesh = text.empty() ? Mesh() : Mesh::parse(text);
  const int experts = mesh.size("expert") * mesh.size("expert_tensor");  // ranks that hold all of them
  const auto with_experts = [&](int copies, int ranks) {                 // copies of so many ranks each
    return std::max(1, copies * ranks / std::max(ranks, experts));
  };
  const int layers = mesh.size("tensor") * mesh.size("context");
  facts.replicas = facts.full_copies = with_experts(run.data_parallel, layers);
  if ((run.strategy == "fsdp" && option("sharding", "") != "no_shard") || mesh.size("shard") > 1)
    facts.full_copies = with_experts(mesh.size("data"), layers * mesh.size("shard"));
  if (option("zero", "0") != "0") facts.full_copies = 1;
  try {
    if (!run.model.empty()) {
      facts.tokens_per_sample = load_model(whole_model(run.model)).tokens_per_sample();
      facts.state = state_bytes(run.model, option("precision", "fp32"));
    }
  } catch (const InputError&) {  // the trace of an imported profile describes the model
    std::map<std::string, std::string> paths;
    for (const Ancestor& one : result.lineage) paths[one.role] = one.path;
    if (!paths.contains("trace") || paths["trace"] != paths["model"]) throw;
  }
  for (const auto& [name, note] : result.notes)
    if (note.ends_with("the step does not fit")) facts.warnings.push_back(name + ": " + note);
  if (!run.device.empty()) facts.power = device_model(run.device).power;
  if (!run.cluster.empty()) facts.host = host_facts(load_cluster(run.cluster));
  const auto index = [&](const char* name, int rank) { return mesh.has(name) ? mesh.index(name, rank) : 0; };
  const bool placed = mesh.has("data") || mesh.has("shard");
  const int samples = placed ? mesh.size("data") * mesh.size("shard") : std::max(1, run.data_parallel);
  for (int* copies : {&facts.replicas, &facts.full_copies}) {
    std::set<int> touched;  // that the loss of a host stops
    for (int rank = 0; rank < std::min(facts.host.devices, run.world_size); ++rank) {
      const int sample = placed ? index("data", rank) * mesh.size("shard") + index("shard", rank) : rank;
      touched.insert(sample * *copies / samples);
    }
    const auto lost = static_cast<int>(touched.size());
    *copies = (*copies + lost - 1) / lost;
  }
  return facts;
}

}  // namespace stepcast

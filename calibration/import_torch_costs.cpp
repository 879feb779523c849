#include <filesystem>
#include <nlohmann/json.hpp>

#include "calibration/fit.hpp"
#include "core/importer.hpp"
#include "core/load.hpp"
#include "core/statistics.hpp"
#include "core/table.hpp"

/// Imports costs of PyTorch's own Gloo, measured by studies/pytorch/costs.py, as a calibration.
namespace stepcast {
namespace {

bool is_torch_costs(const std::string& head) { return head.find("\"torch_costs\"") != std::string::npos; }

/// Samples of one probe and size. \throws nlohmann::json::exception
SampleSet sample_set(const nlohmann::json& json) {
  SampleSet set{.probe = json.at("probe"),
                .bytes = json.at("bytes"),
                .time_s = json.at("time_s"),
                .cpu_s = json.at("cpu_s")};
  if (set.probe == "ping_pong" || set.probe == "exchange") set.path_class = kSameHost;
  if (set.time_s.empty() || set.cpu_s.size() != set.time_s.size())
    throw InputError("probe '{}' of {} B: expected as many cpu_s as time_s, at least one", set.probe,
                     set.bytes);
  for (const std::vector<double>* samples : {&set.time_s, &set.cpu_s})
    for (const double sample : *samples)
      if (!(sample >= 0.0))
        throw InputError("probe '{}' of {} B: found {}, expected times of at least 0", set.probe, set.bytes,
                         sample);
  return set;
}

Imported import_torch_costs(const std::vector<std::string>& paths, const ImportTexts& /*options*/) {
  const std::string& path = paths.front();
  Calibration calibration;
  std::string version;
  const auto read = [&] {
    const nlohmann::json json = parse_json_file(path);
    version = json.at("torch_costs");
    calibration.job = {.backend = json.at("backend"),
                       .world_size = json.at("world_size"),
                       .ranks_on_machine = json.at("ranks_on_machine"),
                       .hosts = {},
                       .collectives_in_flight = 2};  // threads of torch's ProcessGroupGloo
    calibration.context.cores = json.at("cores");
    for (const nlohmann::json& each : json.at("samples")) calibration.samples.push_back(sample_set(each));
  };
  of_json(path + ": is not what costs.py writes", [&] { of_file(path, read); });
  fit_calibration(calibration);
  if (calibration.paths.empty()) throw InputError("{}: has no probe 'ping_pong'", path);
  if (const std::string problem = calibration.problem(); !problem.empty())
    throw InputError("{}: {}", path, problem);
  calibration.lineage.push_back(make_ancestor("costs of torch.distributed", std::filesystem::path(path)));
  Imported imported{.text = nlohmann::json(calibration).dump(), .schema = kCalibrationSchema};
  const PathCost& messages = calibration.paths.front();
  imported.understood.push_back(fmt::format(
      "costs of Gloo in torch {} between {} ranks of one machine: latency {}, {} per MiB sent and received",
      version, calibration.job.world_size, to_text(messages.latency.at(Bytes(messages.smallest_bytes))),
      to_text(2.0 * messages.gap.at(Bytes(1048576.0)))));
  imported.understood.push_back(fmt::format("computing beside another rank runs at {} of its rate alone",
                                            percent_text(calibration.sharing.rate_beside_compute, 0)));
  imported.ignored = calibration.warnings;
  return imported;
}

const Registration<Importer> kTorchCosts{importers(), "torch-costs", {is_torch_costs, import_torch_costs}, 6};

}  // namespace
}  // namespace stepcast

#include "sim/replay/device_notes.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ranges>

#include "core/error.hpp"
#include "core/load.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/yaml.hpp"
#include "models/layer.hpp"
#include "sim/replay/dispatch.hpp"
#include "sim/replay/kernels.hpp"
#include "sim/replay/memory.hpp"

namespace stepcast {
namespace {

std::filesystem::path device_error_file() {
  return home_folder() / "calibration" / "data" / "device-errors.json";
}

}  // namespace

STEPCAST_JSON_REQUIRED(DeviceError, device, model, strategy, cluster, world_size, batch, predicted_s,
                       measured_s, source, remark)

std::string estimate_note(const Precision& precision, const DeviceModel& device) {
  const std::string scope = precision.scope == "both"     ? "blocks"
                            : precision.scope == "linear" ? "linear layers"
                                                          : "experts";
  return "ESTIMATE, nothing was measured: " + device_dtype(precision.compute) +
         (precision.products == "none" ? "" : ", GEMMs of " + scope + " in " + precision.products) + " at " +
         percent_text(device.estimate.compute_efficiency, 0) + " of the peak rate, " +
         percent_text(device.estimate.memory_efficiency, 0) +
         " of the memory bandwidth, kernel launches; no host time, no loading" +
         (device.gpu && !device.has_kernels()
              ? "; shapes of kernels are not heeded, nobody measured them here"
              : "");
}

std::string assumed_note(const Model& model, const DeviceModel& device) {
  std::vector<std::string> lines;
  if (device.has_kernels() && model.has_kernel(&Kernel::attention))
    lines.push_back("attention is " + attention_kind(device, model.execution.attention, &model));
  if (!lines.empty() && lines.back().ends_with("fp8"))
    lines.back() += ", the casts of whose operands cost nothing";
  if (const Recipe* recipe = recipe_of(model.precision.products); recipe && recipe->rates != recipe->name)
    lines.push_back(fmt::format("GEMMs in {} are as fast as in {}", recipe->name, recipe->rates));
  if (model.input.documents > 0) lines.push_back("all documents are equally long");
  if (model.has_experts()) {
    const double most = model.parallel.expert > 1
                            ? static_cast<double>(value_or(model.settings, "imbalance", 100)) / 100.0
                            : 1.0;
    lines.push_back(most == 1.0 ? "routing is even"
                                : fmt::format("the fullest rank has {:.2f} times the mean tokens", most));
  }
  if (model.has_kernel([](const Kernel& kernel) { return kernel.is(KernelRole::kScan); }))
    lines.push_back(device.has_kernels()
                        ? fmt::format("scans of state-space layers reach {:.0f} % of the rate of other "
                                      "memory-bound kernels (kernels were measured on an H100 alone)",
                                      100.0 * device.kernels.scans)
                        : "scans of state-space layers reach the memory bandwidth of other kernels");
  if (nvlink_domain(model.execution) || model.execution.dispatch_overlap != "none")
    lines.push_back(fmt::format("all-to-alls of tokens take {} multiprocessors", dispatch_blocks(model)));
  if (nvlink_domain(model.execution))
    lines.emplace_back("a dispatcher's registered buffers hold the tokens of all ranks of its NVLink domain");
  if (model.execution.graph != "none") lines.emplace_back("pools of CUDA graphs take 3 GB, in pipelines 10");
  if (nvlink_domain(model.execution) && device.kernels.dispatch.row == Seconds(0))
    lines.push_back("a flexible dispatcher is as fast as an all-to-all, since none was measured on this GPU");
  if (model.execution.dispatch_overlap == "micro-batches")
    lines.push_back(
        fmt::format("another micro-batch hides at most {:.0f} % of all-to-alls", 100.0 * most_hidden(model)));
  if (model.optimizer.muon)
    lines.push_back(std::string("Muon updates weights kernel by kernel, as torch.optim.Muon does") +
                    (model.parallel.tensor > 1 ? ", and each tensor-parallel rank its part alone" : ""));
  if (!device.about.assumed.empty()) lines.push_back(device.about.assumed);
  return joined(lines, "; ");
}

std::vector<DeviceError> device_errors() {
  const nlohmann::json json = load_json(device_error_file(), "stepcast.device-errors/1");
  return of_json(device_error_file().string(),
                 [&] { return json.at("rows").get<std::vector<DeviceError>>(); });
}

std::string known_errors_note(const DeviceModel& device) {
  std::vector<std::string> errors;
  for (const DeviceError& row : device_errors()) {
    if (row.device != device.name) continue;
    const double ratio = row.predicted_s / row.measured_s;
    errors.push_back(fmt::format(
        "{} for {}{}{} ({})",
        ratio < 0.5 ? fmt::format("{} times too fast", std::lround(1.0 / ratio))
                    : signed_percent_text(ratio - 1.0),
        row.model, row.world_size > 1 ? fmt::format(", {} on {}", row.strategy, row.world_size) : "",
        row.remark.empty() ? "" : ", " + row.remark, row.source));
  }
  std::vector<std::pair<double, std::string>> sets;
  for (const auto& [name, set] : entries_of(YamlNode::shipped("studies/measured/accuracy.yaml")))
    if (const std::string on = "on " + device.name; set.has(on))
      sets.emplace_back(set.at(on).number(), set.at(on).text() + " % (" + name + ")");
  std::ranges::sort(sets);
  const char* without = device.specification == device.name ? "" : " without these settings";
  if (!sets.empty())
    errors.push_back(fmt::format("median errors of measured steps{}: {} (docs/measured.md)", without,
                                 joined(std::views::values(sets))));
  return errors.empty() ? "not known on " + device.name + ", no step of which was compared: docs/measured.md"
                        : joined(errors, "; ");
}

std::string fitted_note(const FittedTo& fitted, int ranks) {
  const std::string known = fitted.least_ranks == fitted.most_ranks
                                ? std::to_string(fitted.most_ranks)
                                : fmt::format("{} to {}", fitted.least_ranks, fitted.most_ranks);
  std::string text = fmt::format("to {} steps of {} ranks, cross-validated error {}", fitted.rows, known,
                                 percent_text(fitted.error));
  if (ranks > fitted.most_ranks || ranks < fitted.least_ranks)
    text += "; EXTRAPOLATED: " + std::to_string(ranks) + " ranks are beyond them";
  return text;
}

std::string memory_warning(const Result& result, const DeviceModel& device) {
  if (device.memory <= Bytes(0)) return "";
  const auto largest = std::ranges::max_element(result.memory, {}, &MemoryUse::needed_bytes);
  if (largest == result.memory.end()) return "";
  const double all = device.memory.count(), most = 1.0 - kKeptMemory;
  const double reserved = std::max(largest->reserved_bytes, largest->peak_bytes) / all;
  const double process = largest->needed_bytes() / all;
  const double allocated = process - (reserved - largest->peak_bytes / all);
  if (reserved <= kBarelyReserved && process <= most) return "";
  return fmt::format(
      "rank {} needs {} and reserves about {}, {} holds {}{}", largest->rank,
      to_text(Bytes(largest->peak_bytes)), percent_text(reserved, 0), device.name, to_text(device.memory),
      allocated > most ? ": the step does not fit"
      : process > most ? ": the step fits only if PyTorch's allocator frees what it caches, which is slow"
                       : ": the step fits barely, the whole process takes " + percent_text(process, 0));
}

}  // namespace stepcast

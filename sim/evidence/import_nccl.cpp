#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <tuple>

#include "calibration/nccl_calibration.hpp"
#include "core/importer.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "records/bench.hpp"
#include "sim/evidence/nccl_samples.hpp"
#include "topologies/devices.hpp"

/// Imports measured collectives: of one host as a calibration of NCCL, of several hosts or of AMD's GPUs as a
/// bench file.
namespace stepcast {
namespace {

bool is_measured_collectives(const std::string& head) {
  static const std::regex kRow(
      R"((^|\n)\s*\d+\s+\d+\s+(u?int8|u?int32|u?int64|half|float|double|bfloat16|fp8_e4m3|fp8_e5m2)\s)");
  if (contains_any(head, {"Collective test starting", "algbw", "\"coll_perf\"", "op_name,"})) return true;
  if (contains_any(head, {"\"results\""}) && contains_any(head, {"out_of_place"})) return true;
  constexpr std::size_t kSearched = 10'000;  // std::regex recurses
  return std::regex_search(head.substr(0, kSearched), kRow);
}

NcclHints hints_of(const ImportTexts& options) {
  NcclHints hints{.kind = value_or(options, "collective", "")};
  if (const std::string gpus = value_or(options, "gpus", ""); !gpus.empty()) {
    hints.gpus = number_in<int>(gpus).value_or(0);
    if (hints.gpus < 2) throw UsageError("--gpus: found '{}', expected a whole number of at least 2", gpus);
  }
  return hints;
}

/// Samples of all files, with the notes of their readers.
std::vector<NcclSample> read_all(const std::vector<std::string>& paths, const ImportTexts& options,
                                 Imported& imported) {
  const NcclHints hints = hints_of(options);
  NcclMeasurements measured = read_nccl_samples(paths, hints);
  std::vector<NcclSample>& samples = measured.samples;
  imported.assumed = measured.assumed;
  imported.ignored = measured.ignored;
  if (const auto other = [&](const NcclSample& sample) { return sample.gpus != hints.gpus; };
      hints.gpus > 0 && std::erase_if(samples, other) > 0)
    imported.ignored.push_back(fmt::format("rows of other numbers of GPUs than --gpus {}", hints.gpus));
  if (samples.empty()) throw InputError("{}: has no collective of {} GPUs", paths.front(), hints.gpus);
  return std::move(samples);
}

/// Keeps the samples of one device; the first decides which, unless it is given, as for GPUs that no data
/// sheet knows.
std::string keep_device(const std::string& given, std::vector<NcclSample>& samples, Imported& imported) {
  const std::string wanted = given.empty() ? "" : device_model(given).name;
  std::string device;
  std::set<std::string> taken;
  std::vector<NcclSample> kept;
  for (NcclSample& sample : samples) {
    if (sample.device.empty() && wanted.empty())
      throw InputError("{}: the file does not name its GPUs; set --device", sample.where);
    const bool known = !sample.device.empty() && reported_device(sample.device) != nullptr;
    const std::string name = known || wanted.empty() ? device_of(sample) : wanted;
    if (!wanted.empty() && name != wanted) continue;
    if (!known && !sample.device.empty()) taken.insert(sample.device);
    if (device.empty()) device = name;
    if (name != device)
      throw InputError("{}: is of {}, others are of {}; set --device", sample.where, name, device);
    kept.push_back(std::move(sample));
  }
  if (!kept.empty() && kept.size() < samples.size())
    imported.ignored.push_back(
        fmt::format("{} of other devices than {}", counted(samples.size() - kept.size(), "row"), wanted));
  if (kept.empty())
    throw InputError("{}: the files have no collective of device '{}'", samples.front().where, wanted);
  for (const std::string& one : taken)
    imported.assumed.push_back(fmt::format("'{}' is taken for {} (--device)", one, device));
  samples = std::move(kept);
  return device;
}

/// Refuses two times of one size that cannot both be right, for instance of runs with different settings.
void refuse_contradictions(const std::vector<NcclSample>& samples) {
  constexpr double kMostDifference = 0.2;
  std::map<std::tuple<CollectiveKind, int, int, std::string, double>, const NcclSample*> first;
  for (const NcclSample& sample : samples) {
    const auto [found, is_new] = first.try_emplace(
        {sample.kind, sample.gpus, sample.hosts, sample.dtype, sample.message.count()}, &sample);
    const double ratio = sample.time / found->second->time;
    if (is_new || std::max(ratio, 1.0 / ratio) <= 1.0 + kMostDifference) continue;
    throw InputError(
        "{} and {}: two times of one collective of {} GPUs and {} differ by more than 20 %, {} and {}; "
        "import runs with different settings apart",
        found->second->where, sample.where, sample.gpus, to_text(sample.message),
        to_text(found->second->time), to_text(sample.time));
  }
}

std::string sizes_text(const std::vector<NcclSample>& samples) {
  std::set<std::string> kinds;
  for (const NcclSample& sample : samples) kinds.insert(to_text(sample.kind));
  const auto [least, most] = std::ranges::minmax(samples, {}, &NcclSample::message);
  return fmt::format("{} of {}, {} to {}", counted(samples.size(), "row"), joined(kinds),
                     to_text(least.message), to_text(most.message));
}

/// \param file that was made of `paths`
void set_text(Imported& imported, const char* schema, auto file, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) file.lineage.push_back(make_ancestor("measured collectives", path));
  imported.schema = schema;
  imported.text = nlohmann::json(file).dump();
}

void make_calibration(const std::vector<std::string>& paths, const std::string& device,
                      const std::vector<NcclSample>& samples, Imported& imported) {
  const Calibration calibration = nccl_calibration(device, samples);
  imported.assumed.push_back(assumed_connection(device));
  set_text(imported, kCalibrationSchema, calibration, paths);
  for (const std::string& line : split(fit_text(calibration.nccl, samples)))
    imported.understood.push_back(line);
  for (const std::string& warning : calibration.warnings)
    imported.understood.push_back("warning: " + warning);
}

void make_bench(const std::vector<std::string>& paths, const std::vector<NcclSample>& samples,
                Imported& imported) {
  Bench bench;
  bench.backend = "nccl";
  bench.world_size = samples.front().gpus;
  std::set<std::string> sizes;
  double fastest = 0.0;
  for (const NcclSample& sample : samples) {
    sizes.insert(fmt::format("{} GPUs on {}", sample.gpus, counted(sample.hosts, "host")));
    BenchRow row{.collective = to_text(sample.kind),
                 .message_bytes = sample.message.count(),
                 .time_s = {sample.time.count()}};
    fastest = std::max(fastest, algbw_bytes_per_s(row) * bus_factor(row.collective, sample.gpus));
    const auto same = std::ranges::find_if(bench.rows, [&](const BenchRow& other) {
      return other.collective == row.collective && other.message_bytes == row.message_bytes;
    });
    if (same == bench.rows.end())
      bench.rows.push_back(std::move(row));
    else  // of another dtype, or measured again
      same->time_s.push_back(sample.time.count());
  }
  if (sizes.size() > 1)
    throw InputError(
        "{}: the rows are of {}; --gpus selects a number of GPUs, and files can be imported apart",
        samples.front().where, joined(sizes, " and "));
  set_text(imported, kBenchSchema, bench, paths);
  imported.understood.push_back(fmt::format(
      "a measurement of {} GPUs on {}, which becomes a bench file for 'stepcast compare'; largest busbw {}",
      samples.front().gpus, counted(samples.front().hosts, "host"), to_text(BytesPerSecond(fastest))));
}

Imported import_collectives(const std::vector<std::string>& paths, const ImportTexts& options) {
  Imported imported;
  std::vector<NcclSample> samples = read_all(paths, options, imported);
  const std::string device = keep_device(value_or(options, "device", ""), samples, imported);
  refuse_contradictions(samples);
  imported.understood.push_back(sizes_text(samples) + ", on " + device);
  const auto between = [&](const NcclSample& sample) {
    return sample.hosts > 1 || device_model(device).compute_capability == 0;
  };
  if (std::ranges::all_of(samples, between)) {
    make_bench(paths, samples, imported);
    return imported;
  }
  if (const auto apart = std::erase_if(samples, between); apart > 0)
    imported.ignored.push_back(
        fmt::format("{} between hosts; --gpus selects them, for a bench file", counted(apart, "row")));
  make_calibration(paths, device, samples, imported);
  return imported;
}

const Registration<Importer> kNcclTests{
    importers(), "nccl-tests", {is_measured_collectives, import_collectives}, 40};

}  // namespace
}  // namespace stepcast

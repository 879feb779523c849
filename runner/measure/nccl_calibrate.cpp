#include "runner/measure/nccl_calibrate.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// \throws CapabilityError for ranks on several hosts or with different GPUs
void check_place(RankSession& session, const std::string& own) {
  if (const std::size_t hosts = group_by_host(session.place.hosts).size(); hosts > 1)
    throw CapabilityError(
        "calibrate --backend nccl: the ranks are on {} hosts; NCCL's parameters are fitted for the GPUs of "
        "one host: start the ranks on one host",
        hosts);
  const std::vector<std::string> names = session.control->all_gather("gpu", own);
  for (std::size_t rank = 0; rank < names.size(); ++rank)
    if (names[rank] != names.front())
      throw CapabilityError(
          "calibrate --backend nccl: rank {} has a GPU '{}', rank 0 '{}'; a calibration covers one kind: "
          "select GPUs with CUDA_VISIBLE_DEVICES",
          rank, names[rank], names.front());
}

}  // namespace

NcclMeasured calibrate_nccl(RankSession& session, const BenchSettings& settings, const std::string& device,
                            const OnSample& on_sample) {
  const std::string reported = settings.device->device();
  check_place(session, reported);
  NcclSample sample;
  sample.device = reported;
  sample.gpus = session.ranks.world_size;
  sample.dtype = "float";
  sample.where = "this job";
  // Before anything is measured, because an unknown device is an error.
  const std::string name = device_of(sample, device);
  const std::vector<BenchRow> rows = bench_collectives(session, settings, on_sample);
  require_right(rows);
  if (session.ranks.rank != 0) return {};
  NcclMeasured measured;
  std::vector<SampleSet> sets;
  for (const BenchRow& row : rows) {
    sample.kind = value_of(kCollectiveKinds, "collective", row.collective);
    sample.message = Bytes(row.message_bytes);
    sample.time = Seconds(row.median_time_s());
    sample.where = row.collective + " of " + to_text(sample.message);
    if (sample.time <= Seconds(0)) throw RunError(sample.where + " took no time by the device's clock");
    measured.samples.push_back(sample);
    sets.push_back({.probe = row.collective,
                    .bytes = row.message_bytes,
                    .time_s = row.time_s,
                    .cpu_s = row.cpu_s,
                    .machine = row.machine});
  }
  measured.calibration = nccl_calibration(name, measured.samples);
  measured.calibration.samples = std::move(sets);
  return measured;
}

}  // namespace stepcast

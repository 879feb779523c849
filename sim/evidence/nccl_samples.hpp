#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "calibration/nccl_calibration.hpp"

/// Measured collectives of NCCL, as other programs write them.
namespace stepcast {

/// Note for tables of worlds that NCCL_TESTS_SPLIT divides. Their ranks are numbered over all groups.
inline constexpr const char* kSplitWorld = "the table is of the first group; others run at the same time";

/// Names of the forecast collectives in nccl-tests' programs.
inline constexpr std::array<std::pair<const char*, CollectiveKind>, 5> kNcclKinds{
    {{"all_reduce", CollectiveKind::kAllReduce},
     {"all_gather", CollectiveKind::kAllGather},
     {"reduce_scatter", CollectiveKind::kReduceScatter},
     {"alltoall", CollectiveKind::kAllToAll},
     {"broadcast", CollectiveKind::kBroadcast}}};
std::vector<std::string> nccl_kind_names();
/// Kind of `AllReduce`, `all_reduce` and `all_reduce_perf`; none for others.
std::optional<CollectiveKind> nccl_kind(const std::string& name);

/// Facts that a text may lack.
struct NcclHints {
  std::string kind{};  ///< for text that does not name its test: `all_reduce`
  int gpus = 0;        ///< for text that does not list its ranks
};

struct NcclMeasurements {
  std::vector<NcclSample> samples{};
  std::vector<std::string> assumed{}, ignored{};  ///< one sentence each, after `all_reduce.txt: `
};

/// busbw / algbw as the printed digits confine it.
struct BandwidthRatio {
  double least = 0.0, most = 1e9;
  void confine(const std::string& algbw, const std::string& busbw);
  [[nodiscard]] bool known() const { return least > 0.0 && least <= most; }
  [[nodiscard]] double middle() const { return (least + most) / 2.0; }
};

/// Number of GPUs: `stated` unless busbw / algbw contradicts it, then with a note. \param stated 0: unknown
/// \throws InputError if the ratio contradicts it and allows several numbers
std::pair<int, std::string> corrected_gpus(CollectiveKind kind, BandwidthRatio ratio, int stated,
                                           const std::string& where);

/// Listed ranks, by name of their host and by number and PCI address of their GPU.
using RanksOfGpus = std::map<std::pair<std::string, std::string>, std::set<std::string>>;
/// Number of hosts, at least 1. A GPU has one rank, so two ranks on one are on hosts with one name.
int count_hosts(const RanksOfGpus& ranks);

/// Sets the name of a run's GPUs. \throws InputError if they have another one
void set_device(std::string& device, const std::string& name, const std::string& where);

/// Reads files of these kinds, recognised by their content:
///
///     CSV                 columns device, op_name, nccl_dtype, num_gpus, bytes, latency_us, others ignored
///     text of nccl-tests  tables of one or several tests; out of place if that was measured, else in place
///     JSON of nccl-tests  written by `-J FILE`, versions 1 and 2; one or several
///     JSON of Inspector   any number of objects with `header` and `coll_perf`; per call the shortest time
///                         over its ranks in all files, since others waited; per size the median over
///                         equal calls
///
/// Rows of one GPU and of size 0 are left out, of nccl-tests also rows with wrong elements, and cut rows. The
/// number of GPUs of a text is that of its highest rank, unless busbw / algbw contradicts it. \throws
/// InputError that names file, line or key, and what was expected
NcclMeasurements read_nccl_samples(const std::vector<std::string>& paths, const NcclHints& hints = {});

/// The same for the text of nccl-tests; notes have no path.
NcclMeasurements read_nccl_text(const std::string& path, const std::string& text, const NcclHints& hints);

}  // namespace stepcast

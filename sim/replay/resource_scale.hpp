#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/replay/replay.hpp"
#include "topologies/devices.hpp"

namespace stepcast {

/// A factor on one resource of a forecast:
///
///     compute    compute speed: peak rates of an estimated or moved device, else of all that ranks compute
///     rank3      compute speed of one rank; stage0: of the ranks of a pipeline's stage
///     memory     memory bandwidth of an estimated or moved device
///     host       speed at which the launch thread of an estimated GPU launches kernels and collectives
///     endpoints  speed of a calibrated library's endpoints: latency, gap, CPU time, notice
///     pageable   rate at which a host stages copies of pageable memory
///     latency    of all links; divides their latency
///     nvlink, pcie, smp, network1, network2, ... or a link's name: its bandwidth (topologies/link_tiers.hpp)
///
/// NCCL's choices stay as without scales: it tries a dozen speeds, and more of a link would change nothing
/// between them.
struct ResourceScale {
  std::string resource;
  double factor = 1.0;
};
using ResourceScales = std::vector<ResourceScale>;

/// Parses `compute=1.1,network1=2`. \throws UsageError
ResourceScales parse_scales(const std::string& text);
/// Text that `parse_scales` reads.
std::string to_text(const ResourceScales& scales);

/// Pipeline stage by rank, from 0; empty if ranks are not stages.
std::vector<int> stages(const Schedule& schedule);

/// The device with its scales. \param estimated launch overhead is modelled \throws UsageError for a resource
/// that the forecast lacks
DeviceModel scaled_device(const ResourceScales& scales, DeviceModel device, bool estimated);
/// Compute speed by rank; empty if no rank is scaled. \throws UsageError for an unknown rank or stage
std::vector<double> rank_speeds(const ResourceScales& scales, const Schedule& schedule);
/// Scales hosts, links and endpoints. \param device scales of compute, memory and host are in the device
/// already
void scale_environment(const ResourceScales& scales, Cluster& cluster,
                       std::optional<Calibration>& calibration, bool device);

}  // namespace stepcast

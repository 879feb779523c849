#pragma once

#include <string>
#include <vector>

#include "sim/replay/place.hpp"

namespace stepcast {

/// One resource of a prediction, so many times what it is:
///
///     compute    how fast ranks compute: of an estimated or moved device its peak rates, else all that ranks do themselves
///     rank3      the same of one rank, stage0 of the ranks of a pipeline's stage: all that they do themselves
///     memory     memory bandwidth of an estimated or moved device
///     host       how fast the host of an estimated GPU issues kernels and calls
///     endpoints  how fast a calibrated library's endpoints handle messages: latency, gap, processor time, notice
///     pageable   the rate at which a host stages copies of memory that is not pinned
///     latency    of all links, so many times shorter
///     nvlink, pcie, smp, network1, network2, ... or a link's name: its bandwidth (topologies/link_tiers.hpp)
///
/// What NCCL plans stays as it is without: it tries a dozen speeds, between which more of a link would change nothing.
struct ResourceScale {
  std::string resource;
  double factor = 1.0;
};
using ResourceScales = std::vector<ResourceScale>;

/// `compute=1.1,network1=2`. \throws UsageError
ResourceScales parse_scales(const std::string& text);
/// The same text again.
std::string to_text(const ResourceScales& scales);

/// By rank: the stage of a pipeline that it is, from 0; empty where ranks are not stages.
std::vector<int> stages(const Schedule& schedule);

/// Whether rooflines of `device` say how long its ranks compute. \param known times of phases are
bool by_rooflines(const DeviceModel* device, bool known);

/// The device with what the scales change of it. \param estimated its host's issuing is modelled \throws UsageError for
/// what the prediction does not have
DeviceModel scaled_device(const ResourceScales& scales, DeviceModel device, bool estimated);
/// By rank, how many times as fast it is; empty where all are as they were. \throws UsageError for a rank or stage that is
/// none
std::vector<double> rank_speeds(const ResourceScales& scales, const Schedule& schedule);
CopyCosts scaled_copies(const ResourceScales& scales, CopyCosts copies);
/// The same of a place that is loaded. \param device computes by rooflines
void scale_place(const ResourceScales& scales, Place& place, bool device);

}  // namespace stepcast

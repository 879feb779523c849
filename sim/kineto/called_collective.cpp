#include "sim/kineto/called_collective.hpp"

#include <algorithm>

#include "sim/kineto/names.hpp"

namespace stepcast {
namespace {

/// Elements that an all-gather makes of those of one rank: as PyTorch's own call around it has them.
double gathered(const KinetoFile& file, int index, double own) {
  constexpr int kMostBetween = 16;  // events
  const KinetoEvent& event = file.events[index];
  for (int i = index - 1; i >= std::max(0, index - kMostBetween); --i) {
    const KinetoEvent& outer = file.events[i];
    const bool around = outer.track == event.track && outer.end >= event.end;
    if (!around || !file.name(outer).starts_with("c10d::_allgather_base_")) continue;
    if (const auto dims = dims_of(file, outer); !dims.empty()) return elements_of(dims.front());
  }
  return own * std::max(1, file.metadata.world_size);
}

}  // namespace

ProfiledCollective called_collective(const KinetoFile& file, int index) {
  const KinetoEvent& event = file.events[index];
  const std::string& name = file.name(event);
  ProfiledCollective call{.called = event.begin};
  std::vector<std::vector<std::int64_t>> dims = dims_of(file, event);
  if (const auto from = call_of(file, event)) {
    call.kind = collective_kind(from->collective);
    call.dtype = from->dtype;
    call.ranks = from->ranks;
    call.group = from->group;
    call.bytes = call.kind == "all_gather" ? from->out : from->in;
  } else {
    call.kind = collective_kind(name);
    call.dtype = type_of(file, event);
    if (name.starts_with("nccl:") || name.starts_with("gloo:"))
      for (const auto& tensor : dims) call.bytes += elements_of(tensor);
    else if (!dims.empty())
      call.bytes =
          elements_of(dims[name.find("reduce_scatter") != std::string::npos && dims.size() > 1 ? 1 : 0]);
    if (call.kind == "all_gather" && !name.starts_with("c10d::"))
      call.bytes = gathered(file, index, call.bytes);
    if (name.starts_with("gloo:")) call.begin = event.begin, call.end = event.end;
  }
  call.bytes *= element_bytes(call.dtype);
  return call;
}

}  // namespace stepcast

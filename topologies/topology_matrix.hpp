#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "topologies/importer.hpp"

/// What `nvidia-smi topo -m` says of a host, and the host that it must be.
namespace stepcast {

/// How two parts of a host reach each other, in the words of nvidia-smi; those over PCIe from the nearest.
enum class Relation : std::uint8_t {
  kSelf,    ///< X
  kNvLink,  ///< NV#
  kPix,     ///< at most one PCIe switch
  kPxb,     ///< several PCIe switches, not the host bridge
  kPhb,     ///< a host bridge, that is the processor
  kNode,    ///< host bridges of one NUMA node
  kSys,     ///< two NUMA nodes; SOC in old drivers
};
/// `PIX`; `NV` of NVLinks.
const char* to_text(Relation relation);

struct MatrixCell {
  Relation relation = Relation::kSelf;
  int links = 0;  ///< of NV#
  FilePosition place;
};

struct MatrixPart {
  std::string name;  ///< `GPU0`, `NIC0`, `mlx5_0`
  bool gpu = false;
  std::vector<int> cpus{};  ///< CPU Affinity; empty when it says nothing
  int numa = -1;            ///< NUMA Affinity; -1 when it says nothing or names several
  FilePosition place;       ///< of its row
};

/// Symmetric, with X on its diagonal and at least one GPU.
struct TopologyMatrix {
  std::vector<MatrixPart> parts;
  std::vector<std::vector<MatrixCell>> cells;
  bool old_words = false;  ///< SOC stood in it: a driver from before 2017

  [[nodiscard]] const MatrixCell& cell(int row, int column) const {
    return cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)];
  }
  [[nodiscard]] const MatrixPart& part(int index) const { return parts[static_cast<std::size_t>(index)]; }
  [[nodiscard]] int size() const { return static_cast<int>(parts.size()); }
  /// Every two parts, the one that stands first before the other.
  [[nodiscard]] std::vector<std::pair<int, int>> pairs() const;
};

/// Rebuilds the host.
///
/// Sockets are NUMA nodes: parts that are NODE or nearer share one, parts that are SYS do not; where an NV#
/// hides the way over PCIe, the affinity decides. Parts that are PIX hang on one PCIe switch; such switches
/// and single parts that are PXB hang on one more; all else hangs on its socket (PHB and NODE meet in the
/// processor, in which nothing is narrower than PCIe). Sockets are joined pairwise.
///
/// NV# between all pairs alike is an NVSwitch when a GPU has not as many links as direct ones would take, or
/// when two GPUs share 18, which no bridge has; else NV# are direct links. Bandwidths are NCCL's: links x its
/// rate per link of the device, PCIe of 16 lanes. \throws InputError that names file, line and column
Imported host_of_matrix(const TopologyMatrix& matrix, const std::string& file, const ImportOptions& options);

}  // namespace stepcast

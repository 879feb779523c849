#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/enum_table.hpp"
#include "topologies/importer.hpp"

/// The matrix of `nvidia-smi topo -m`, and the host that follows from it.
namespace stepcast {

/// Connection of two parts of a host, in nvidia-smi's terms; those over PCIe in order of distance.
enum class Relation : std::uint8_t {
  kSelf,    ///< X
  kNvLink,  ///< NV#
  kPix,     ///< at most one PCIe switch
  kPxb,     ///< several PCIe switches, not the host bridge
  kPhb,     ///< a host bridge (the processor)
  kNode,    ///< host bridges of one NUMA node
  kSys,     ///< two NUMA nodes; SOC in old drivers
};
inline constexpr auto kRelations = enum_names<Relation>("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS");
constexpr const char* to_text(Relation relation) { return row_of(kRelations, relation).name; }

struct MatrixCell {
  Relation relation = Relation::kSelf;
  int links = 0;  ///< of NV#
  FilePosition place;
};

struct MatrixPart {
  std::string name;  ///< `GPU0`, `NIC0`, `mlx5_0`
  bool gpu = false;
  std::vector<int> cpus{};  ///< CPU Affinity; empty: unknown
  int numa = -1;            ///< NUMA Affinity; -1: unknown or several
  FilePosition place;       ///< of its row
};

/// Symmetric, with X on its diagonal and at least one GPU.
struct TopologyMatrix {
  std::vector<MatrixPart> parts;
  std::vector<std::vector<MatrixCell>> cells;
  std::vector<std::string> ignored{};  ///< text and rows that were not read: one sentence each

  [[nodiscard]] int size() const { return static_cast<int>(parts.size()); }
  /// All pairs of parts, each in order of their rows.
  [[nodiscard]] std::vector<std::pair<int, int>> pairs() const;
};

/// Reconstructs the host.
///
/// Sockets are NUMA nodes: parts that are NODE or nearer share one, parts that are SYS do not; if an NV#
/// hides the path over PCIe, the affinity decides. Parts that are PIX share a PCIe switch; such switches and
/// single parts that are PXB share one more; all others are below their socket (PHB and NODE meet in the
/// processor, where nothing is narrower than PCIe). Sockets are joined pairwise.
///
/// GPUs that NV# connect are a domain. Equal NV# between all pairs of a domain are an NVSwitch if a GPU has
/// fewer links than direct ones would need, or if they are 18 and the domain is larger than a pair or the
/// only one; else NV# are direct links. Bandwidths are NCCL's: links x its
/// rate per link of the device, PCIe of 16 lanes. \throws InputError that names file, line and column
ImportedCluster host_of_matrix(const TopologyMatrix& matrix, const std::string& file,
                               const ImportOptions& options);

}  // namespace stepcast

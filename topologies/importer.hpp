#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/importer.hpp"
#include "core/ranges.hpp"
#include "topologies/cluster.hpp"
#include "topologies/host_parts.hpp"

/// Importers, one file each: turn other tools' description of a machine into a Cluster of one host.
namespace stepcast {

/// Facts that such files do not contain.
struct ImportOptions {
  /// Device of every GPU, a name in topologies/devices/devices.yaml; "": the importer guesses and notes it.
  std::string device;
  /// Between sockets; unset: the importer's value, or a usual one with a note.
  std::optional<BytesPerSecond> smp_bandwidth{};
  int pcie_generation = 0;  ///< 0: the device's
};

struct ImportedCluster {
  Cluster cluster;
  std::vector<std::string> assumed{}, ignored{};  ///< one sentence each
};

/// Reads a text; `file` is its name in errors. \throws InputError that starts with file, line and column and
/// names what was expected; UsageError for an unknown device
using ClusterReader = ImportedCluster (*)(const std::string& text, const std::string& file,
                                          const ImportOptions&);

/// True if a text looks like the format, well-formed or not.
bool is_nvidia_smi(const std::string& text);
bool is_nccl_xml(const std::string& text);
ImportedCluster read_nvidia_smi(const std::string& text, const std::string& file,
                                const ImportOptions& options);
ImportedCluster read_nccl_xml(const std::string& text, const std::string& file, const ImportOptions& options);

/// What a reader makes of the text. The cluster is named after the file. \throws as the reader, and for parts
/// of one name
ImportedCluster import_cluster(ClusterReader reader, const std::string& text, const std::string& file,
                               const ImportOptions& options);

/// Importer::read of one file that becomes a cluster.
decltype(Importer::read) cluster_importer(ClusterReader reader);

/// Why files of AMD GPUs are refused.
inline constexpr const char* kNoXgmi =
    "describes AMD GPUs that xGMI connects, a link that clusters do not model yet; describe the host in a "
    "cluster file";

/// Position in an imported file; both numbers start at 1, columns count bytes.
struct FilePosition {
  std::size_t line = 1, column = 1;
};

/// `topo.txt:3:14: `, and an InputError that starts with it.
std::string at_place(const std::string& file, FilePosition place);
template <class... Values>
[[noreturn]] void fail_at(const std::string& file, FilePosition place, fmt::format_string<Values...> message,
                          Values&&... values) {
  throw InputError(at_place(file, place) + fmt::format(message, std::forward<Values>(values)...));
}

/// The host of an imported file, `node`, under construction.
class ImportedHost {
 public:
  /// \param file its name in errors
  ImportedHost(std::string file, const ImportOptions& options);

  /// Sets the device of every GPU: that of the options, else the only one of `fitting`, which a note reports
  /// with the `reason`. \throws InputError at `place` that lists those that fit, else all GPUs; UsageError if
  /// the option names none
  void choose_device(const std::vector<std::string>& fitting, const std::string& reason, FilePosition place);
  [[nodiscard]] const DeviceModel& device() const { return *device_; }
  /// Adds sockets `node/socket<number>`, every two joined by what the options say, else by `known`, else by
  /// the bandwidth that is usual beside the device, which a note reports. Returns the nodes of what has these
  /// numbers, in their order. \pre not empty
  template <class Thing>
  std::vector<std::pair<int, Thing>> add_sockets(const std::map<int, Thing>& by_number,
                                                 std::optional<BytesPerSecond> known) {
    const auto numbers = transformed(by_number, [](const auto& one) { return one.first; });
    std::vector<std::pair<int, Thing>> result;
    for (const int node : parts.add_sockets(numbers, smp(numbers.size(), known)))
      result.emplace_back(node, by_number.at(numbers[result.size()]));
    return result;
  }

  /// 16 lanes of the options' generation, else of the device's.
  [[nodiscard]] PartLink pcie() const;
  [[nodiscard]] PartLink nvlinks(int count) const;

  ImportedCluster imported;
  HostBuilder parts{imported.cluster, 0};

 private:
  [[nodiscard]] int pcie_generation() const;
  PartLink smp(std::size_t sockets, std::optional<BytesPerSecond> known);

  const std::string file_;
  const ImportOptions options_;
  const DeviceModel* device_ = nullptr;
};

/// The smallest number >= 0 that is no key of `taken`.
template <class Value>
int lowest_free(const std::map<int, Value>& taken) {
  int number = 0;
  while (taken.contains(number)) ++number;
  return number;
}

}  // namespace stepcast

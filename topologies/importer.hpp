#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "topologies/cluster.hpp"
#include "topologies/devices.hpp"

/// Importers: what other tools print of a machine becomes a Cluster of one host. One file each.
namespace stepcast {

/// What such files do not say.
struct ImportOptions {
  /// Of every GPU, a name in topologies/devices/devices.yaml; "": the importer guesses and says so.
  std::string device;
  /// Between sockets; else what the importer knows, or the usual one, which it says.
  std::optional<BytesPerSecond> smp_bandwidth{};
  int pcie_generation = 0;  ///< 0: the device's
};

struct Imported {
  Cluster cluster;
  std::vector<std::string> notes{};  ///< what was guessed or left out, a sentence each
};

struct Importer {
  /// True when the text looks like this format, well-formed or not.
  std::function<bool(const std::string& text)> recognises;
  /// `file` is the text's name in errors. \throws InputError that starts with file, line and column and says
  /// what was expected
  std::function<Imported(const std::string& text, const std::string& file, const ImportOptions&)> read;
};

Registry<Importer>& importers();

/// Imports a text with the importer named `format`, or, where that is "", the first that recognises it. The
/// cluster is named after the file. \throws InputError as the importer does; UsageError for an unknown format
/// or device
Imported import_cluster(const std::string& text, const std::string& file, const std::string& format,
                        const ImportOptions& options);

/// A place in an imported file; both count from 1, columns in bytes.
struct TextPlace {
  std::size_t line = 1;
  std::size_t column = 1;
};

/// `topo.txt:3:14: ` + message. \throws InputError
[[noreturn]] void fail_at(const std::string& file, TextPlace place, const std::string& message);

/// The model of an imported GPU: the one that `options` name, else the one called `guess`. "" as a guess
/// means that nothing in the file tells. \throws InputError at `place` that lists the known GPUs when there
/// is neither; UsageError when the option names none
const DeviceModel& imported_device(const ImportOptions& options, const std::string& guess,
                                   const std::string& file, TextPlace place);

/// The generation of PCIe: the one that `options` say, else the device's.
int imported_pcie_generation(const ImportOptions& options, const DeviceModel& device);

/// Adds sockets to the first host, which has one: `node/socket<number>` for each of `numbers`, every two
/// joined by what `options` say, else by `known`, else by the bandwidth that is usual beside the device,
/// which a note says. Returns their nodes, in the order of the numbers. \pre numbers not empty
std::vector<int> add_imported_sockets(Imported& imported, const std::vector<int>& numbers,
                                      const ImportOptions& options, const DeviceModel& device,
                                      std::optional<BytesPerSecond> known);

/// The lowest number from 0 that is no key of `taken`.
template <class Value>
int lowest_free(const std::map<int, Value>& taken) {
  int number = 0;
  while (taken.contains(number)) ++number;
  return number;
}

/// With ASCII letters in lower case.
std::string lower(std::string text);

}  // namespace stepcast

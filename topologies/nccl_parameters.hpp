#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

/// What NCCL's collectives take on a GPU: topologies/devices/nccl.yaml.
namespace stepcast {

/// In the order of the file; sim/collectives/nccl_reached.hpp has the formulas.
enum class NcclLaw : std::uint8_t {
  kLaunch,
  kLlHop,
  kLlFill,
  kLlFillHop,
  kLlBlocks,
  kLlRate,
  kLl128Start,
  kLl128Hop,
  kLl128Reached,
  kSimpleStart,
  kSimpleHop,
  kSimpleFill,
  kSimpleFillHop,
  kNvlsStart,
  kNvlsFill,
  kMessageStart,
  kMessagePeer,
  kMessageRate,
  kMessageFirst,
  kMessageFill,
  kLocal,
  kPcieReached,
  kSocketRate,
  kSocketsRate,
  kHostBurst,
};
inline constexpr std::size_t kNcclLaws = 25;

/// Numbers of one generation: microseconds, GB/s, KiB and parts.
class NcclParameters {
 public:
  [[nodiscard]] double operator[](NcclLaw law) const { return values_[static_cast<std::size_t>(law)]; }
  double& operator[](NcclLaw law) { return values_[static_cast<std::size_t>(law)]; }
  /// `ll_hop`, ..., in the order of the file.
  static const std::vector<std::string>& names();
  static const char* unit(NcclLaw law);  ///< `us`, `GB/s`, `KiB`, or "" of a part

  /// By name. \throws InputError for a name that is none, with the nearest, and for a number below 0
  void set(const std::map<std::string, double>& values);
  [[nodiscard]] std::map<std::string, double> values() const;

 private:
  std::array<double, kNcclLaws> values_{};
};

/// topologies/devices/nccl.yaml, as it is installed here.
std::filesystem::path nccl_law_file();

/// The laws at the clock of a GPU's generation: of the newest that is not newer than it, else of the oldest.
/// \throws InputError that names file, line and key
const NcclParameters& nccl_parameters(int compute_capability);

}  // namespace stepcast

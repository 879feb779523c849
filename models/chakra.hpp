#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/model.hpp"

/// Execution traces of MLCommons Chakra (`.et`, schema 1.x): length-prefixed protobuf messages.
namespace stepcast {

enum class ChakraType : std::uint8_t {
  kMetadata = 1,
  kMemoryLoad,
  kMemoryStore,
  kCompute,
  kSend,
  kReceive,
  kCollective
};

struct ChakraNode {
  std::uint64_t id = 0;
  std::string name;
  ChakraType type = ChakraType::kCompute;
  std::vector<std::uint64_t> after{};  ///< ids of data and control dependencies
  /// In files whole microseconds, and whole nanoseconds in attribute `duration_nanos`, which other readers
  /// pass over.
  double duration_s = 0.0;
  /// `comm_type`, `comm_size` (bytes), `comm_src`, `comm_dst`, `comm_tag`.
  std::map<std::string, std::int64_t> numbers{};
  std::string group{};  ///< `pg_name`; "": all ranks
};

/// Bytes of a file with one rank's nodes.
std::string chakra_text(const std::vector<ChakraNode>& nodes);

/// \param name of the file, for errors \throws InputError that names the byte or node
std::vector<ChakraNode> read_chakra(const std::string& bytes, const std::string& name);

/// True for a node that takes time on the rank's own device.
inline bool computes(const ChakraNode& node) {
  return node.type <= ChakraType::kCompute && node.duration_s > 0.0;
}

/// The nodes, each behind those that it waits for, else in the order of the file. \throws InputError that
/// names the file `name` and an id that is missing or twice, or a circle
std::vector<ChakraNode> in_order(const std::vector<ChakraNode>& nodes, const std::string& name);

/// Ranks of the groups that nodes name: JSON, `{"1": [0, 1]}`.
using ChakraGroups = std::map<std::string, std::vector<int>>;

/// Traces of all ranks of one step.
struct ChakraStep {
  std::vector<std::vector<ChakraNode>> ranks;
  ChakraGroups groups;
};

/// `PREFIX.RANK.et`, RANK from 0, and `PREFIX.groups.json` if there is one. \param path of any of them, for
/// example `step.0.et` \throws InputError that names the file
ChakraStep load_chakra(const std::string& path);

/// True for a text that begins with whole messages of Chakra.
bool starts_chakra(const std::string& head);

/// True for a trace of one rank.
inline bool is_chakra(const std::string& path) { return path.ends_with(".et"); }

/// The computing nodes of all ranks, in the order of ranks and in_order(), as segments with declared times.
Model chakra_model(const std::string& path);

}  // namespace stepcast

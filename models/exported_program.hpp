#pragma once

#include <string>
#include <vector>

#include "models/given_layer.hpp"

/// Programs of torch.export (`.pt2`): JSON in a zip archive.
namespace stepcast {

/// Names of the members of a zip archive. \throws InputError that names the file
std::vector<std::string> archive_members(const std::string& path);

/// Reads a zip archive to its end. \throws InputError that names a member that is cut or has another
/// checksum, which LibTorch does not compare: of a damaged file it allocated 4 GiB
void check_archive(const std::string& path);

/// The program's JSON in a `.pt2` file of PyTorch 2.4 and later. \throws InputError that names the file and,
/// for other archives, what it is
std::string exported_json(const std::string& path);

struct ExportedProgram {
  GivenModel model;   ///< parts without a program that trains them
  int batch = 1;      ///< samples it was exported with
  std::string torch;  ///< version that exported it
  std::vector<std::string> assumed{};
};

/// Reads parameters, parts, flop and bytes; those of a sample are those of the exported batch over its size.
/// \param name of the file, for errors \throws InputError that names the node or key
ExportedProgram read_exported(const std::string& json, const std::string& name);

}  // namespace stepcast

#pragma once

#include <map>
#include <string>
#include <vector>

/// Divides a network of somebody's own into parts, between which a single tensor passes.
namespace stepcast {

/// Adjacent operations of a program.
struct ProgramPiece {
  int first = 0, end = 0;
  std::vector<std::string> parameters{};  ///< that they read

  void join(const ProgramPiece& next);
};

/// Joins the smallest pieces to modules: operations without parameters belong to the module before them, and
/// those of one element of a list (`layer1.0`) to each other. A module with more than half of all parameters
/// is divided further. \param sizes of the parameters
std::vector<ProgramPiece> modules_of(const std::vector<ProgramPiece>& smallest,
                                     const std::map<std::string, double>& sizes);

/// Names of parts, each once: the module of its first parameter, `layer1.0`; a second part of it is
/// `layer1.0-2`.
std::vector<std::string> names_of_parts(const std::vector<ProgramPiece>& pieces,
                                        const std::vector<std::string>& parameters);

}  // namespace stepcast

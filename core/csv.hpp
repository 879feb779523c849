#pragma once

#include <string>
#include <vector>

namespace stepcast {

/// A table of comma-separated values (RFC 4180) whose first line names the columns; empty lines and a
/// byte-order mark are skipped.
struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  ///< each as long as `columns`
  std::vector<int> lines;                      ///< in the file, by row, from 1
};

/// \throws InputError that names file and line, for a row of another length, an open quote, or two columns of
/// one name
CsvTable read_csv(const std::string& path);

}  // namespace stepcast

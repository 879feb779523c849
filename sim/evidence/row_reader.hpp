#pragma once

#include <string>

#include "core/yaml.hpp"
#include "sim/evidence/rows.hpp"

/// Readers of rows.hpp's files.
namespace stepcast {

/// A YAML file with rows, or with the name of a table.
class RowReader {
 public:
  /// \param rows path of a table that replaces the file's own; may be empty
  RowReader(const std::string& path, const std::string& rows);
  RowSet read();

 private:
  void read_parameters();
  void read_table();
  void read_fit();
  void check_measured() const;
  void complete(Row& row) const;
  void leave_out(Row& row) const;
  void read_measured_values(Row& row) const;
  void read_inline_rows();
  [[nodiscard]] Row inline_row(const YamlNode& node) const;
  void read_fitted_by(const YamlNode& node, Row& row) const;
  [[nodiscard]] std::string name_of(const std::string& column) const;

  YamlNode file_;
  RowSet set_;
  std::string rows_;
};

/// A CSV file with columns named like options.
RowSet read_option_table(const std::string& path);

}  // namespace stepcast

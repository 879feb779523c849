#include "core/csv.hpp"

#include <algorithm>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/importer.hpp"

namespace stepcast {
namespace {

/// Cells of one record. A quote inside quotes is doubled.
std::vector<std::string> cells_of(const std::string& record) {
  std::vector<std::string> cells{""};
  bool quoted = false;
  for (std::size_t at = 0; at < record.size(); ++at) {
    const char sign = record[at];
    if (quoted && record.compare(at, 2, "\"\"") == 0) {
      cells.back() += '"';
      ++at;
    } else if (sign == '"') {
      quoted = !quoted;
    } else if (!quoted && sign == ',') {
      cells.emplace_back();
    } else if (quoted || sign != '\r') {
      cells.back() += sign;
    }
  }
  return cells;
}

/// True if a line begins or ends a cell of several lines.
bool opens(const std::string& line) { return std::ranges::count(line, '"') % 2 != 0; }

}  // namespace

CsvTable read_csv(const std::string& path) {
  std::istringstream text(read_text(path));
  CsvTable table;
  int line = 0;
  for (std::string record, more; std::getline(text, record);) {
    const int from = ++line;
    const auto fail = [&](const std::string& message) { throw InputError("{}:{}: {}", path, from, message); };
    if (record.empty() || record.starts_with('\r')) continue;
    for (bool open = opens(record); open; ++line) {  // a quoted cell goes on in the next line
      if (!std::getline(text, more)) fail("a quoted cell is not closed");
      open = open != opens(more);
      record += "\n" + more;
    }
    std::vector<std::string> cells = cells_of(record);
    if (table.columns.empty()) {
      table.columns = std::move(cells);
      std::set<std::string> known;
      for (const std::string& name : table.columns)
        if (!known.insert(name).second) fail("two columns are called '" + name + "'");
      continue;
    }
    if (cells.size() != table.columns.size())
      fail(fmt::format("found {} cells, expected {} as in the first line", cells.size(),
                       table.columns.size()));
    table.rows.push_back(std::move(cells));
    table.lines.push_back(from);
  }
  if (table.rows.empty()) throw InputError(path + ": contains no rows");
  return table;
}

}  // namespace stepcast

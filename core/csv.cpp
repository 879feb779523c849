#include "core/csv.hpp"

#include <set>

#include "core/error.hpp"
#include "core/importer.hpp"

namespace stepcast {
namespace {

/// Reads records. Quoted cells may span lines.
class CsvReader {
 public:
  CsvReader(const std::string& path, std::string text) : path_(path), text_(std::move(text)) {}

  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] int line() const { return line_; }
  [[nodiscard]] bool skips() {
    if (text_[at_] != '\n' && text_[at_] != '\r') return false;
    at_ = text_.find('\n', at_);
    at_ = at_ == std::string::npos ? text_.size() : at_ + 1;
    ++line_;
    return true;
  }

  std::vector<std::string> record() {
    std::vector<std::string> cells{""};
    const int from = line_;
    for (bool quoted = false; !at_end(); ++at_) {
      const char sign = text_[at_];
      if (sign == '\n') ++line_;
      if (quoted && sign == '"' && at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        cells.back() += '"';
        ++at_;
      } else if (sign == '"') {
        quoted = !quoted;
      } else if (!quoted && sign == ',') {
        cells.emplace_back();
      } else if (!quoted && sign == '\n') {
        ++at_;
        return cells;
      } else if (quoted || sign != '\r') {
        cells.back() += sign;
      }
      if (quoted && at_ + 1 == text_.size()) fail(from, "a quoted cell is not closed");
    }
    return cells;
  }

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InputError(path_ + ":" + std::to_string(line) + ": " + message);
  }

 private:
  std::string path_, text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

CsvTable read_csv(const std::string& path) {
  CsvReader reader(path, read_text(path));
  CsvTable table;
  while (!reader.at_end()) {
    if (reader.skips()) continue;
    const int line = reader.line();
    std::vector<std::string> cells = reader.record();
    if (table.columns.empty()) {
      table.columns = std::move(cells);
      std::set<std::string> known;
      for (const std::string& name : table.columns)
        if (!known.insert(name).second) reader.fail(line, "two columns are called '" + name + "'");
      continue;
    }
    if (cells.size() != table.columns.size())
      reader.fail(line, fmt::format("found {} cells, expected {} as in the first line", cells.size(),
                                    table.columns.size()));
    table.rows.push_back(std::move(cells));
    table.lines.push_back(line);
  }
  if (table.rows.empty()) throw InputError(path + ": contains no rows");
  return table;
}

}  // namespace stepcast

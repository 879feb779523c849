#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <ranges>
#include <regex>
#include <set>
#include <string_view>

#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "topologies/topology_matrix.hpp"

/// Reads the matrix of `nvidia-smi topo -m`: columns separated by tabs or spaces, with or without colour
/// codes, of any driver.
namespace stepcast {
namespace {

constexpr std::size_t kMaxParts = 256;
constexpr int kMaxProcessors = 65'536;
constexpr const char* kExpected = "X, SYS, NODE, PHB, PXB, PIX, SOC, or NV and a number";

struct Word {
  std::string text;
  FilePosition place;
  std::size_t tabs = 0;  ///< before it on its line
};

struct TextLine {
  std::vector<Word> words;
  FilePosition end;  ///< after its last character
};

/// The text with a terminal's control sequences, such as `ESC [ 4 m`, replaced by as many blanks, so that
/// columns stay.
std::string without_controls(std::string text) {
  static const std::regex kControl("\x1b\\[?[^@-~\n]*[@-~]?");
  for (std::smatch found; std::regex_search(text, found, kControl);)
    text.replace(static_cast<std::size_t>(found.position()), static_cast<std::size_t>(found.length()),
                 static_cast<std::size_t>(found.length()), ' ');
  return text;
}

TextLine words_of(std::string_view line, std::size_t number) {
  TextLine result{.words = {}, .end = {number, line.size() + 1}};
  std::size_t tabs = 0;
  bool inside = false;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool is_space = std::isspace(static_cast<unsigned char>(line[at])) != 0;
    if (line[at] == '\t') ++tabs;
    if (!is_space && !inside) result.words.push_back({"", {number, at + 1}, tabs});
    if (!is_space) result.words.back().text += line[at];
    inside = !is_space;
  }
  return result;
}

std::vector<TextLine> lines_of(const std::string& text) {
  std::vector<TextLine> lines;
  for (const std::string& line : split(without_controls(text)))
    lines.push_back(words_of(line, lines.size() + 1));
  if (lines.empty() || text.ends_with('\n')) lines.push_back({.words = {}, .end = {lines.size() + 1, 1}});
  return lines;
}

/// A whole number of digits alone, at most `most`.
std::optional<int> digits(std::string_view text, int most) {
  const std::optional<int> value = text.starts_with('-') ? std::nullopt : number_in<int>(text);
  return value && *value <= most ? value : std::nullopt;
}

bool is_gpu(std::string_view name) {
  return name.starts_with("GPU") && digits(name.substr(3), 9999).has_value();
}

bool starts_with_gpu(const TextLine& line) { return !line.words.empty() && is_gpu(line.words.front().text); }

/// NICs are called NIC0, mlx5_0, bnxt_re0, ...
bool is_part(std::string_view name) {
  return std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(
             name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

std::optional<MatrixCell> cell_of(const Word& word) {
  if (word.text == "SOC") return MatrixCell{Relation::kSys, 0, word.place};
  for (const auto& [relation, name] : kRelations)
    if (word.text == name && relation != Relation::kNvLink) return MatrixCell{relation, 0, word.place};
  if (!word.text.starts_with("NV")) return std::nullopt;
  const std::optional<int> links = digits(std::string_view(word.text).substr(2), 999);
  if (!links || *links == 0) return std::nullopt;
  return MatrixCell{Relation::kNvLink, *links, word.place};
}

/// `0-19,40-59` as numbers; empty for `N/A`; none if it is neither.
std::optional<std::vector<int>> number_list(std::string_view text) {
  std::vector<int> numbers;
  if (text == "N/A") return numbers;
  if (text.ends_with(',')) return std::nullopt;
  for (const std::string& item : split(std::string(text), ',')) {
    const std::size_t dash = std::min(item.find('-'), item.size());
    const std::optional<int> first = digits(item.substr(0, dash), kMaxProcessors);
    const std::optional<int> last =
        dash == item.size() ? first : digits(item.substr(dash + 1), kMaxProcessors);
    if (!first || !last || *last < *first || numbers.size() > kMaxProcessors) return std::nullopt;
    for (int i = *first; i <= *last; ++i) numbers.push_back(i);
  }
  return numbers;
}

struct MatrixReader {
  const std::string& file;
  const std::vector<TextLine> lines;

  TopologyMatrix read() {
    std::size_t line = read_header();
    for (const MatrixPart& part : matrix.parts) {
      if (!part.gpu && ends_before(line + 1)) break;
      if (ends_before(line + 1))
        fail_at(file, line + 1 < lines.size() ? lines[line + 1].end : lines.back().end,
                "found the end of the matrix, expected the row of {}", part.name);
      read_row(lines[++line], matrix.parts[matrix.cells.size()]);
    }
    for (const TextLine& rest : lines)
      if (rest.end.line > line + 1 && rest.words.size() > 1 && cell_of(rest.words[1]))
        fail_at(file, rest.words.front().place,
                "found the row of '{}', expected the end of the matrix after the row of {}",
                rest.words.front().text, matrix.parts[matrix.cells.size() - 1].name);
    add_missing_rows();
    check_symmetry();
    return std::move(matrix);
  }

  [[nodiscard]] bool ends_before(std::size_t line) const {
    return line >= lines.size() || lines[line].words.empty();
  }

  /// Rows of NICs that the text lacks at its end follow from the columns. Cells between two are unknown.
  void add_missing_rows() {
    const std::size_t known = matrix.cells.size();
    std::vector<std::string> missing;
    for (std::size_t i = known; i < matrix.parts.size(); ++i) {
      missing.push_back(matrix.parts[i].name);
      std::vector<MatrixCell> row(matrix.parts.size());
      for (std::size_t j = 0; j < known; ++j) row[j] = matrix.cells[j][i];
      matrix.cells.push_back(std::move(row));
    }
    if (!missing.empty())
      matrix.ignored.push_back("the file ends before the rows of " + joined(missing) +
                               "; their columns are used, cells between them are unknown");
  }

  /// Reads the first line that starts with a GPU; returns its index.
  std::size_t read_header() {
    const auto header = std::ranges::find_if(lines, starts_with_gpu);
    if (header == lines.end())
      fail_at(file, {}, "no line starts with GPU0; expected the output of 'nvidia-smi topo -m'");
    const std::vector<Word>& words = header->words;
    if (words.size() > 1 && cell_of(words[1]))
      fail_at(file, words[1].place,
              "found '{}', expected the header line with GPU0, GPU1, ... before the rows", words[1].text);
    std::size_t at = 0;
    const std::set<std::string> extra{"CPU", "NUMA", "GPU"};  // first words of the columns after the matrix
    while (at < words.size() && !extra.contains(words[at].text)) add_part_name(words[at++]);
    while (at < words.size()) at = read_extra(words, at);
    if (matrix.parts.size() > kMaxParts)
      fail_at(file, words.front().place, "found {} columns, expected at most {}", matrix.parts.size(),
              kMaxParts);
    return static_cast<std::size_t>(header - lines.begin());
  }

  void add_part_name(const Word& word) {
    if (!is_part(word.text))
      fail_at(file, word.place, "found '{}', expected GPU0, GPU1, ..., NIC0, mlx5_0, ... or CPU Affinity",
              word.text);
    if (!names.insert(word.text).second)
      fail_at(file, word.place, "found '{}' twice, expected another name", word.text);
    matrix.parts.push_back({word.text, is_gpu(word.text), {}, -1, word.place});
  }

  /// Reads the header of a column after the matrix; these names have several words.
  std::size_t read_extra(const std::vector<Word>& words, std::size_t at) {
    static const std::vector<std::vector<std::string>> kExtras{
        {"CPU", "Affinity"}, {"NUMA", "Affinity"}, {"GPU", "NUMA", "ID"}};
    for (const std::vector<std::string>& extra : kExtras) {
      const auto found = words | std::views::drop(at) | std::views::take(extra.size());
      if (!std::ranges::equal(extra, found, {}, {}, &Word::text)) continue;
      extras.push_back(extra.front());
      return at + extra.size();
    }
    fail_at(file, words[at].place, "found '{}', expected CPU Affinity, NUMA Affinity or GPU NUMA ID",
            words[at].text);
  }

  void read_row(const TextLine& line, MatrixPart& part) {
    const std::size_t columns = matrix.parts.size();
    const Word& label = line.words.front();
    if (label.text != part.name)
      fail_at(file, label.place, "found '{}', expected the row of {}", label.text, part.name);
    part.place = label.place;
    std::vector<MatrixCell> row;
    for (std::size_t i = 0; i < columns; ++i) {
      if (i + 1 >= line.words.size() && !part.gpu && ends_before(line.end.line)) return;  // cut here
      if (i + 1 >= line.words.size())
        fail_at(file, line.end, "found {} in the row of {}, expected {}, of {} to {}", counted(i, "cell"),
                part.name, columns, matrix.parts.front().name, matrix.parts.back().name);
      row.push_back(read_cell(line.words[i + 1], part, matrix.parts[i]));
    }
    matrix.cells.push_back(std::move(row));
    read_affinities(line, part);
  }

  MatrixCell read_cell(const Word& word, const MatrixPart& row, const MatrixPart& column) {
    const std::optional<MatrixCell> cell = cell_of(word);
    if (!cell) fail_at(file, word.place, "found '{}', expected {}", word.text, kExpected);
    const bool self = cell->relation == Relation::kSelf;
    if (self != (row.name == column.name))
      fail_at(file, word.place, "found '{}' from {} to {}, expected X {}on the diagonal", word.text, row.name,
              column.name, self ? "only " : "");
    if (cell->relation == Relation::kNvLink && !(row.gpu && column.gpu))
      fail_at(file, word.place, "found '{}' from {} to {}, expected NVLinks only between GPUs", word.text,
              row.name, column.name);
    return *cell;
  }

  /// Reads the values after the cells. A row of a NIC has none, and with tabs a value may be missing between
  /// two others; two tabs precede the GPU NUMA ID. Text behind them is a remark.
  void read_affinities(const TextLine& line, MatrixPart& part) {
    const std::size_t columns = matrix.parts.size();
    for (std::size_t i = columns + 1; i < line.words.size(); ++i) {
      const Word& word = line.words[i];
      std::size_t extra = i - columns - 1;
      const std::optional<std::vector<int>> numbers = number_list(word.text);
      const bool is_number = word.text.front() >= '0' && word.text.front() <= '9';
      if (extra >= extras.size() || (!numbers && !is_number)) return note_remark(line, i);
      if (word.tabs > columns) extra = word.tabs - columns - 1;
      if (!numbers)
        fail_at(file, word.place, "found '{}', expected numbers as 0-19,40-59, or N/A", word.text);
      const std::string& name = extras[std::min(extra, extras.size() - 1)];
      if (name == "CPU") part.cpus = *numbers;
      if (name == "NUMA" && numbers->size() == 1) part.numa = numbers->front();
    }
  }
  void note_remark(const TextLine& line, std::size_t from) {
    const auto words = transformed(line.words | std::views::drop(from), &Word::text);
    matrix.ignored.push_back(fmt::format("line {}: text behind the last column: '{}'", line.end.line,
                                         printable(joined(words, " "))));
  }

  void check_symmetry() const {
    for (int a = 0; a < matrix.size(); ++a)
      for (int b = 0; b < a; ++b) {
        const MatrixCell& here = matrix.cells[a][b];
        const MatrixCell& there = matrix.cells[b][a];
        if (here.relation == there.relation && here.links == there.links) continue;
        fail_at(file, here.place,
                "found '{0}' from {1} to {2}, expected '{3}' as from {2} to {1} in line {4}", text_of(here),
                matrix.parts[a].name, matrix.parts[b].name, text_of(there), there.place.line);
      }
  }
  static std::string text_of(const MatrixCell& cell) {
    return to_text(cell.relation) + (cell.links > 0 ? std::to_string(cell.links) : "");
  }

  TopologyMatrix matrix{};
  std::set<std::string> names{};
  std::vector<std::string> extras{};  ///< first words of the columns after the matrix
};

const Registration<Importer> kNvidiaSmi{
    importers(), "nvidia-smi", {is_nvidia_smi, cluster_importer(read_nvidia_smi)}, 30};

}  // namespace

bool is_nvidia_smi(const std::string& text) { return std::ranges::any_of(lines_of(text), starts_with_gpu); }

ImportedCluster read_nvidia_smi(const std::string& text, const std::string& file,
                                const ImportOptions& options) {
  return MatrixHost{MatrixReader{file, lines_of(text)}.read(), file, options}.build();
}

}  // namespace stepcast

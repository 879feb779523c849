#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>
#include <set>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/evidence/nccl_samples.hpp"

/// Text of nccl-tests and rccl-tests as people paste it: with tags of launchers, other lines between, columns
/// removed, rows cut.
namespace stepcast {
namespace {

constexpr double kMostGpus = 65'536;

/// A number of GPUs from first to last; none if first > last.
struct GpuRange {
  int first = 1, last = 0;
  [[nodiscard]] bool contains(int gpus) const { return first <= gpus && gpus <= last; }
};

/// GPUs whose bus bandwidth has this ratio to the algorithm's: 2(n - 1)/n of an all-reduce, 1 of a broadcast,
/// else (n - 1)/n.
GpuRange gpus_of(CollectiveKind kind, BandwidthRatio ratio) {
  constexpr double kSlack = 1e-9;
  const double whole = kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
  if (!ratio.known()) return {2, static_cast<int>(kMostGpus)};
  if (kind == CollectiveKind::kBroadcast)
    return ratio.least <= 1.0 + kSlack && ratio.most >= 1.0 - kSlack
               ? GpuRange{2, static_cast<int>(kMostGpus)}
               : GpuRange{};
  const auto gpus = [&](double value) { return value >= whole ? kMostGpus : whole / (whole - value); };
  if (ratio.least > whole + kSlack) return {};
  return {std::max(2, static_cast<int>(std::ceil(std::min(kMostGpus, gpus(ratio.least)) - kSlack))),
          static_cast<int>(std::floor(std::min(kMostGpus, gpus(ratio.most)) + kSlack))};
}

/// A printed decimal and half of its last digit.
std::optional<std::pair<double, double>> printed_decimal(const std::string& text) {
  const auto value = number_in<double>(text);
  if (!value || !std::isfinite(*value)) return {};
  const auto dot = text.find('.');
  const auto digits = dot == std::string::npos ? 0 : text.size() - dot - 1;
  return std::pair(*value, 0.5 * std::pow(10.0, -static_cast<double>(digits)));
}

struct TestRow {
  int line = 0;
  double size = 0.0, time_us = 0.0;
  std::string dtype, redop, root, algbw, busbw;
};

/// Lines of one test from its settings to the end of its table.
struct TestRun {
  std::string test;  ///< `all_reduce`; "" if no line names it
  std::vector<std::string> columns{};
  std::string device{};
  std::set<int> listed{};  ///< ranks
  int highest_device = 0, per_process = 0;
  std::string group{};  ///< of the first rank, whose table this is
  bool split = false;   ///< other groups run at the same time (NCCL_TESTS_SPLIT)
  RanksOfGpus ranks{};
  std::vector<TestRow> rows{};

  /// Ranks that the list states, which may be cut in the middle.
  [[nodiscard]] int ranks_stated() const {
    return split || listed.empty() ? static_cast<int>(listed.size()) : *listed.rbegin() + 1;
  }
};

/// Kinds that the columns redop and root allow.
bool allows_kind(const TestRow& row, CollectiveKind kind) {
  const bool adds = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  if (!row.redop.empty() && (row.redop == "none") == adds) return false;
  const int root = number_in<int>(row.root).value_or(-1);
  return row.root.empty() || (kind == CollectiveKind::kBroadcast) == (root >= 0);
}

/// GPUs that busbw / algbw allows; none if it does not depend on them.
GpuRange known_gpus(CollectiveKind kind, BandwidthRatio ratio) {
  return ratio.known() && kind != CollectiveKind::kBroadcast ? gpus_of(kind, ratio) : GpuRange{};
}

struct NcclTextReader {
  const std::string path;
  const NcclHints hints;

  NcclMeasurements read(const std::string& text) {
    const std::string prefix = unknown_prefix(text);
    for (std::string line : split(text)) {
      ++line_number;
      if (line.starts_with(prefix)) line.erase(0, prefix.size());
      if (!untag(line)) continue;
      if (const auto test = test_of(line); !test.empty()) {
        finish();
        run.test = test;
      } else if (line.starts_with("#")) {
        comment(line);
      } else {
        row(line);
      }
    }
    finish();
    return std::move(result);
  }

  [[nodiscard]] std::string where(int line) const { return path + ":" + std::to_string(line); }
  void leave_out(const std::string& why) {
    result.ignored.push_back(fmt::format("line {}: {}", line_number, why));
  }

  /// What a program writes before each line, other than untag() removes: `[pod/nccl-0/main] `, `nccl-1  | `.
  std::string unknown_prefix(const std::string& text) {
    const std::size_t settings = text.find("# nThread");
    if (settings == std::string::npos) return "";
    const std::size_t begin = text.rfind('\n', settings) + 1;  // 0 in the first line
    std::string line = text.substr(begin, text.find('\n', settings) - begin);
    return untag(line) && !line.starts_with("#") ? text.substr(begin, settings - begin) : "";
  }

  /// Removes colours, time stamps, quotation marks and tags of mpirun (`[1,0]<stdout>:`, `[0]`; of Open MPI 5
  /// `[job@1,0]<stdout>:`) and srun (`0:`). False for lines of other ranks or of standard error.
  bool untag(std::string& line) {
    static const std::regex kNoise("\x1b\\[[0-9;]*[A-Za-z]|\r");
    static const std::regex kMpi(R"(^[\w :]*\[(?:[^\]]*@)?\d+,(\d+)\]<(std\w+)>:\s?)");
    static const std::regex kSrun(R"(^\s*\[?(\d+)[:\]]\s)");
    static const std::regex kBefore(
        R"(^\s*(>+\s*)?(\[?\d{4}-[\d-]{5}[T ][\d:.,]+(Z|[+-]\d\d:?\d\d)?\]?\s+)?)");
    if (line.find_first_of("\x1b\r") != std::string::npos) line = std::regex_replace(line, kNoise, "");
    constexpr std::size_t kLongest = 4096;  // longer lines are no rows; std::regex recurses
    if (line.size() > kLongest) return false;
    std::smatch tag;
    if (line.find_first_of(">:") != std::string::npos)
      line = std::regex_replace(line, kBefore, "", std::regex_constants::format_first_only);
    const bool mpi = std::regex_search(line, tag, kMpi);
    if (mpi && tag[2] != "stdout") return false;
    if (mpi || std::regex_search(line, tag, kSrun)) {
      const std::string rank = tag[1];
      line = tag.suffix();
      if (rank.find_first_not_of('0') != std::string::npos) return false;
    }
    const auto first = line.find_first_not_of(" \t");
    line.erase(0, first == std::string::npos ? line.size() : first);
    return true;
  }

  /// Test that a line starts: nccl-tests' own line, or the command that was typed.
  static std::string test_of(const std::string& line) {
    static const std::regex kTest(
        "(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|sendrecv|gather|scatter|"
        "hypercube)_perf");
    std::smatch test;
    const bool named = line.find("_perf") != std::string::npos && std::regex_search(line, test, kTest);
    return named ? test[1].str() : "";
  }

  void comment(const std::string& line) {
    static const std::regex kRank(
        R"(Rank\s+(\d+)\s+(?:Group\s+(\d+) +)?Pid\s+\d+ +on\s+(\S+)\s+device\s+((\d+)\s+\[[^\]]*\])\s*(.*))");
    static const std::regex kSettings(R"(nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+))");
    std::smatch found;
    if (line.find(" Rank ") != std::string::npos && std::regex_search(line, found, kRank)) {
      if (!run.rows.empty()) finish();
      if (run.listed.empty()) run.group = found[2];
      if (run.group != found[2]) return void(run.split = true);
      if (!run.listed.insert(number_in<int>(found[1].str()).value_or(0)).second)
        throw InputError(
            "{}: rank {} is listed twice; programs ran side by side, such as nccl-tests built "
            "without MPI (MPI=1) under mpirun",
            where(line_number), found[1].str());
      run.highest_device = std::max(run.highest_device, number_in<int>(found[5].str()).value_or(0));
      run.ranks[{found[3], found[4]}].insert(found[1]);
      std::string device = found[6];
      device.erase(device.find_last_not_of(" \t") + 1);
      set_device(run.device, device, where(line_number));
    } else if (std::regex_search(line, found, kSettings)) {
      finish();
      run = {.test = run.test};  // without the ranks of a run that failed
      run.per_process =
          number_in<int>(found[1].str()).value_or(0) * number_in<int>(found[2].str()).value_or(0);
      static const std::regex kUnlike(R"(agg iters: ([2-9]|[1-9]\d+)\b|graph: [1-9]\d*)");
      if (std::regex_search(line, found, kUnlike))
        result.assumed.push_back(
            fmt::format("line {}: '{}' launches calls together, so a launch costs less than in training",
                        line_number, found[0].str()));
    } else if (line.find("algbw") != std::string::npos || line.find("busbw") != std::string::npos) {
      run.columns = words_in(line.substr(1));
    }
  }

  /// Cell of the column, out of place if both are there; "" if the table lacks it.
  [[nodiscard]] std::string cell(const std::vector<std::string>& cells, const std::string& column,
                                 bool in_place = false) const {
    const auto first = std::ranges::find(run.columns, column);
    if (first == run.columns.end()) return "";
    const auto second = std::find(first + 1, run.columns.end(), column);
    const auto at = in_place && second != run.columns.end() ? second : first;
    return cells[static_cast<std::size_t>(at - run.columns.begin())];
  }

  void row(const std::string& line) {
    std::vector<std::string> cells = words_in(line);
    if (cells.size() < 3) return;  // of other programs
    if (!number_in<long long>(cells.front())) {
      if (!run.columns.empty() && cells.size() >= run.columns.size() && number_in<long long>(cells[1]))
        leave_out("its size is not a number of bytes");
      return;
    }
    if (run.columns.empty()) {
      if (cells.size() > 8 && !number_in<int>(cells[4]))  // of versions without the column `root`
        return leave_out("its columns are unknown; keep the line with their names");
      run.columns = {"size",  "count",  "type", "redop", "root",  "time",  "algbw",
                     "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"};
      if (cells.size() < run.columns.size()) run.columns.resize(9);
    }
    if (cells.size() < run.columns.size())
      return leave_out(fmt::format("{} of {} columns", cells.size(), run.columns.size()));
    const auto size = printed_decimal(cell(cells, "size"));
    auto time = printed_decimal(cell(cells, "time"));
    const bool in_place = !time;
    if (in_place) time = printed_decimal(cell(cells, "time", true));
    if (!size || !time || size->first < 0.0 || time->first < 0.0)
      return leave_out("size or time is not a number");
    if (size->first == 0.0) return leave_out("a message of 0 B");
    if (time->first == 0.0) return leave_out("a call of no time");
    const auto wrong = number_in<double>(cell(cells, "#wrong", in_place));
    if (wrong && *wrong > 0.0) return leave_out(fmt::format("{:.0f} wrong elements", *wrong));
    run.rows.push_back({line_number, size->first, time->first, cell(cells, "type"), cell(cells, "redop"),
                        cell(cells, "root"), cell(cells, "algbw", in_place), cell(cells, "busbw", in_place)});
  }

  /// Kind of the run's collective; none if it is not forecast.
  std::optional<CollectiveKind> kind_of_run(BandwidthRatio ratio, int stated) {
    const std::string given = run.test.empty() ? hints.kind : run.test;
    if (!hints.kind.empty() && nccl_kind(given) != nccl_kind(hints.kind))
      result.ignored.push_back(fmt::format("line {}: --collective {}, as the table is that of {}_perf",
                                           run.rows.front().line, hints.kind, run.test));
    if (!given.empty()) {
      const auto kind = nccl_kind(given);
      if (!kind)
        result.ignored.push_back(fmt::format("line {}: the table of {}_perf, which is not forecast",
                                             run.rows.front().line, given));
      else if (const GpuRange range = gpus_of(*kind, ratio); range.first > range.last)
        throw InputError("{}: {}: busbw / algbw = {:.4g} is that of no number of GPUs",
                         where(run.rows.front().line), run.test.empty() ? "--collective " + given : given,
                         ratio.middle());
      return kind;
    }
    std::vector<std::string> names;
    for (const auto& [name, kind] : kNcclKinds) {
      const GpuRange range = gpus_of(kind, ratio);
      if (!ratio.known() || !allows_kind(run.rows.front(), kind) || range.first > range.last) continue;
      if (stated > 0 && !range.contains(stated)) continue;
      names.emplace_back(name);
    }
    if (names.size() == 1) {
      result.assumed.push_back(fmt::format("line {}: busbw / algbw = {:.4g} is that of {}",
                                           run.rows.front().line, ratio.middle(), names[0]));
      return nccl_kind(names.front());
    }
    throw InputError("{}: the file does not name its test; --collective does: {}",
                     where(run.rows.front().line), joined(names.empty() ? nccl_kind_names() : names));
  }

  int gpus_of_run(CollectiveKind kind, BandwidthRatio ratio, int stated) {
    const std::string place = where(run.rows.front().line);
    const GpuRange range = known_gpus(kind, ratio);
    const bool known = range.first <= range.last;
    if (hints.gpus > 0 && stated == 0) {
      if (!known || range.contains(hints.gpus)) return hints.gpus;
      throw InputError("{}: --gpus {}: busbw / algbw = {:.4g} is that of {} to {} GPUs", place, hints.gpus,
                       ratio.middle(), range.first, range.last);
    }
    if (!known && stated == 0)
      throw InputError("{}: no line '#  Rank 0 ...' before it: unknown how many GPUs ran; set --gpus", place);
    const auto [gpus, note] = corrected_gpus(kind, ratio, stated, place);
    if (!note.empty()) result.assumed.push_back(fmt::format("line {}: {}", run.rows.front().line, note));
    return gpus;
  }

  /// Lists of ranks are cut in the middle: then a host has as many GPUs as its highest device number states.
  int hosts_of_run(int gpus) {
    int hosts = count_hosts(run.ranks);
    const auto lines = static_cast<int>(run.listed.size());
    if (lines >= gpus || (lines == 0 && run.per_process == gpus)) return hosts;
    const int per_host = std::min(run.highest_device, gpus - 1) + 1;
    if (lines < run.ranks_stated()) hosts = std::max(hosts, (gpus + per_host - 1) / per_host);
    result.assumed.push_back(fmt::format("line {}: {} GPUs on {} ({} listed)", run.rows.front().line, gpus,
                                         counted(hosts, "host"), counted(lines, "rank")));
    return hosts;
  }

  /// Adds the rows of a run and begins another. Rows keep the settings that stand above them.
  void finish() {
    if (!run.rows.empty()) {
      BandwidthRatio ratio;
      for (const TestRow& row : run.rows) ratio.confine(row.algbw, row.busbw);
      if (run.split) result.assumed.emplace_back(kSplitWorld);
      const int stated = !run.listed.empty() ? run.ranks_stated() : run.per_process > 1 ? run.per_process : 0;
      if (const auto kind = kind_of_run(ratio, stated)) {
        const int gpus = gpus_of_run(*kind, ratio, stated), hosts = hosts_of_run(gpus);
        for (const TestRow& row : run.rows)
          result.samples.push_back({run.device, *kind, gpus, hosts, row.dtype, Bytes(row.size),
                                    Seconds(kMicro * row.time_us), where(row.line)});
      }
      run = {};
    }
  }

  int line_number = 0;
  TestRun run{};
  NcclMeasurements result{};
};

}  // namespace

void BandwidthRatio::confine(const std::string& algbw, const std::string& busbw) {
  const auto alg = printed_decimal(algbw), bus = printed_decimal(busbw);
  if (!alg || !bus || alg->first <= 2.0 * alg->second || bus->first <= 0.0) return;
  least = std::max(least, (bus->first - bus->second) / (alg->first + alg->second));
  most = std::min(most, (bus->first + bus->second) / (alg->first - alg->second));
}

std::pair<int, std::string> corrected_gpus(CollectiveKind kind, BandwidthRatio ratio, int stated,
                                           const std::string& where) {
  const GpuRange range = known_gpus(kind, ratio);
  if (range.first > range.last || range.contains(stated)) return {stated, ""};
  if (range.first < range.last)
    throw InputError("{}: by busbw / algbw it is unknown which of {} to {} GPUs ran; set --gpus", where,
                     range.first, range.last);
  return {range.first, fmt::format("{} GPUs, from busbw / algbw = {:.4g}{}", range.first, ratio.middle(),
                                   stated > 0 ? fmt::format("; {} are listed", stated) : "")};
}

int count_hosts(const RanksOfGpus& ranks) {
  std::map<std::string, int> most;  // ranks at one GPU, by host name
  for (const auto& [gpu, at_gpu] : ranks)
    most[gpu.first] = std::max(most[gpu.first], static_cast<int>(at_gpu.size()));
  return std::max(1, sum_of(most, [](const auto& host) { return host.second; }));
}

void set_device(std::string& device, const std::string& name, const std::string& where) {
  if (!device.empty() && !name.empty() && name != device)
    throw InputError("{}: GPU '{}', others of the run are '{}'; import runs on equal GPUs", where, name,
                     device);
  if (!name.empty()) device = name;
}

NcclMeasurements read_nccl_text(const std::string& path, const std::string& text, const NcclHints& hints) {
  return NcclTextReader{path, hints}.read(text);
}

}  // namespace stepcast

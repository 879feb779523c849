#include "sim/cli/result_summary.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/ranges.hpp"
#include "core/table.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {

std::string throughput_text(const Result& result) {
  const double throughput = result.throughput_samples_per_s();
  return throughput < 100.0 ? fmt::format("{:.3g} samples/s", throughput)
                            : fmt::format("{:.0f} samples/s", throughput);
}

namespace {

/// `3`, `0-15`, or `0, 8 and 6 more`. \pre ascending
std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return std::to_string(ranks.front());
  if (ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size()))
    return fmt::format("{}-{}", ranks.front(), ranks.back());
  if (ranks.size() == 2) return fmt::format("{} and {}", ranks[0], ranks[1]);
  return fmt::format("{}, {} and {} more", ranks[0], ranks[1], ranks.size() - 2);
}

}  // namespace

std::string rank_table(const Result& result) {
  constexpr std::size_t kMostRows = 24;
  std::vector<std::string> columns{
      "rank", "compute", "exposed comm", "overlapped comm", "input and host", "optimizer and copies", "idle"};
  if (largest_of(result.memory, &MemoryUse::peak_bytes) > 0.0) columns.emplace_back("peak memory");
  std::vector<std::pair<std::vector<std::string>, std::vector<int>>> rows;  // with the ranks that have them
  for (const auto [i, part] : enumerated(result.breakdown)) {
    // Breakdown and memory of a large world contain one rank of each kind, the slowest and the fullest.
    const int rank = i < result.memory.size() ? result.memory[i].rank : static_cast<int>(i);
    std::vector<std::string> cells{""};
    for (const auto& [name, member] : breakdown_parts()) cells.push_back(to_text(Seconds(part.*member)));
    for (const MemoryUse& use : result.memory)
      if (use.rank == rank && cells.size() < columns.size()) cells.push_back(to_text(Bytes(use.peak_bytes)));
    const auto known = std::ranges::find(rows, cells, [](const auto& row) { return row.first; });
    if (known == rows.end())
      rows.push_back({std::move(cells), {rank}});
    else
      known->second.push_back(rank);
  }
  const std::size_t left_out = std::max(rows.size(), kMostRows) - kMostRows;
  const auto middle = rows.begin() + std::min(rows.size(), kMostRows / 2);
  rows.erase(middle, middle + left_out);
  Table table(columns);
  for (auto& [cells, ranks] : rows) {
    cells.front() = ranks_text(ranks);
    table.add(cells);
  }
  std::string text = table.text();
  if (left_out > 0)
    text += fmt::format("{} more rows after the first {} are in the file of -o\n", left_out, kMostRows / 2);
  if (static_cast<int>(result.breakdown.size()) < result.configuration.world_size)
    text += fmt::format("of {} ranks: one of each kind, the slowest and the fullest\n",
                        result.configuration.world_size);
  return text;
}

std::string memory_text(const Result& result, bool every_term) {
  const auto fullest = std::ranges::max_element(result.memory, {}, &MemoryUse::peak_bytes);
  if (fullest == result.memory.end() || fullest->peak_bytes == 0.0) return "";
  const auto bytes_text = [](double bytes) { return to_text(Bytes(bytes)); };
  std::string text =
      fmt::format("memory of rank {}, the fullest: {}", fullest->rank, bytes_text(fullest->peak_bytes));
  const char* separator = " allocated = ";
  for (const auto& [category, bytes] : fullest->at_peak_bytes)
    if (bytes > 0.0)
      text += std::exchange(separator, " + ") + (category == "process" ? "workspaces" : category) + " " +
              bytes_text(bytes);
  if (fullest->process_bytes > 0.0)
    text += fmt::format("; about {} reserved, the whole process {}", bytes_text(fullest->reserved_bytes),
                        bytes_text(fullest->process_bytes));
  if (!every_term) return text + "\n";
  Table table({"term", "bytes", "share"});
  for (const auto& [term, bytes] : fullest->terms)
    table.add({term, bytes_text(bytes), percent_text(bytes / fullest->peak_bytes)});
  for (const auto& [term, bytes] : fullest->besides)
    table.add({"besides: " + term, bytes_text(bytes), percent_text(bytes / fullest->peak_bytes)});
  return text + "\n\n" + table.text();
}

std::string balance_line(const Result& result) {
  const int data_parallel = result.configuration.data_parallel;
  if (data_parallel == 0 || data_parallel == result.configuration.world_size) return "";
  return fmt::format(
      "bubble {} of the ranks' time; across ranks, compute varies by {}{} (standard deviation over mean)\n",
      percent_text(result.bubble_fraction()), percent_text(result.stage_time_cv()),
      result.memory.empty() ? "" : " and peak memory by " + percent_text(result.memory_cv()));
}

}  // namespace stepcast

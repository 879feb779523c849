#include "sim/cli/result_summary.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/table.hpp"
#include "sim/cli/command.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kMostRanks = 16;

}  // namespace

std::string describe_run(const Configuration& c) {
  const bool trains = c.data_parallel > 0;
  std::string text =
      (trains ? c.model + ", " : "") + c.label + ", world size " + std::to_string(c.world_size);
  if (trains) {
    text += ", batch " + std::to_string(c.batch);
    if (c.data_parallel == c.world_size) text += " per rank";
    if (c.micro_batches > 1) text += " in " + std::to_string(c.micro_batches) + " micro-batches";
    text += ", " + std::to_string(c.threads) + (c.threads == 1 ? " thread" : " threads") + " per rank";
  }
  if (c.engine != "schedule") text += ", " + c.engine + " engine";
  if (!c.device.empty()) text += ", on " + c.device;
  if (c.compute != "real") text += ", " + c.compute + " compute";
  return text;
}

std::string throughput_text(const Result& result) {
  const double throughput = result.throughput_samples_per_s();
  return throughput < 100.0 ? formatted("%.3g samples/s", throughput)
                            : formatted("%.0f samples/s", throughput);
}

std::string rank_table(const Result& result) {
  static const std::vector<std::pair<std::string, double Breakdown::*>> kParts{
      {"compute", &Breakdown::compute_s},
      {"exposed comm", &Breakdown::exposed_communication_s},
      {"overlapped comm", &Breakdown::overlapped_communication_s},
      {"input and host", &Breakdown::input_and_host_s},
      {"optimizer and copies", &Breakdown::optimizer_and_copies_s},
      {"idle", &Breakdown::idle_s}};
  std::vector<std::string> columns{"rank"};
  for (const auto& [name, part] : kParts) columns.push_back(name);
  if (!result.memory.empty()) columns.emplace_back("peak memory");
  Table table(columns);
  for (std::size_t i = 0; i < std::min(result.breakdown.size(), kMostRanks); ++i) {
    // Of a large world the breakdown has rank 0 and the slowest one, as the memory has.
    const int rank = i < result.memory.size() ? result.memory[i].rank : static_cast<int>(i);
    const auto memory = std::ranges::find(result.memory, rank, &MemoryUse::rank);
    std::vector<std::string> cells{std::to_string(rank)};
    for (const auto& [name, part] : kParts) cells.push_back(to_text(Seconds(result.breakdown[i].*part)));
    if (!result.memory.empty())
      cells.push_back(memory == result.memory.end() ? "" : to_text(Bytes(memory->peak_bytes)));
    table.add(cells);
  }
  std::string text = table.text();
  if (result.breakdown.size() > kMostRanks)
    text += "and " + std::to_string(result.breakdown.size() - kMostRanks) + " more ranks, in the file\n";
  return text;
}

std::string balance_line(const Result& result) {
  const int data_parallel = result.configuration.data_parallel;
  if (data_parallel == 0 || data_parallel == result.configuration.world_size) return "";
  return "bubble " + percent_text(result.bubble_fraction()) +
         " of the ranks' time; across ranks, compute varies by " + percent_text(result.stage_time_cv()) +
         (result.memory.empty() ? "" : " and peak memory by " + percent_text(result.memory_cv())) +
         " (standard deviation over mean)\n";
}

}  // namespace stepcast

#include "sim/strategies/pipeline_split.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {
namespace {

/// Indices of the segments that a split counts.
std::vector<int> blocks_of(const Model& model) {
  std::vector<int> blocks;
  for (std::size_t i = 0; i < model.segments.size(); ++i)
    if (model.segments[i].repeated) blocks.push_back(static_cast<int>(i));
  if (!blocks.empty()) return blocks;
  blocks.resize(model.segments.size());
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

std::string joined(const std::vector<int>& counts) {
  std::string text;
  for (const int count : counts) text += (text.empty() ? "" : "-") + std::to_string(count);
  return text;
}

/// `6-2-2-2`. \throws UsageError for anything but positive whole numbers joined by '-'
std::vector<int> parse_counts(const std::string& text, const std::string& split) {
  std::vector<int> counts;
  for (const std::string& part : parts_of(text, '-')) {
    const auto count = positive_number(part);
    if (!count)
      throw UsageError("--split " + split + ": '" + part +
                       "' is no positive number; say 3-3-3-3, even, ratio:2-1-1 or balanced");
    counts.push_back(*count);
  }
  return counts;
}

std::vector<int> even_counts(int blocks, int parts) {
  std::vector<int> counts(static_cast<std::size_t>(parts), blocks / parts);
  for (int i = 0; i < blocks % parts; ++i) ++counts[i];
  return counts;
}

std::vector<int> shares(const std::vector<int>& ratio, int blocks) {
  const double whole = std::accumulate(ratio.begin(), ratio.end(), 0.0);
  std::vector<int> counts;
  double sum = 0.0;
  int before = 0;
  for (const int share : ratio) {
    sum += share;
    const int until = static_cast<int>(std::lround(blocks * sum / whole));
    counts.push_back(until - before);
    before = until;
  }
  return counts;
}

[[noreturn]] void does_not_add_up(const Model& model, const std::string& split, int sum, int blocks,
                                  int parts) {
  std::string text = "--split " + split + " is " + std::to_string(sum) + " blocks, " + model.specification +
                     " has " + std::to_string(blocks);
  if (blocks >= parts) text += "; even is " + joined(even_counts(blocks, parts));
  text += "; for shares say ratio:" + split;
  if (model.settings.contains("layers"))
    text += ", for " + std::to_string(sum) + " blocks " + model.name + ":layers=" + std::to_string(sum);
  throw UsageError(text);
}

/// Segments `first` ... `last` - 1 per part from the blocks per part; riders join the outer parts.
std::vector<std::vector<int>> segments_of(const Model& model, const std::vector<int>& blocks,
                                          const std::vector<int>& counts) {
  std::vector<std::vector<int>> parts;
  int first = 0;
  std::size_t taken = 0;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    taken += static_cast<std::size_t>(counts[part]);
    const bool is_last = part + 1 == counts.size();
    const int end = is_last ? static_cast<int>(model.segments.size()) : blocks[taken - 1] + 1;
    std::vector<int> own(static_cast<std::size_t>(end - first));
    std::iota(own.begin(), own.end(), first);
    parts.push_back(std::move(own));
    first = end;
  }
  return parts;
}

/// The cut into `parts` runs of segments whose longest run is shortest; every run has a block.
std::vector<int> balanced_counts(const std::vector<int>& blocks, int parts,
                                 const std::vector<double>& times) {
  const std::size_t count = blocks.size();
  std::vector<double> until(count + 1, 0.0);  // time before block i, riders before the first included
  for (std::size_t i = 1; i <= count; ++i)
    until[i] = std::accumulate(times.begin(), i == count ? times.end() : times.begin() + blocks[i], 0.0);
  const auto n = static_cast<std::size_t>(parts);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(n + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<std::size_t>> from(n + 1, std::vector<std::size_t>(count + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t part = 1; part <= n; ++part)
    for (std::size_t end = part; end <= count; ++end)
      for (std::size_t start = part - 1; start < end; ++start) {
        const double longest = std::max(best[part - 1][start], until[end] - until[start]);
        if (longest >= best[part][end]) continue;
        best[part][end] = longest;
        from[part][end] = start;
      }
  std::vector<int> counts(n);
  std::size_t end = count;
  for (std::size_t part = n; part > 0; --part) {
    counts[part - 1] = static_cast<int>(end - from[part][end]);
    end = from[part][end];
  }
  return counts;
}

}  // namespace

std::vector<std::vector<int>> split_model(const Model& model, const std::string& split, int parts,
                                          const std::vector<double>& segment_times) {
  const std::vector<int> blocks = blocks_of(model);
  const auto count = static_cast<int>(blocks.size());
  if (count < parts)
    throw UsageError(model.specification + " has " + std::to_string(count) + " blocks, too few for " +
                     std::to_string(parts) + " stages");
  std::vector<int> counts;
  if (split == "even") {
    counts = even_counts(count, parts);
  } else if (split == "balanced") {
    if (segment_times.size() != model.segments.size())
      throw UsageError("--split balanced weighs the blocks by measured time; give --trace");
    counts = balanced_counts(blocks, parts, segment_times);
  } else {
    const bool is_ratio = split.starts_with("ratio:");
    counts = parse_counts(is_ratio ? split.substr(6) : split, split);
    if (static_cast<int>(counts.size()) != parts)
      throw UsageError("--split " + split + " has " + std::to_string(counts.size()) + " stages, but " +
                       std::to_string(parts) + " are due (ranks of a pipeline times virtual stages)");
    if (is_ratio) counts = shares(counts, count);
    const int sum = std::accumulate(counts.begin(), counts.end(), 0);
    if (sum != count) does_not_add_up(model, split, sum, count, parts);
    if (std::find(counts.begin(), counts.end(), 0) != counts.end())
      throw UsageError("--split " + split + " of " + std::to_string(count) + " blocks is " + joined(counts) +
                       "; every stage needs a block");
  }
  return segments_of(model, blocks, counts);
}

std::string split_text(const Model& model, const std::vector<std::vector<int>>& parts) {
  const std::vector<int> blocks = blocks_of(model);
  std::vector<int> counts;
  counts.reserve(parts.size());
  for (const std::vector<int>& part : parts)
    counts.push_back(static_cast<int>(std::count_if(blocks.begin(), blocks.end(), [&](int block) {
      return block >= part.front() && block <= part.back();
    })));
  return joined(counts);
}

}  // namespace stepcast

#include "sim/strategies/pipeline_layout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "sim/strategies/options.hpp"

namespace stepcast {
namespace {

/// \param split as the user wrote it
std::vector<int> parse_counts(const std::string& text, const std::string& split) {
  constexpr std::size_t kMost = 100'000;
  std::vector<int> counts;
  for (const std::string& part : parts_of(text, '-')) {
    const std::size_t x = part.find('x');
    const auto times = x == std::string::npos ? 1 : positive_number(part.substr(0, x));
    const std::string blocks = x == std::string::npos ? part : part.substr(x + 1);
    const auto count = blocks == "0" ? 0 : positive_number(blocks);
    if (!count || !times || counts.size() + static_cast<std::size_t>(*times) > kMost)
      throw UsageError(
          "--split {}: '{}' is no number of blocks; valid: 3-3-3-3, 4x3, even, ratio:2-1-1, balanced", split,
          part);
    counts.insert(counts.end(), static_cast<std::size_t>(*times), *count);
  }
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
  if (blocks >= parts) text += "; even is " + split_text(even_counts(blocks, parts));
  text += "; for shares give ratio:" + split;
  if (model.settings.contains("layers"))
    text += ", for " + std::to_string(sum) + " blocks " + model.name + ":layers=" + std::to_string(sum);
  throw UsageError(text);
}

/// Segments of each part from the blocks per part. Other segments belong to the outer parts.
std::vector<std::vector<int>> segments_of(const Model& model, const std::vector<int>& blocks,
                                          const std::vector<int>& counts) {
  std::vector<std::vector<int>> parts;
  int first = 0;
  std::size_t taken = 0;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    taken += static_cast<std::size_t>(counts[part]);
    const bool is_last = part + 1 == counts.size();
    const int end = is_last      ? static_cast<int>(model.segments.size())
                    : taken == 0 ? blocks.front()
                                 : blocks[taken - 1] + 1;
    parts.push_back(whole_numbers(first, end));
    first = end;
  }
  return parts;
}

/// Cuts into `parts` runs of segments, so that the longest run is as short as possible. Every run has a
/// block.
std::vector<int> balanced_counts(const std::vector<int>& blocks, int parts,
                                 const std::vector<double>& times) {
  const std::size_t count = blocks.size();
  std::vector<double> until(count + 1, 0.0);  // time before block i, with segments before the first
  for (std::size_t i = 1; i <= count; ++i)
    until[i] = std::accumulate(times.begin(), i == count ? times.end() : times.begin() + blocks[i], 0.0);
  const auto n = static_cast<std::size_t>(parts);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(n + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<std::size_t>> from(n + 1, std::vector<std::size_t>(count + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t part = 1; part <= n; ++part)
    for (std::size_t end = part; end <= count; ++end)
      for (std::size_t start = end; start-- > part - 1 && until[end] - until[start] <= best[part][end];) {
        const double longest = std::max(best[part - 1][start], until[end] - until[start]);
        if (longest > best[part][end]) continue;
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

using Order = std::vector<PipelineAction>;

/// `warmup` forwards, then pairs, then the remaining actions.
Order woven(const Order& forwards, const Order& backwards, std::size_t warmup, bool backward_first) {
  Order order(forwards.begin(), forwards.begin() + warmup);
  std::size_t backward = 0;
  for (std::size_t forward = warmup; forward < forwards.size(); ++forward, ++backward) {
    if (backward_first) order.push_back(backwards[backward]);
    order.push_back(forwards[forward]);
    if (!backward_first) order.push_back(backwards[backward]);
  }
  order.insert(order.end(), backwards.begin() + backward, backwards.end());
  return order;
}

/// Adds the W of every I, `delay` I's after it.
Order with_weights(const Order& order, std::size_t delay) {
  Order result, open;
  const auto close_until = [&](std::size_t left) {
    for (; open.size() > left; open.erase(open.begin())) result.push_back(open.front());
  };
  for (const PipelineAction& action : order) {
    result.push_back(action);
    if (action.phase != Phase::kBackwardInput) continue;
    open.push_back({Phase::kBackwardWeight, action.chunk, action.micro_batch});
    close_until(delay);
  }
  close_until(0);
  return result;
}

}  // namespace

std::vector<int> even_counts(int blocks, int parts) {
  std::vector<int> counts(parts, blocks / parts);
  for (int i = 0; i < blocks % parts; ++i) ++counts[i];
  return counts;
}

std::vector<int> blocks_of(const Model& model) {
  std::vector<int> blocks;
  for (std::size_t i = 0; i < model.segments.size(); ++i)
    if (model.segments[i].repeated && !model.segments[i].predicts_later_tokens())
      blocks.push_back(static_cast<int>(i));
  return blocks.empty() ? whole_numbers(0, model.segments.size()) : blocks;
}

std::vector<std::vector<int>> split_model(const Model& model, const std::string& split, int parts,
                                          const std::vector<double>& segment_times) {
  const std::vector<int> blocks = blocks_of(model);
  const auto count = static_cast<int>(blocks.size());
  if (count < parts && (split == "even" || split == "balanced"))
    throw UsageError("{} has {} blocks, too few for {} stages, unless ends have none, as in --split 0-1-1-0",
                     model.specification, count, parts);
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
      throw UsageError(
          "--split {} has {} stages, but {} are needed (ranks of a pipeline times virtual stages)", split,
          counts.size(), parts);
    if (is_ratio) counts = shares(counts, count);
    const int sum = std::accumulate(counts.begin(), counts.end(), 0);
    if (sum != count) does_not_add_up(model, split, sum, count, parts);
  }
  const std::vector<std::vector<int>> all = segments_of(model, blocks, counts);
  for (const std::vector<int>& part : all)
    if (part.empty())
      throw UsageError(
          "--split {} of {} blocks is {}; every stage needs a block, but a first or last one that has "
          "something else (an embedding, a head)",
          split, count, split_text(counts));
  return all;
}

std::vector<int> split_counts(const std::string& split) { return parse_counts(split, split); }

std::string split_text(const std::vector<int>& counts) {
  constexpr std::size_t kReadable = 8;
  std::string text;
  for (std::size_t i = 0, next = 0; i < counts.size(); i = next) {
    next = i + 1;
    while (counts.size() > kReadable && next < counts.size() && counts[next] == counts[i]) ++next;
    text +=
        (i > 0 ? "-" : "") + (next > i + 1 ? std::to_string(next - i) + "x" : "") + std::to_string(counts[i]);
  }
  return text;
}

std::string split_text(const Model& model, const std::vector<std::vector<int>>& parts) {
  const std::vector<int> blocks = blocks_of(model);
  std::vector<int> counts;
  counts.reserve(parts.size());
  for (const std::vector<int>& part : parts)
    counts.push_back(static_cast<int>(std::ranges::count_if(
        blocks, [&](int block) { return block >= part.front() && block <= part.back(); })));
  return split_text(counts);
}

Order pipeline_order(const PipelineShape& shape, int rank, bool forward_only) {
  const int ranks = shape.ranks;
  const int parts = shape.virtual_stages;
  const bool interleaved = shape.schedule == "interleaved";
  const bool halves = shape.schedule == "zb-h1";
  if (!interleaved && parts != 1)
    throw UsageError("--virtual-stages requires --schedule interleaved, not {}", shape.schedule);
  if (interleaved && (parts < 2 || ranks < 2))
    throw UsageError("--schedule interleaved needs at least two ranks and --virtual-stages of at least 2");
  const int rounds = interleaved ? std::max(1, shape.micro_batches / ranks) : 1;
  if (shape.micro_batches % rounds != 0)
    throw UsageError(
        "--schedule interleaved: {} micro-batches do not form {} equal rounds over {} ranks; take a multiple "
        "of the ranks",
        shape.micro_batches, rounds, ranks);
  const int group = shape.micro_batches / rounds;
  Order forwards;
  Order backwards;
  for (int first = 0; first < shape.micro_batches; first += group)
    for (int part = 0; part < parts; ++part)
      for (int i = first; i < first + group; ++i) {
        forwards.push_back({Phase::kForward, part * ranks + rank, i});
        backwards.push_back(
            {halves ? Phase::kBackwardInput : Phase::kBackward, (parts - 1 - part) * ranks + rank, i});
      }
  if (forward_only) return forwards;
  int warmup = shape.micro_batches;  // gpipe
  if (interleaved)
    warmup = std::min(static_cast<int>(forwards.size()), (parts - 1) * group + 2 * (ranks - 1 - rank));
  else if (shape.schedule == "1f1b")
    warmup = std::min(shape.micro_batches, ranks - rank);
  else if (halves)
    warmup = std::min(shape.micro_batches, ranks - 1 - rank);
  else
    std::ranges::reverse(backwards);
  const Order order = woven(forwards, backwards, static_cast<std::size_t>(warmup), !interleaved && !halves);
  return halves ? with_weights(order, static_cast<std::size_t>(rank)) : order;
}

}  // namespace stepcast

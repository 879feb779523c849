#include "sim/kineto/traced_model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>

#include "core/error.hpp"
#include "core/expression.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"
#include "core/text.hpp"
#include "core/yaml.hpp"

namespace stepcast {
namespace {

constexpr double kLargestInput = 1e6;  // elements of an input that a model file may have

/// `aten::conv2d` is `conv2d`, `nn.Module: Conv2d_3` is `Conv2d_3`, `Torch-Compiled Region: 0/1` is
/// `Torch-Compiled`.
std::string short_name(const std::string& name) {
  const auto cut = name.find_last_of(": ");
  const bool numbered = std::ranges::none_of(
      name.substr(cut + 1), [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; });
  std::string result = numbered ? name.substr(0, name.find_first_of(": ")) : name.substr(cut + 1);
  std::erase_if(result, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.';
  });
  return result.empty() ? "segment" : result;
}

/// What equal blocks have in common: the operations and the sizes of their parameters.
std::string signature(const ProfiledSegment& segment, const std::vector<ProfiledOperation>& operations) {
  std::string text = segment.begin < segment.end ? operations[segment.begin].name : "";
  for (const double count : segment.elements) text += fmt::format(",{:.0f}", count);
  return text;
}

void append(ProfiledSegment& to, const ProfiledSegment& next) {
  to.end = next.end;
  // The backward runs the other way: gradients of the later operations are ready first.
  to.elements.insert(to.elements.begin(), next.elements.begin(), next.elements.end());
}

/// Joins segments [first, first + count * period) to `count` blocks.
std::vector<ProfiledSegment> joined_blocks(const std::vector<ProfiledSegment>& fine, std::size_t first,
                                           std::size_t period, std::size_t count) {
  std::vector<ProfiledSegment> result(fine.begin(), fine.begin() + static_cast<long>(first));
  for (std::size_t block = 0; block < count; ++block) {
    ProfiledSegment whole = fine[first + block * period];
    for (std::size_t i = 1; i < period; ++i) append(whole, fine[first + block * period + i]);
    whole.name = fmt::format("block{}", block);
    whole.repeated = true;
    result.push_back(whole);
  }
  result.insert(result.end(), fine.begin() + static_cast<long>(first + period * count), fine.end());
  return result;
}

/// Finds the longest run of at least three equal blocks of several segments each.
std::vector<ProfiledSegment> with_blocks(const std::vector<ProfiledSegment>& fine,
                                         const std::vector<ProfiledOperation>& operations) {
  constexpr std::size_t kLeastBlocks = 3, kMostPeriod = 40;
  const auto signs = transformed(fine, [&](const auto& each) { return signature(each, operations); });
  std::size_t best = 0, best_first = 0, best_period = 0;
  for (std::size_t period = 2; period <= std::min(kMostPeriod, fine.size() / kLeastBlocks); ++period) {
    std::size_t equal = 0;  // consecutive segments that equal the one `period` later
    for (std::size_t i = 0; i + period < fine.size(); ++i) {
      equal = signs[i] == signs[i + period] ? equal + 1 : 0;
      const std::size_t count = equal / period + 1;
      if (equal % period != 0 || count < kLeastBlocks || count * period <= best) continue;
      best = count * period;
      best_first = i + 1 - equal;
      best_period = period;
    }
  }
  return best == 0 ? fine : joined_blocks(fine, best_first, best_period, best / best_period);
}

/// Joins what lies in one unit of FSDP.
std::vector<ProfiledSegment> with_units(const std::vector<ProfiledSegment>& fine,
                                        const std::vector<ProfiledOperation>& operations) {
  std::vector<ProfiledSegment> result;
  std::string unit;
  for (const ProfiledSegment& segment : fine) {
    const std::string& own = operations[segment.begin].unit;
    if (!own.empty() && own == unit) {
      append(result.back(), segment);
      continue;
    }
    unit = own;
    result.push_back(segment);
    if (own.empty()) continue;
    result.back().name = own;
    result.back().repeated = true;
  }
  return result;
}

}  // namespace

double ProfiledSegment::total() const { return std::accumulate(elements.begin(), elements.end(), 0.0); }

std::vector<ProfiledSegment> segments_of(const std::vector<ProfiledOperation>& operations) {
  std::vector<ProfiledSegment> fine;
  for (const auto [i, operation] : enumerated(operations)) {
    if (operation.is_loss) continue;
    const bool has_parameters = !operation.gradients.empty();
    if (fine.empty() || (has_parameters && !fine.back().elements.empty())) fine.push_back({.begin = i});
    if (has_parameters || fine.back().end == 0)  // the first, or the first with parameters
      fine.back().name = short_name(operation.module.empty() ? operation.name : operation.module);
    append(fine.back(),
           {.end = i + 1, .elements = transformed(operation.gradients, &ReadyGradient::elements)});
  }
  if (fine.empty()) fine.push_back({.name = "model", .end = operations.size()});
  const bool units = std::ranges::any_of(operations, [](const auto& each) { return !each.unit.empty(); });
  const bool sized = std::ranges::any_of(fine, [](const auto& each) { return each.total() > 0.0; });
  if (units) fine = with_units(fine, operations);
  if (!units && sized) fine = with_blocks(fine, operations);
  std::map<std::string, int> seen;
  for (ProfiledSegment& segment : fine)
    if (const int before = seen[segment.name]++; before > 0) segment.name += fmt::format("-{}", before + 1);
  return fine;
}

std::vector<ProfiledSegment> segments_like(const Model& model, const std::vector<ProfiledSegment>& found,
                                           const std::string& path) {
  const bool sized = std::ranges::any_of(found, [](const auto& each) { return each.total() > 0.0; });
  const auto count = [sized](const ProfiledSegment& each) {
    return sized ? each.total() : static_cast<double>(each.elements.size());
  };
  std::vector<ProfiledSegment> result;
  std::size_t next = 0;
  for (const Segment& segment : model.segments) {
    ProfiledSegment own{.name = segment.name, .begin = next < found.size() ? found[next].begin : 0};
    own.end = own.begin;
    const double wanted = sized ? static_cast<double>(model.trained_count(segment))
                                : static_cast<double>(segment.parameters.size());
    double sum = 0.0;
    while (next < found.size() && (sum < wanted || count(found[next]) <= 0.0)) {
      sum += count(found[next]);
      append(own, found[next++]);
    }
    if (sum != wanted)
      throw InputError(
          "{}: segment '{}' of model '{}' has {:.0f} {}, consecutive operations of the profile {:.0f}", path,
          segment.name, model.specification, wanted, sized ? "parameters" : "tensors of parameters", sum);
    if (!sized)
      for (std::size_t i = 0; i < own.elements.size(); ++i)
        own.elements[i] = static_cast<double>(model.parameters[segment.parameters[i]].numel());
    result.push_back(own);
  }
  if (next < found.size())
    throw InputError("{}: has {} more with parameters than model '{}'", path,
                     counted(found.size() - next, "operation"), model.specification);
  return result;
}

std::string described_model(const RankProfile& profile, const std::vector<ProfiledSegment>& segments,
                            const std::string& description) {
  const int states = profile.optimizer.states;
  std::string text = fmt::format(
      "description: \"{}\"\ninput: {{kind: features, shape: [{:.0f}]}}\nloss: traced\noptimizer: "
      "{}\nsegments:\n",
      description, std::clamp(profile.input_elements, 1.0, kLargestInput),
      states < 0    ? "none"
      : states == 0 ? "{kind: sgd, learning_rate: 0.01}"
      : states == 1 ? "{kind: sgd, learning_rate: 0.01, momentum: 0.9}"
                    : "{kind: adam, learning_rate: 0.001}");
  for (const auto [i, segment] : enumerated(segments)) {
    text += fmt::format("  - name: \"{}\"\n    {}layers:\n", segment.name,
                        segment.repeated ? "repeat: 1\n    " : "");
    // Layers in the order of the forward; their gradients become ready the other way.
    for (std::size_t k = segment.elements.size(); k-- > 0;)
      if (segment.elements[k] > 0.0)
        text += fmt::format("      - traced: {{name: \"{}.{}\", parameter: {:.0f}B}}\n", segment.name,
                            segment.elements.size() - 1 - k, 4.0 * segment.elements[k]);
    if (i == 0 && profile.buffers > 0)
      text += fmt::format("      - traced: {{name: buffers, buffer: {}B, counters: {}}}\n",
                          4 * profile.buffers, profile.counters);
    else if (segment.total() <= 0.0)
      text += fmt::format("      - traced: {{name: \"{}\"}}\n", segment.name);
  }
  return text;
}

std::vector<std::string> models_with(double parameters) {
  static const Assignment kKnown = assignment_of(YamlNode::shipped("models/parameter_counts/known.yaml"));
  const auto fits = [&](const auto& one) { return one.second == fmt::format("{:.0f}", parameters); };
  return transformed(kKnown.values() | std::views::filter(fits), [](const auto& one) { return one.first; });
}

}  // namespace stepcast

#include "sim/collectives/algorithm.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

using Entry = Registry<Algorithm>::Entry;

/// `ring` of `all_reduce/ring`.
std::string own_name(const Entry& entry) { return entry.name.substr(entry.name.find('/') + 1); }

/// Names of the algorithms of `kind` over `backend`.
std::vector<std::string> choices(CollectiveKind kind, const std::string& backend) {
  std::vector<std::string> names;
  for (const Entry& entry : algorithms().entries())
    if (entry.value.kind == kind && contains(entry.value.backends, backend)) names.push_back(own_name(entry));
  return names;
}

const Algorithm* default_of(CollectiveKind kind, const std::string& backend) {
  for (const Entry& entry : algorithms().entries())
    if (entry.value.kind == kind && contains(entry.value.default_of, backend)) return &entry.value;
  return nullptr;
}

std::pair<CollectiveKind, std::string> parse_choice(const std::string& text, const std::string& backend) {
  const std::size_t equals = text.find('=');
  const auto kind = find_value(kCollectiveKinds, text.substr(0, equals));
  if (!kind || equals == std::string::npos) {
    const auto kinds = transformed(kCollectiveKinds, &CollectiveTraits::name);
    throw UsageError("--algorithm {}: is not COLLECTIVE=NAME; {}", text,
                     unknown_name("collective", text.substr(0, equals), {kinds.begin(), kinds.end()}));
  }
  const std::string name = text.substr(equals + 1);
  const std::vector<std::string> known = choices(*kind, backend);
  if (!contains(known, name))
    throw UsageError("--algorithm {}, {}: {}", text,
                     backend.empty() ? "without a backend" : "backend " + backend,
                     known.empty() ? "there is no choice" : unknown_name("algorithm", name, known));
  return {*kind, name};
}

}  // namespace

Registry<Algorithm>& algorithms() {
  static Registry<Algorithm> registry("collective algorithm");
  return registry;
}

std::size_t element_at(Bytes position, double element_bytes) {
  constexpr double kRounding = 1e-4;
  return static_cast<std::size_t>(std::ceil(position.count() / element_bytes - kRounding));
}

AlgorithmChoice parse_algorithms(const std::string& text, const std::string& backend) {
  AlgorithmChoice choice;
  for (const std::string& part : split(text, ',')) {
    const auto [kind, name] = parse_choice(part, backend);
    if (!choice.emplace(kind, name).second)
      throw UsageError("--algorithm {} chooses {} twice", text, to_text(kind));
  }
  std::erase_if(choice, [&](const auto& one) {
    const Algorithm* own = default_of(one.first, backend);
    return own != nullptr && algorithm_name(*own) == one.second;
  });
  return choice;
}

std::string to_text(const AlgorithmChoice& choice) {
  const auto text_of = [](const auto& one) { return fmt::format("{}={}", to_text(one.first), one.second); };
  return joined(transformed(choice, text_of), ",");
}

const Algorithm& algorithm_for(CollectiveKind kind, const std::string& backend,
                               const AlgorithmChoice& choice) {
  if (const auto chosen = choice.find(kind); chosen != choice.end())
    return algorithms().find(std::string(to_text(kind)) + "/" + chosen->second);
  const Algorithm* own = default_of(kind, backend);
  if (own == nullptr) own = default_of(kind, "");
  if (own == nullptr) throw std::logic_error(std::string("no algorithm for ") + to_text(kind));
  return *own;
}

std::string algorithm_name(const Algorithm& algorithm) {
  for (const Entry& entry : algorithms().entries())
    if (&entry.value == &algorithm) return own_name(entry);
  throw std::logic_error("an algorithm that is not in the table");
}

std::string describe_algorithms() {
  std::string text =
      "what collectives are made of, COLLECTIVE=NAME, separated by commas or one by one, in place of the "
      "backend's own (*):";
  for (const CollectiveTraits& each : kCollectiveKinds)
    for (const Entry& entry : algorithms().entries()) {
      if (entry.value.kind != each.value) continue;
      std::vector<std::string> places;
      for (const std::string& backend : entry.value.backends)
        places.push_back((backend.empty() ? "ideal" : backend) +
                         (contains(entry.value.default_of, backend) ? "*" : ""));
      text += fmt::format("\n{}={}: {} [{}]", each.name, own_name(entry), entry.description, joined(places));
    }
  return text;
}

}  // namespace stepcast

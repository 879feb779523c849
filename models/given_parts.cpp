#include "models/given_parts.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "core/error.hpp"
#include "core/ranges.hpp"

namespace stepcast {
namespace {

bool is_index(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Module of a tensor: up to its `depth`-th index in a list (`layer1.0`), or whole; of the network's own
/// tensors their names.
std::string module_of(const std::string& tensor, int depth) {
  std::string module;
  int indices = 0;
  for (std::size_t start = 0, dot = 0; (dot = tensor.find('.', start)) != std::string::npos;
       start = dot + 1) {
    const std::string word = tensor.substr(start, dot - start);
    module += (module.empty() ? "" : ".") + word;
    if (is_index(word) && ++indices == depth) break;
  }
  return module.empty() ? tensor : module;
}

std::string module_of(const ProgramPiece& piece, int depth) {
  return piece.parameters.empty() ? "" : module_of(piece.parameters.front(), depth);
}

std::vector<ProgramPiece> grouped(const std::vector<ProgramPiece>& pieces,
                                  const std::map<std::string, double>& sizes, double most, int depth) {
  constexpr int kDeepest = 6;
  std::vector<ProgramPiece> result;
  for (auto begin = pieces.begin(), end = begin; begin != pieces.end(); begin = end) {
    const std::string module = module_of(*begin, depth);
    ProgramPiece whole = *begin;
    for (end = begin + 1; end != pieces.end() && module_of(*end, depth) == module; ++end) whole.join(*end);
    const double size = sum_of(std::set<std::string>(whole.parameters.begin(), whole.parameters.end()),
                               [&](const std::string& name) { return sizes.at(name); });
    if (end - begin > 1 && size > most) {
      const std::vector<ProgramPiece> inner(begin, end);
      const std::vector<ProgramPiece> parts =
          depth < kDeepest ? grouped(inner, sizes, most, depth + 1) : inner;
      result.insert(result.end(), parts.begin(), parts.end());
    } else {
      result.push_back(std::move(whole));
    }
  }
  return result;
}

}  // namespace

void ProgramPiece::join(const ProgramPiece& next) {
  end = next.end;
  parameters.insert(parameters.end(), next.parameters.begin(), next.parameters.end());
}

std::vector<ProgramPiece> modules_of(const std::vector<ProgramPiece>& smallest,
                                     const std::map<std::string, double>& sizes) {
  std::vector<ProgramPiece> pieces;
  for (const ProgramPiece& piece : smallest)
    if (!pieces.empty() && (piece.parameters.empty() || pieces.back().parameters.empty()))
      pieces.back().join(piece);
    else
      pieces.push_back(piece);
  const double all = sum_of(sizes, [](const auto& one) { return one.second; });
  return grouped(pieces, sizes, all / 2.0, 1);
}

std::vector<std::string> names_of_parts(const std::vector<ProgramPiece>& pieces,
                                        const std::vector<std::string>& parameters) {
  std::vector<std::string> names;
  std::map<std::string, int> times;
  for (const ProgramPiece& piece : pieces) {
    const auto first = std::ranges::min_element(
        piece.parameters, {}, [&](const std::string& name) { return std::ranges::find(parameters, name); });
    const std::string name = first == piece.parameters.end() ? "network" : module_of(*first, 1);
    const int number = ++times[name];
    names.push_back(number == 1 ? name : fmt::format("{}-{}", name, number));
  }
  return names;
}

}  // namespace stepcast

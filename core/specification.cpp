#include "core/specification.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace stepcast {

Specification Specification::parse(const std::string& what, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {text};
  const auto refuse = [&](const std::string& problem) {
    throw InputError(what + " '" + text + "': " + problem);
  };
  const std::string form = "expected name:key=value[,key=value]";
  const std::size_t colon = text.rfind(':', equals);
  if (colon == std::string::npos) refuse(form);
  Specification result{text.substr(0, colon)};
  for (std::size_t start = colon + 1; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string item = text.substr(start, end - start);
    start = end + 1;
    const std::size_t split = item.find('=');
    if (split == std::string::npos || split == 0 || split + 1 == item.size())
      refuse(form + ", found '" + item + "'");
    const std::string key = item.substr(0, split);
    if (result.find(key) != nullptr) refuse("setting '" + key + "' is set twice");
    result.overrides.emplace_back(key, item.substr(split + 1));
  }
  return result;
}

}  // namespace stepcast

#include "models/execution.hpp"

#include <algorithm>
#include <sstream>

#include "core/error.hpp"
#include "core/table.hpp"

namespace stepcast {

const std::vector<ExecutionOption>& execution_options() {
  static const std::vector<ExecutionOption> kOptions{
      {"attention",
       &Execution::attention,
       {"flash2", "flash3", "flash4", "cudnn", "ck"},
       "kinds of fused attention in order of preference, as cudnn+flash2; the first one counts that has "
       "rates on "
       "the device"},
  };
  return kOptions;
}

std::vector<std::string> choices_of(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, '+');) parts.push_back(part);
  return parts;
}

void set_execution(const ExecutionOption& option, const std::string& text, Execution& execution) {
  const std::vector<std::string> parts = choices_of(text);
  for (const std::string& part : parts)
    if (std::ranges::find(option.known, part) == option.known.end())
      throw InputError(unknown_name("value", part, option.known));
  if (parts.empty()) throw InputError("a value is missing; known are {}", joined(option.known));
  execution.*option.member = text;
}

std::string to_text(const Execution& execution) {
  std::vector<std::string> changed;
  for (const ExecutionOption& option : execution_options())
    if (execution.*option.member != Execution().*option.member)
      changed.push_back(option.name + " " + execution.*option.member);
  return joined(changed, ", ");
}

}  // namespace stepcast

#include "sim/cli/option.hpp"

#include <cmath>
#include <sstream>

namespace stepcast {

Bytes bytes_option(const po::variables_map& values, const std::string& name) {
  try {
    return parse_bytes(values[name].as<std::string>(), "--" + name);
  } catch (const InputError& error) {
    throw UsageError(error.what());
  }
}

BytesPerSecond bytes_per_second_option(const po::variables_map& values, const std::string& name) {
  try {
    return parse_bytes_per_second(values[name].as<std::string>(), "--" + name);
  } catch (const InputError& error) {
    throw UsageError(error.what());
  }
}

int int_option(const po::variables_map& values, const std::string& name, int least) {
  const int value = values[name].as<int>();
  if (value < least)
    throw UsageError("--" + name + " must be at least " + std::to_string(least) + ", got " +
                     std::to_string(value));
  return value;
}

double percent_option(const po::variables_map& values, const std::string& name) {
  const std::string text = values[name].as<std::string>();
  std::istringstream in(text);
  double number = -1.0;
  std::string unit;
  in >> number >> unit;
  if (unit != "%" || !std::isfinite(number) || number < 0.0 ||
      in.peek() != std::istringstream::traits_type::eof())
    throw UsageError("--" + name + ": '" + text + "' is not a percentage; write for example 10%");
  return number / 100.0;
}

std::vector<std::string> list_option(const po::variables_map& values, const std::string& name) {
  const std::string text = values[name].as<std::string>();
  std::vector<std::string> parts;
  if (text == "all") return parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

}  // namespace stepcast

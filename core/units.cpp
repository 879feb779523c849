#include "core/units.hpp"

#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.hpp"
#include "core/number.hpp"
#include "core/table.hpp"

namespace stepcast {
namespace {

/// A prefix or a unit with its factor to the base unit.
struct Factor {
  std::string_view text;
  double factor;
};
using Factors = std::vector<Factor>;

[[noreturn]] void refuse(std::string_view text, std::string_view what, std::string_view reason,
                         std::string_view example) {
  throw InputError("{}: '{}' {}; write for example {}", what, text, reason, example);
}

/// The factor of `unit`, with an SI or IEC prefix where it is `scaled`, to the base unit; a negative number
/// when it is unknown.
double factor_of(std::string_view unit, const Factors& units, bool scaled) {
  static const Factors kPrefixes{{"Ki", kKibi}, {"Mi", kMebi}, {"Gi", kGibi}, {"Ti", kGibi * kKibi},
                                 {"k", 1e3},    {"K", 1e3},    {"M", 1e6},    {"G", 1e9},
                                 {"T", 1e12},   {"P", 1e15}};
  for (const Factor& known : units) {
    if (unit == known.text) return known.factor;
    for (const Factor& prefix : kPrefixes)
      if (scaled && unit.starts_with(prefix.text) && unit.substr(prefix.text.size()) == known.text)
        return known.factor * prefix.factor;
  }
  return -1.0;
}

/// \param least of values that are not 0 and \param most: values outside are typing errors
double parse(std::string_view text, std::string_view what, const Factors& units, std::string_view example,
             double least, double most, bool scaled = true) {
  double number = 0.0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{}) refuse(text, what, "has no number", example);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (!std::isfinite(number) || number < 0.0)
    refuse(text, what, "must be a finite number of at least 0", example);
  if (unit.empty()) {
    if (number == 0.0) return 0.0;
    refuse(text, what, "has no unit", example);
  }
  const double factor = factor_of(unit, units, scaled);
  if (factor < 0.0) refuse(text, what, "has the unknown unit '" + std::string(unit) + "'", example);
  const double value = number * factor;
  if (value > most || (value != 0.0 && value < least)) {
    refuse(text, what, fmt::format("must be 0 or from {:g} to {:g} {}", least, most, units.front().text),
           example);
  }
  return value;
}

/// \param units the base unit first
template <class Quantity>
std::string shortest(Quantity quantity, const Factors& units,
                     Quantity parse_text(std::string_view, std::string_view)) {
  const double value = quantity.count();
  if (value == 0.0) return "0";
  std::string best;
  const auto length = [](const std::string& text) {  // 100MB rather than 0.1GB, but 0.5us rather than 5e-07s
    return text.size() + (text.starts_with("0.") ? 2 : 0) + (text.find("e-") != std::string::npos ? 4 : 0);
  };
  for (const auto& [unit, factor] : units) {
    const std::string text = shortest_text(value / factor).append(unit);
    if (best.empty() || (length(text) < length(best) && parse_text(text, "").count() == value)) best = text;
  }
  return best;
}

std::string format(double value, const char* unit) {
  const int decimals = std::abs(value) >= 100.0 ? 0 : std::abs(value) >= 10.0 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string format_si(double value, const std::string& unit) {
  for (const auto& [factor, prefix] : {std::pair{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (std::abs(value) >= factor * 0.9995) return format(value / factor, (prefix + unit).c_str());
  return format(value, unit.c_str());
}

}  // namespace

Seconds parse_seconds(std::string_view text, std::string_view what) {
  static const Factors kTimeUnits{{"s", 1.0},    {"ms", 1e-3},  {"us", 1e-6}, {"µs", 1e-6},  {"ns", 1e-9},
                                  {"min", 60.0}, {"h", 3600.0}, {"sec", 1.0}, {"d", 86400.0}};
  return Seconds(parse(text, what, kTimeUnits, "5us, 2.5ms or 1s", 1e-15, 1e12, false));
}
Bytes parse_bytes(std::string_view text, std::string_view what) {
  return Bytes(parse(text, what, {{"B", 1.0}}, "25MiB, 64KiB or 4B", 1e-3, 1e18));
}
BytesPerSecond parse_bytes_per_second(std::string_view text, std::string_view what) {
  static const Factors kRateUnits{{"B/s", 1.0},   {"Bps", 1.0},     {"b/s", 0.125},
                                  {"bps", 0.125}, {"bit/s", 0.125}, {"byte/s", 1.0}};
  return BytesPerSecond(parse(text, what, kRateUnits, "25GB/s (bytes) or 100Gb/s (bits)", 1e-3, 1e18));
}
FlopPerSecond parse_flop_per_second(std::string_view text, std::string_view what) {
  static const Factors kFlopRateUnits{{"FLOP/s", 1.0}, {"FLOPS", 1.0}, {"flop/s", 1.0}, {"f", 1.0}};
  return FlopPerSecond(parse(text, what, kFlopRateUnits, "19.5TFLOP/s", 1.0, 1e24));
}
Watts parse_watts(std::string_view text, std::string_view what) {
  return Watts(parse(text, what, {{"W", 1.0}}, "700W or 1.2kW", 1e-3, 1e12));
}

std::string exact_text(Seconds time) {
  return shortest(time, {{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}, parse_seconds);
}
std::string exact_text(Bytes size) {
  static const Factors kUnits{{"B", 1.0},   {"GiB", kGibi}, {"MiB", kMebi}, {"KiB", kKibi},
                              {"TB", 1e12}, {"GB", 1e9},    {"MB", 1e6},    {"kB", 1e3}};
  return shortest(size, kUnits, parse_bytes);
}
std::string exact_text(BytesPerSecond rate) {
  return shortest(rate, {{"B/s", 1.0}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}}, parse_bytes_per_second);
}

std::string to_text(Seconds time) {
  const double value = time.count();
  const double size = std::abs(value);
  if (size >= 0.9995 || size == 0.0) return format(value, "s");
  if (size >= 0.9995e-3) return format(value * 1e3, "ms");
  if (size >= 0.9995e-6) return format(value * 1e6, "us");
  return format(value * 1e9, "ns");
}

std::string to_text(Bytes size) {
  const double value = size.count();
  for (const auto& [factor, unit] :
       {std::pair{kGibi * kKibi, "TiB"}, {kGibi, "GiB"}, {kMebi, "MiB"}, {kKibi, "KiB"}})
    if (value >= factor) return format(value / factor, unit);
  return fmt::format("{:.0f} B", value);
}

std::string to_text(BytesPerSecond rate) { return format_si(rate.count(), "B/s"); }
std::string to_text(FlopPerSecond rate) { return format_si(rate.count(), "FLOP/s"); }

}  // namespace stepcast

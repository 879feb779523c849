#include "core/units.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>

#include "core/error.hpp"

namespace stepcast {
namespace {

struct Prefix {
  std::string_view text;
  double factor;
};
constexpr std::array<Prefix, 10> kPrefixes{{{"Ki", kKibi},
                                            {"Mi", kMebi},
                                            {"Gi", kGibi},
                                            {"Ti", kGibi* kKibi},
                                            {"k", 1e3},
                                            {"K", 1e3},
                                            {"M", 1e6},
                                            {"G", 1e9},
                                            {"T", 1e12},
                                            {"P", 1e15}}};

/// A unit as people write it, with the factor to the base unit; `scaled` units take an SI or IEC prefix.
struct UnitFactor {
  std::string_view text;
  double factor;
  bool scaled;
};
constexpr std::array<UnitFactor, 9> kTimeUnits{{{"s", 1.0, false},
                                                {"ms", 1e-3, false},
                                                {"us", 1e-6, false},
                                                {"µs", 1e-6, false},
                                                {"ns", 1e-9, false},
                                                {"min", 60.0, false},
                                                {"h", 3600.0, false},
                                                {"sec", 1.0, false},
                                                {"d", 86400.0, false}}};
constexpr std::array<UnitFactor, 1> kByteUnits{{{"B", 1.0, true}}};
constexpr std::array<UnitFactor, 6> kRateUnits{{{"B/s", 1.0, true},
                                                {"Bps", 1.0, true},
                                                {"b/s", 0.125, true},
                                                {"bps", 0.125, true},
                                                {"bit/s", 0.125, true},
                                                {"byte/s", 1.0, true}}};
constexpr std::array<UnitFactor, 4> kFlopRateUnits{
    {{"FLOP/s", 1.0, true}, {"FLOPS", 1.0, true}, {"flop/s", 1.0, true}, {"f", 1.0, true}}};

[[noreturn]] void refuse(std::string_view text, std::string_view what, std::string_view reason,
                         std::string_view example) {
  throw InputError(std::string(what) + ": '" + std::string(text) + "' " + std::string(reason) +
                   "; write for example " + std::string(example));
}

/// The factor of `unit` to the base unit, or a negative number when it is unknown.
double factor_of(std::string_view unit, std::span<const UnitFactor> units) {
  for (const UnitFactor& known : units) {
    if (unit == known.text) return known.factor;
    if (!known.scaled || unit.size() <= known.text.size() || !unit.ends_with(known.text)) continue;
    const std::string_view prefix = unit.substr(0, unit.size() - known.text.size());
    for (const Prefix& candidate : kPrefixes)
      if (prefix == candidate.text) return known.factor * candidate.factor;
  }
  return -1.0;
}

/// \param least of what is not 0 and \param most: beyond them a value is a slip of the pen
double parse(std::string_view text, std::string_view what, std::span<const UnitFactor> units,
             std::string_view example, double least, double most) {
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
  const double factor = factor_of(unit, units);
  if (factor < 0.0) refuse(text, what, "has the unknown unit '" + std::string(unit) + "'", example);
  const double value = number * factor;
  if (value > most || (value != 0.0 && value < least)) {
    std::array<char, 96> range{};
    std::snprintf(range.data(), range.size(), "must be 0 or from %g to %g %s", least, most,
                  std::string(units.front().text).c_str());
    refuse(text, what, range.data(), example);
  }
  return value;
}

std::string format(double value, const char* unit) {
  std::array<char, 64> buffer{};
  const char* pattern = std::abs(value) >= 100.0  ? "%.0f %s"
                        : std::abs(value) >= 10.0 ? "%.1f %s"
                                                  : "%.2f %s";
  std::snprintf(buffer.data(), buffer.size(), pattern, value, unit);
  return buffer.data();
}

std::string format_si(double value, const std::string& unit) {
  for (const auto& [factor, prefix] : {std::pair{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (std::abs(value) >= factor * 0.9995) return format(value / factor, (prefix + unit).c_str());
  return format(value, unit.c_str());
}

}  // namespace

Seconds parse_seconds(std::string_view text, std::string_view what) {
  return Seconds(parse(text, what, kTimeUnits, "5us, 2.5ms or 1s", 1e-15, 1e9));
}
Bytes parse_bytes(std::string_view text, std::string_view what) {
  return Bytes(parse(text, what, kByteUnits, "25MiB, 64KiB or 4B", 1e-3, 1e18));
}
BytesPerSecond parse_bytes_per_second(std::string_view text, std::string_view what) {
  return BytesPerSecond(parse(text, what, kRateUnits, "25GB/s (bytes) or 100Gb/s (bits)", 1e-3, 1e18));
}
FlopPerSecond parse_flop_per_second(std::string_view text, std::string_view what) {
  return FlopPerSecond(parse(text, what, kFlopRateUnits, "19.5TFLOP/s", 1.0, 1e24));
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
    if (value >= factor)
      return value == std::floor(value / factor) * factor ? format_si(value / factor, unit)
                                                          : format(value / factor, unit);
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.0f B", value);
  return buffer.data();
}

std::string to_text(BytesPerSecond rate) { return format_si(rate.count(), "B/s"); }
std::string to_text(FlopPerSecond rate) { return format_si(rate.count(), "FLOP/s"); }

}  // namespace stepcast

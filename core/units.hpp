#pragma once

#include <chrono>
#include <compare>
#include <string>
#include <string_view>

/// Quantities with their units in the type, the parsers of quantities in text, and the printers.
///
/// Inside stepcast every quantity is in base units: seconds, bytes, flop. GB = 10^9 bytes, GiB = 2^30 bytes,
/// `b` is a bit and `B` a byte. Only meaningful operations exist: bytes divided by bytes per second are
/// seconds, bytes plus seconds do not compile.
namespace stepcast {

using Seconds = std::chrono::duration<double>;

/// A number of one unit. `Tag` makes quantities of different units different types.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(double value) : value_(value) {}

  /// The number of base units (bytes, flop, bytes per second, flop per second).
  [[nodiscard]] constexpr double count() const { return value_; }

  constexpr Quantity& operator+=(Quantity other) {
    value_ += other.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value_ -= other.value_;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value_ + b.value_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value_ - b.value_); }
  friend constexpr Quantity operator*(Quantity a, double factor) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator*(double factor, Quantity a) { return Quantity(a.value_ * factor); }
  friend constexpr Quantity operator/(Quantity a, double divisor) { return Quantity(a.value_ / divisor); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value_ / b.value_; }
  // NOLINTNEXTLINE(modernize-use-nullptr): false alarm
  friend constexpr auto operator<=>(Quantity a, Quantity b) = default;

 private:
  double value_ = 0.0;
};

using Bytes = Quantity<struct BytesTag>;
using Flop = Quantity<struct FlopTag>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag>;
using FlopPerSecond = Quantity<struct FlopPerSecondTag>;
using Watts = Quantity<struct WattsTag>;

constexpr Seconds operator/(Bytes amount, BytesPerSecond rate) {
  return Seconds(amount.count() / rate.count());
}
constexpr Seconds operator/(Flop amount, FlopPerSecond rate) {
  return Seconds(amount.count() / rate.count());
}
constexpr BytesPerSecond operator/(Bytes amount, Seconds time) {
  return BytesPerSecond(amount.count() / time.count());
}
constexpr Bytes operator*(BytesPerSecond rate, Seconds time) { return Bytes(rate.count() * time.count()); }

constexpr double kMicro = 1e-6;
constexpr double kGiga = 1e9;
constexpr double kKibi = 1024.0;
constexpr double kMebi = 1024.0 * 1024.0;
constexpr double kGibi = 1024.0 * 1024.0 * 1024.0;

/// Parsers of user input: `25GB/s`, `100Gb/s`, `5us`, `25MiB`, `2.5 GFLOP/s`; one space before the
/// unit is allowed. A number without unit is an error unless it is 0. `what` names the option or key in the
/// message.
/// \throws InputError with an example of the right form.
Seconds parse_seconds(std::string_view text, std::string_view what);
Bytes parse_bytes(std::string_view text, std::string_view what);
BytesPerSecond parse_bytes_per_second(std::string_view text, std::string_view what);
FlopPerSecond parse_flop_per_second(std::string_view text, std::string_view what);
Watts parse_watts(std::string_view text, std::string_view what);

/// The shortest text from which the parser reads exactly this quantity: `25MiB`, `0.5us`; `0` for none.
std::string exact_text(Seconds time);
std::string exact_text(Bytes size);
std::string exact_text(BytesPerSecond rate);

/// Readable text: three or four significant digits with a fitting prefix: `1.23 ms`, `25 MiB`, `1.18
/// GB/s`.
std::string to_text(Seconds time);
std::string to_text(Bytes size);
std::string to_text(BytesPerSecond rate);
std::string to_text(FlopPerSecond rate);

}  // namespace stepcast

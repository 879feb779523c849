#include "core/units.hpp"

#include <catch2/catch.hpp>

#include "core/error.hpp"

namespace stepcast::units_test {

TEST_CASE("bits and bytes, SI and IEC prefixes are distinguished") {
  CHECK(parse_bytes_per_second("100Gb/s", "x").count() == 12.5e9);
  CHECK(parse_bytes_per_second("12.5 GB/s", "x").count() == 12.5e9);
  CHECK(parse_bytes_per_second("1GiB/s", "x").count() == 1073741824.0);
  CHECK(parse_bytes_per_second("800Mbit/s", "x").count() == 100e6);
  CHECK(parse_bytes("25MiB", "x").count() == 26214400.0);
  CHECK(parse_bytes("25MB", "x").count() == 25e6);
  CHECK(parse_bytes("4B", "x").count() == 4.0);
  CHECK(parse_seconds("5us", "x").count() == Approx(5e-6));
  CHECK(parse_seconds("5µs", "x").count() == Approx(5e-6));
  CHECK(parse_seconds("1.5 min", "x").count() == 90.0);
  CHECK(parse_flop_per_second("19.5TFLOP/s", "x").count() == Approx(19.5e12));
}

TEST_CASE("a bare number is refused with an example unless it is zero") {
  CHECK(parse_seconds("0", "x").count() == 0.0);
  CHECK_THROWS_WITH(parse_bytes("25", "--bucket-cap"), Catch::Contains("--bucket-cap") &&
                                                           Catch::Contains("'25' has no unit") &&
                                                           Catch::Contains("25MiB"));
}

TEST_CASE("what is no quantity is refused with the text that was written") {
  for (const char* text :
       {"GB/s", "", "25 gb/s", "25Gb", "-1GB/s", "nanGB/s", "infGB/s", "25  GB/s", "0x1GB/s"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_bytes_per_second(text, "bandwidth"), InputError);
  }
  CHECK_THROWS_WITH(parse_seconds("5 parsec", "latency"), Catch::Contains("unknown unit 'parsec'"));
}

TEST_CASE("what is printed can be read back") {
  for (const double value : {1.0, 12.5, 999.0, 1.5e3, 2.25e6, 117.7e6, 12.5e9})
    CHECK(parse_bytes_per_second(to_text(BytesPerSecond(value)), "x").count() ==
          Approx(value).epsilon(0.005));
  for (const double value : {3e-9, 5e-6, 0.0999e-3, 1.25e-3, 0.33, 0.9996, 12.0})
    CHECK(parse_seconds(to_text(Seconds(value)), "x").count() == Approx(value).epsilon(0.005));
  for (const double value : {0.0, 4.0, 1023.0, 1024.0, 25 * kMebi, 1.5 * kGibi})
    CHECK(parse_bytes(to_text(Bytes(value)), "x").count() == Approx(value).epsilon(0.005));
  CHECK(to_text(Bytes(1000 * kMebi)) == "1000 MiB");
}

TEST_CASE("bytes divided by bytes per second are seconds") {
  CHECK((Bytes(10) / BytesPerSecond(2)).count() == 5.0);
  CHECK((BytesPerSecond(2) * Seconds(5)).count() == 10.0);
  CHECK(Bytes(6) / Bytes(3) == 2.0);
}

}  // namespace stepcast::units_test

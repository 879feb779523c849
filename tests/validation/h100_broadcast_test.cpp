#include <algorithm>
#include <catch2/catch.hpp>

#include "core/error.hpp"
#include "sim/validation/case_prediction.hpp"

namespace stepcast::h100_broadcast_test {
namespace {

const std::string kBroadcast = "h100x4-host-to-device-broadcast";

PublishedCase shipped() {
  for (PublishedCase& one : load_published(""))
    if (one.id == kBroadcast) return one;
  throw std::runtime_error("no case " + kBroadcast);
}

const CasePrediction& prediction() {
  static const CasePrediction once = predict_case(shipped());
  return once;
}

const PredictedValue& time_of(const CasePrediction& from, std::size_t row) {
  return from.rows.at(row).at("time_s");
}

bool names(const CasePrediction& from, const std::string& parameter) {
  return std::any_of(from.unidentified.begin(), from.unidentified.end(), [&](const std::string& line) {
    return line.find("unidentified: " + parameter + "; with ") == 0;
  });
}

}  // namespace

TEST_CASE("the broadcast's fit rows are reproduced within their rounding, under every set of assumptions") {
  for (const auto& [row, seconds] : {std::pair<std::size_t, double>{0, 1.504}, {1, 0.404}}) {
    CHECK(time_of(prediction(), row).central.front() == Approx(seconds).epsilon(1e-6));
    CHECK(time_of(prediction(), row).low.front() >= seconds - 0.0005001);
    CHECK(time_of(prediction(), row).high.front() <= seconds + 0.0005001);
  }
}

TEST_CASE("the broadcast's third method is a range that its parameters, which no row identifies, explain") {
  for (const char* parameter : {"nvlink", "rounding_of_the_fit_rows", "pinned_rate", "chunk"})
    CHECK(names(prediction(), parameter));
  // The buffer is what 28 ms, less or more 0.6 ms of rounding, of three NVLink copies carry.
  const double least = (0.028 - 0.000625) / 3.0 * 370.8e9;
  const double most = (0.028 + 0.000625) / 3.0 * 450e9;
  const PredictedValue& time = time_of(prediction(), 2);
  CHECK(time.low.front() == Approx(least / 55e9).epsilon(0.02));
  CHECK(time.high.front() == Approx(most / 45e9 + 3.0 * 256 * kMebi / 450e9).epsilon(0.02));
  CHECK(time.low.front() < time.central.front());
  CHECK(time.central.front() < time.high.front());
  const auto says = [](const std::string& text) {
    const auto& lines = prediction().assumed;
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  CHECK(says("45 to 55 GB/s"));
  CHECK(says("rounding"));
  const bool inside = time.low.front() <= 0.103 && 0.103 <= time.high.front();
  CHECK(says("lie outside the range") != inside);
}

TEST_CASE("the broadcast's prediction uses the two rows to fit alone") {
  PublishedCase changed = shipped();
  changed.rows[2].facts["time_s"] = 77.0;
  const CasePrediction other = predict_case(changed);
  for (std::size_t row = 0; row < 3; ++row) {
    CHECK(time_of(other, row).central.front() ==
          Approx(time_of(prediction(), row).central.front()).epsilon(1e-9));
    CHECK(time_of(other, row).high.front() == Approx(time_of(prediction(), row).high.front()).epsilon(1e-9));
  }
}

TEST_CASE("twice the time between GPUs is twice the buffer: the third method takes twice as long") {
  PublishedCase slower = shipped();
  slower.rows[1].facts["time_s"] = 0.404 + 0.028;
  const double chunk_s = 3.0 * 64 * kMebi / 370.8e9;  // the last chunk is as long as before
  CHECK(time_of(predict_case(slower), 2).central.front() - chunk_s ==
        Approx(2.0 * (time_of(prediction(), 2).central.front() - chunk_s)).epsilon(1e-2));
}

TEST_CASE("a broadcast that cannot be fitted says which row and what it expects") {
  PublishedCase unknown = shipped();
  unknown.rows[0].facts["method"] = "sequentiel";
  CHECK_THROWS_WITH(predict_case(unknown),
                    Catch::Contains("rows[0]") && Catch::Contains("did you mean 'sequential'"));
  PublishedCase third = shipped();
  third.rows[2].fit = true;
  CHECK_THROWS_WITH(predict_case(third), Catch::Contains("rows[2]") && Catch::Contains("predict"));
  PublishedCase one_row = shipped();
  one_row.rows.erase(one_row.rows.begin());
  CHECK_THROWS_WITH(predict_case(one_row), Catch::Contains(kBroadcast) && Catch::Contains("sequential"));
}

}  // namespace stepcast::h100_broadcast_test

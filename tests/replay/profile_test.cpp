#include "sim/replay/profile.hpp"

#include <catch2/catch.hpp>

#include "sim/replay/prediction.hpp"
#include "tests/temporary_folder.hpp"

namespace stepcast::profile_test {
namespace {

constexpr const char* kModel = "gpt:layers=2,hidden=64,heads=4,sequence=32,vocabulary=512";
constexpr const char* kProfile = R"({
  "1": {"2": {"0": [0.010, 0, 0.001], "1": [0.020, 0.040, 0.001],
              "2": [0.020, 0.040, 0.001], "3": [0.005, 0.010, 0.001]}},
  "4": {"2": {"0": [0.001, 0, 0.001], "1": [0.030, 0.060, 0.001],
              "2": [0.030, 0.060, 0.001], "3": [0.006, 0.012, 0.001]}}})";

PredictionRequest request(const std::string& path, int samples) {
  PredictionRequest result;
  result.strategy = "ddp";
  result.costs.model = kModel;
  result.costs.trace = path;
  result.environment.cluster = "gh200x4";
  result.training.mesh = Mesh::parse("tensor=2");
  result.training.world_size = 2;
  result.costs.batch = samples;
  result.brief = true;
  return result;
}

}  // namespace

TEST_CASE("a step of profiled layers is their sum, exchanges of tensors included") {
  const TemporaryFolder folder;
  const std::string path = folder.write("profile.json", kProfile);
  CHECK(is_profile(path));
  CHECK(predict(request(path, 4)).median_step_time_s() == Approx(0.067 + 0.132 + 0.004));
  // The embedding takes no longer than with four samples; between sizes times are interpolated.
  CHECK(predict(request(path, 1)).median_step_time_s() == Approx(0.046 + 0.090 + 0.004));
  CHECK(predict(request(path, 2)).median_step_time_s() == Approx((2.0 * 0.140 + 0.203) / 3.0));
}

TEST_CASE("a profile is of the requested device, or of the one that --trace-device names") {
  const TemporaryFolder folder;
  PredictionRequest asked = request(folder.write("profile.json", kProfile), 4);
  const double measured = predict(asked).median_step_time_s();
  asked.costs.device = "gh200";
  CHECK(predict(asked).median_step_time_s() == Approx(measured));
  asked.costs.trace_device = "a100-sxm";
  CHECK(predict(asked).median_step_time_s() < 0.8 * measured);
}

TEST_CASE("a profile that does not fit the model is an error that lists what it has") {
  const TemporaryFolder folder;
  const std::string path = folder.write("profile.json", kProfile);
  const auto refusal = [&](const std::string& model) { return trace_of_profile(path, load_model(model)); };
  CHECK_THROWS_WITH(refusal(std::string(kModel) + ",tensor=4"),
                    Catch::Contains("no tensor parallelism 4; it has 2"));
  CHECK_THROWS_WITH(refusal("gpt:layers=3,hidden=64,heads=4,tensor=2"),
                    Catch::Contains("4 layers") && Catch::Contains("0 to 4"));
  const std::string bad = folder.write("bad.json", R"({"1": {"1": {"0": [0.1, -1, 0]}}})");
  CHECK_THROWS_WITH(trace_of_profile(bad, load_model(kModel)),
                    Catch::Contains("1.1'.0") && Catch::Contains("none negative"));
  const std::string far = folder.write("far.json", R"({"1": {"1": {"2147483647": [0.1, 0.1, 0]}}})");
  CHECK_THROWS_WITH(trace_of_profile(far, load_model(kModel)), Catch::Contains("up to '2147483647'"));
}

}  // namespace stepcast::profile_test

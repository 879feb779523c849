#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "core/temporary.hpp"
#include "runner/lab/matrix.hpp"

namespace stepcast::lab_matrix_test {
namespace {

std::vector<LabPoint> points_of(const std::string& text) {
  const TemporaryFile file(std::filesystem::temp_directory_path() /
                           ("stepcast_study_" + std::to_string(::getpid()) + ".yaml"));
  std::ofstream(file.path()) << text;
  return LabMatrix(file.path()).points();
}

std::string words_of(const LabPoint& point) {
  std::string words = point.name + ":";
  for (const std::string& word : point.words()) words += " " + word;
  return words;
}

const std::string kTwoByTwo = R"(
name: "{training}.{rate}.{world-size}"
parameters: [rate]
every: {cluster: "star:hosts={world-size},rate={rate}", rate: 1Gb/s}
values: {training: {vgg: {model: vgg11-bn-cifar, batch: 8}, simple: {model: simple-cnn}}}
points:
)";

}  // namespace

TEST_CASE("a grid of 2 by 2 values is 4 points, the first key slowest", "[study]") {
  const auto points = points_of(kTwoByTwo + "  - {training: [vgg, simple], world-size: [2, 4]}\n");
  REQUIRE(points.size() == 4);
  CHECK(words_of(points[0]) ==
        "vgg.1Gbs.2: --model vgg11-bn-cifar --batch 8 --world-size 2 --cluster star:hosts=2,rate=1Gb/s");
  CHECK(words_of(points[1]) ==
        "vgg.1Gbs.4: --model vgg11-bn-cifar --batch 8 --world-size 4 --cluster star:hosts=4,rate=1Gb/s");
  CHECK(words_of(points[2]) ==
        "simple.1Gbs.2: --model simple-cnn --world-size 2 --cluster star:hosts=2,rate=1Gb/s");
  CHECK(points[3].settings.at("rate") == "1Gb/s");
}

TEST_CASE("a grid says what every point says otherwise", "[study]") {
  const auto points = points_of(kTwoByTwo + "  - {training: simple, world-size: 8, rate: 5Gb/s}\n");
  REQUIRE(points.size() == 1);
  CHECK(words_of(points[0]) ==
        "simple.5Gbs.8: --model simple-cnn --world-size 8 --cluster star:hosts=8,rate=5Gb/s");
}

TEST_CASE("a value or a gap that nothing explains is an error", "[study]") {
  CHECK_THROWS_WITH(points_of(kTwoByTwo + "  - {training: vg, world-size: 2}\n"),
                    Catch::Contains("did you mean 'vgg'"));
  CHECK_THROWS_WITH(points_of(kTwoByTwo + "  - {training: vgg}\n"),
                    Catch::Contains("a gap that no key fills"));
}

}  // namespace stepcast::lab_matrix_test

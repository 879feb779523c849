#include "sim/study/study.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/error.hpp"
#include "core/file.hpp"
#include "sim/study/answers.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Points of a study; none is lost or computed twice.
namespace stepcast::study_test {
using namespace worlds;
namespace {

const std::string kHeader = "{\"schema\":\"stepcast.study/1\"}\n";

StudyVocabulary words() {
  return {.options = {"strategy", "world-size", "bucket-cap", "cluster", "batch", "pinned"},
          .switches = {"pinned"},
          .matters = [](const std::string& option, const Assignment& point) {
            const std::string* strategy = point.find("strategy");
            return option != "bucket-cap" || strategy == nullptr || *strategy == "ddp";
          }};
}

Study study_of(const std::string& text) {
  const TemporaryFolder folder;
  return load_study(folder.write("study.yaml", text), words());
}

std::string refusal(const std::string& text) {
  return error_of([&] { return study_of(text); });
}

std::vector<std::string> keys(const Study& study) {
  std::vector<std::string> result;
  for (const StudyPoint& point : study.points) result.push_back(point.key);
  return result;
}

}  // namespace

TEST_CASE("the points of a study are all combinations of one element of each block", "[study]") {
  const Study study = study_of(R"(
study: everything at once
predict: {strategy: ddp}
points:
  - grid: {world-size: [2, 4], batch: 8}
  - zip: {rate: [1GB/s, 10GB/s], latency: [50us, 5us]}
  - cases: {link: {far: {cluster: "star:bandwidth={rate},latency={latency}"}, near: {cluster: laptop}}}
  - list: [{bucket-cap: 5MiB}, {bucket-cap: 25MiB, pinned: true}]
)");
  CHECK(study.names == std::vector<std::string>{"world-size", "batch", "rate", "latency", "link", "cluster",
                                                "bucket-cap", "pinned"});
  CHECK(study.points.size() == 2 * 2 * 2 * 2);
  CHECK(study.left_out.empty());
  // The cluster 'laptop' does not depend on rate and latency: points that differ in them share an answer.
  const std::vector<std::string> all = keys(study);
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == 2 * 2 * 2 + 2 * 2);
  CHECK(study.points.front().words() ==
        std::vector<std::string>{"--world-size", "2", "--batch", "8", "--cluster",
                                 "star:bandwidth=1GB/s,latency=50us", "--bucket-cap", "5MiB", "--strategy",
                                 "ddp"});
  CHECK(study.points[1].key.find("--pinned ") != std::string::npos);
}

TEST_CASE("senseless points are left out, counted and explained", "[study]") {
  const Study study = study_of(R"(
study: conditions
predict: {cluster: "star:hosts={world-size/4}"}
points:
  - grid: {strategy: [ddp, single], world-size: [2, 4, 8, 16], bucket-cap: [5MiB, 25MiB]}
skip:
  - {when: {strategy: single, world-size: "> 4"}, because: one rank is one rank}
)");
  std::map<std::string, std::size_t> reasons;
  for (const LeftOut& one : study.left_out) reasons[one.reason] = one.points;
  CHECK(reasons == std::map<std::string, std::size_t>{
                       {"one rank is one rank", 4},
                       {"world-size 2 is not a multiple of 4", 4},
                       {"differ from others in options that have no effect with their strategy", 1}});
  CHECK(study.points.size() == 7);
  const std::vector<std::string> all = keys(study);
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
}

TEST_CASE("what is wrong in a study is named with file, line and key", "[study]") {
  const std::string start = "study: x\npredict: {strategy: ddp}\n";
  CHECK_THAT(refusal(start + "points: [{grid: {wold-size: [1]}}]\n"),
             Catch::Contains("study.yaml:3") && Catch::Contains("did you mean 'world-size'"));
  CHECK_THAT(refusal(start + "points: [{zip: {batch: [1, 2], world-size: [1]}}]\n"),
             Catch::Contains("points[0].zip.world-size") && Catch::Contains("found 1 values, expected 2"));
  CHECK_THAT(refusal(start + "points: [{grid: {batch: [1]}}, {grid: {batch: [2]}}]\n"),
             Catch::Contains("'batch' is assigned by a block before"));
  CHECK_THAT(refusal(start + "points: [{grid: {pinned: [true, False]}}]\n"),
             Catch::Contains("pinned: found 'False', expected yes or no"));
  CHECK_THAT(refusal(start + "points: [{gird: {batch: [1]}}]\n"), Catch::Contains("did you mean 'grid'"));
  CHECK_THAT(refusal("study: x\npredict: {per-device-hour: 3}\npoints: [{grid: {batch: [1]}}]\n"),
             Catch::Contains("predict.per-device-hour") && Catch::Contains("set cost: {per_device_hour: 3}"));
  CHECK_THAT(refusal(start + "points: [{grid: {cluster: [\"star:hosts={ranks}\"]}}]\n"),
             Catch::Contains("unknown name 'ranks'"));
  CHECK_THAT(refusal("study: x\npredict: {stratgy: ddp}\npoints: [{grid: {batch: [1]}}]\n"),
             Catch::Contains("study.yaml:2") && Catch::Contains("did you mean 'strategy'"));
  CHECK_THAT(refusal(start + "points: [{grid: {batch: [1]}}]\nexpect: [{column: step_tim_s, at_least: 1}]\n"),
             Catch::Contains("did you mean 'step_time_s'"));
  const std::string plot = start + "points: [{grid: {batch: [1], world-size: [2]}}]\nplot: [{file: a.svg, ";
  const std::string map = plot + "kind: heatmap, x: batch, y: world-size, value: ";
  CHECK_THAT(refusal(map + "step_time_s, series: batch}]\n"), Catch::Contains("unknown key 'series'"));
  CHECK_THAT(refusal(map + "spleed_up}]\n"), Catch::Contains("plot[0].value: unknown column 'spleed_up'"));
  CHECK_THAT(refusal(map + "step_time_s}, {file: a.png, x: batch, y: efficiency}]\n"),
             Catch::Contains("plot[1].file: another figure has this name"));
  CHECK_THAT(refusal(plot + "kind: hetmap}]\n"), Catch::Contains("did you mean 'heatmap'"));
  CHECK_THAT(refusal(plot + "kind: pareto, x: batch, y: efficiency}]\n"),
             Catch::Contains("plot[0].x: unknown column 'batch'"));
  CHECK_THAT(refusal(start + "points: [{grid: {batch: [1]}}]\ncost: {per_device_hour: -1}\n"),
             Catch::Contains("cost.per_device_hour: expected a number above 0"));
  CHECK_THAT(
      refusal(start + "points: [{grid: {batch: [1]}}]\nskip: [{when: {batch: \"> many\"}, because: x}]\n"),
      Catch::Contains("skip[0].when.batch") && Catch::Contains("found '> many'"));
}

TEST_CASE("a name is used behind a division with a rest, too", "[study]") {
  CHECK_THAT(
      refusal(
          "study: x\npoints: [{grid: {batch: [3], rate: [1Gb/s]}}, {list: [{cluster: \"star:hosts={batch/2},"
          "rate={rate}\"}]}]\npredict: {strategy: ddp}\n"),
      Catch::Contains("no point is left"));
}

TEST_CASE("points that cannot have a result are errors before any is computed", "[study]") {
  const std::string start = "study: x\npredict: {strategy: ddp}\npoints: ", grid = "[{grid: {batch: [1]}}]\n";
  for (const char* empty : {"[]", "[{grid: {}}]"})
    CHECK_THAT(refusal(start + empty + "\n"),
               Catch::Contains("points") && Catch::Contains("world-size: [2, 4]"));
  for (const char* block :
       {"grid: {batch: []}", "zip: {batch: [], world-size: [2]}", "draw: {points: 3, from: {batch: []}}"})
    CHECK_THAT(refusal(start + "[{" + block + "}]\n"), Catch::Contains("batch: expected at least one value"));
  const auto expectation = [&](const std::string& text) {
    return refusal(start + grid + "expect: [{" + text + "}]\n");
  };
  CHECK_THAT(expectation("where: {batch: 2}, column: step_time_s, at_most: 1"),
             Catch::Contains("expect[0].where: no point has these values"));
  CHECK_THAT(expectation("where: {batch: \"> 1s\"}, column: step_time_s, at_most: 1"),
             Catch::Contains("expect[0].where: '1' cannot be compared"));
  CHECK_THAT(expectation("column: measured_s, at_most: 1"),
             Catch::Contains("expect[0].column: 'measured_s' requires a study that runs"));
  CHECK_THAT(expectation("column: step_time_s, below: measured_s"), Catch::Contains("expect[0].below"));
  CHECK_THAT(refusal(start + grid + "plot: [{file: a.svg, x: batch, y: measured_s}]\n"),
             Catch::Contains("plot[0].y: 'measured_s' requires a study that runs"));
  CHECK_THAT(refusal(start + grid + "plot: [{file: a.svg, x: batch, y: step_time_s, where: {batch: 3}}]\n"),
             Catch::Contains("plot[0].where: no point has these values"));
}

namespace {

Study numbered(int points) {
  std::string text = "study: numbers\npredict: {strategy: ddp}\npoints:\n  - grid:\n      batch: [1";
  for (int i = 2; i <= points; ++i) text += ", " + std::to_string(i);
  return study_of(text + "]\n");
}

StudyRow square(const StudyPoint& point) {
  const double batch = std::stod(*point.assigned.find("batch"));
  return {point.key, {{"step_time_s", batch * batch / 3.0}}, "", false};
}

std::vector<std::string> sorted_lines(const std::string& folder) {
  std::ifstream file(folder + "/rows.1-of-1.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("a study that is killed ten times ends with the rows of one that is not", "[study]") {
  const Study study = numbered(400);
  const TemporaryFolder undisturbed;
  const TemporaryFolder killed;
  answer_study(study, {.folder = undisturbed.path(), .jobs = 2}, kHeader, square);
  const auto slow = [](const StudyPoint& point) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return square(point);
  };
  for (int kill = 0; kill < 10; ++kill) {
    const pid_t process = ::fork();
    if (process == 0) {
      answer_study(study, {.folder = killed.path(), .jobs = 2}, kHeader, slow);
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(7 + 3 * kill));
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  answer_study(study, {.folder = killed.path(), .jobs = 2}, kHeader, square);
  CHECK(sorted_lines(killed.path()) == sorted_lines(undisturbed.path()));
  CHECK(sorted_lines(killed.path()).size() == 401);
}

TEST_CASE("a point that fails is a row with its error; if its process dies, it is repeated", "[study]") {
  const Study study = numbered(20);
  const TemporaryFolder folder;
  const auto rows =
      answer_study(study, {.folder = folder.path(), .jobs = 2}, kHeader, [](const StudyPoint& point) {
        const std::string batch = *point.assigned.find("batch");
        if (batch == "7") ::kill(::getpid(), SIGKILL);
        if (batch == "9") throw InputError("no such batch\x1b");
        return square(point);
      });
  CHECK(rows.size() == 20);
  std::map<std::string, std::string> errors;
  for (const auto& [key, row] : rows)
    if (!row.error.empty()) errors[key] = row.error;
  CHECK(errors ==
        std::map<std::string, std::string>{{"--batch=7 --strategy=ddp", "its process was ended by signal 9"},
                                           {"--batch=9 --strategy=ddp", "no such batch\\x1b"}});
  const auto again = answer_study(study, {.folder = folder.path(), .jobs = 1}, kHeader, square);
  CHECK(again.at("--batch=7 --strategy=ddp").error.empty());
  CHECK(again.at("--batch=9 --strategy=ddp").error == "no such batch\\x1b");
  CHECK(sorted_lines(folder.path()).size() == 21);
}

TEST_CASE("points of a small study are answered side by side, unless they may share a forecast", "[study]") {
  const TemporaryFolder folder;
  std::set<double> processes;
  for (const auto& [key, row] :
       answer_study(numbered(4), {.folder = folder.path(), .jobs = 4}, kHeader, [](const StudyPoint& point) {
         return StudyRow{point.key, {{"step_time_s", ::getpid()}}, "", false};
       }))
    processes.insert(row.values.at("step_time_s"));
  CHECK(processes.size() == 4);
  Study trainings = numbered(4);
  for (StudyPoint& point : trainings.points) point.assigned.set("failures", "none");
  CHECK(points_per_batch(trainings) == 4);
  CHECK(points_per_batch(numbered(400)) == 4);
}

TEST_CASE("one run at a time answers a shard", "[study]") {
  const Study study = numbered(3);
  const TemporaryFolder folder;
  const pid_t first = ::fork();
  if (first == 0) {
    answer_study(study, {.folder = folder.path(), .jobs = 1}, kHeader, [](const StudyPoint& point) {
      std::this_thread::sleep_for(std::chrono::seconds(60));
      return square(point);
    });
    ::_exit(0);
  }
  while (!std::filesystem::exists(folder.path() + "/rows.1-of-1.jsonl"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_THROWS_WITH(answer_study(study, {.folder = folder.path(), .jobs = 1}, kHeader, square),
                    Catch::Contains("another run is answering"));
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  CHECK(answer_study(study, {.folder = folder.path(), .jobs = 1}, kHeader, square).size() == 3);
}

TEST_CASE("conditions compare values of the same unit", "[study]") {
  const std::string start =
      "study: x\npredict: {strategy: ddp}\npoints:\n  - grid: {bucket-cap: [900KiB, 25MiB, 1GiB]}\n";
  const auto left = [&](const std::string& when) {
    return study_of(start + "skip: [{when: {" + when + "}, because: x}]\n").points.size();
  };
  CHECK(left("bucket-cap: '> 100MiB'") == 2);
  CHECK(left("bucket-cap: '<= 25MiB'") == 1);
  CHECK_THAT(refusal(start + "skip: [{when: {bucket-cap: '> 100'}, because: x}]\n"),
             Catch::Contains("'900KiB' cannot be compared with '> 100'"));
  CHECK_THAT(refusal(start + "skip: [{when: {bukcet-cap: 25MiB}, because: x}]\n"),
             Catch::Contains("did you mean 'bucket-cap'"));
  CHECK_THAT(refusal(start + "plot: [{file: a.svg, x: bucket-cap, y: step_time_s, where: {wold: 1}}]\n"),
             Catch::Contains("unknown name 'wold'"));
  const Study filled = study_of(
      "study: x\npredict: {strategy: '{way}'}\npoints:\n  - grid: {way: [ddp, fsdp], "
      "bucket-cap: [1MiB, 2MiB]}\nskip: [{when: {strategy: fsdp}, because: not this}]\n");
  CHECK(filled.points.size() == 2);
  CHECK(filled.left_out.front().reason == "not this");
}

TEST_CASE("shards divide the points, and answers of another program are refused", "[study]") {
  const Study study = numbered(10);
  const TemporaryFolder folder;
  for (int shard = 1; shard <= 3; ++shard)
    answer_study(study, {.folder = folder.path(), .jobs = 1, .shard = shard, .shards = 3}, kHeader, square);
  const auto rows =
      answer_study(study, {.folder = folder.path(), .jobs = 1}, kHeader,
                   [](const StudyPoint&) -> StudyRow { throw std::logic_error("asked again"); });
  CHECK(rows.size() == 10);
  for (const auto& [key, row] : rows) CHECK(row.error.empty());
  CHECK_THROWS_WITH(answer_study(study, {.folder = folder.path(), .jobs = 1}, "{\"other\":1}\n", square),
                    Catch::Contains("--force starts again"));
  const auto anew =
      answer_study(study, {.folder = folder.path(), .jobs = 1, .force = true}, "{\"other\":1}\n", square);
  CHECK(anew.size() == 10);
}

TEST_CASE("the table of a study has a line per point in its order", "[study]") {
  const Study study = numbered(2);
  std::map<std::string, StudyRow> rows;
  for (const StudyPoint& point : study.points) rows[point.key] = square(point);
  rows.begin()->second.error = "a \"quoted\", long story";
  const std::string csv = csv_of(study, rows);
  CHECK_THAT(csv, Catch::StartsWith("batch,step_time_s,"));
  CHECK_THAT(csv, Catch::Contains("\n1,0.3333333333333333,") &&
                      Catch::Contains("\"a \"\"quoted\"\", long story\"\n2,1.3333333333333333,"));
}

}  // namespace stepcast::study_test

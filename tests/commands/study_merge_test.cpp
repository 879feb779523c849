#include <catch2/catch.hpp>
#include <regex>

#include "tests/commands/shell.hpp"

/// Studies that several machines answer.
namespace stepcast::tests::study_merge_test {
namespace {

const char* const kStudy = R"(study: Small
predict: {model: synthetic, strategy: ddp, steps: 1, warmup: 1, cluster: "star:hosts=4,bandwidth={rate}"}
points:
  - grid: {world-size: [2, 3, 4], rate: [1GB/s, 10GB/s], bucket-cap: [5MiB, 25MiB]}
plot:
  - {file: step.svg, x: world-size, y: step_time_s, series: bucket-cap, panels: rate}
)";

}  // namespace

TEST_CASE("shards of several folders make the tables of an undivided study", "[commands]") {
  const Shell shell;
  shell.write("small.yaml", kStudy);
  const Outcome whole = shell.run("stepcast study small.yaml -o whole --jobs 2");
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  REQUIRE(shell.run("for i in 1 2 3; do stepcast study small.yaml -o part$((i % 2)) --shard $i/3; done")
              .exit_code == 0);
  const Outcome merged = shell.run("stepcast study small.yaml --merge part0 part1 -o out");
  INFO(merged.err);
  CHECK(merged.exit_code == 0);
  for (const char* file : {"results.csv", "step.dat", "step.svg"})
    CHECK((shell.read(std::string("out/") + file) == shell.read(std::string("whole/") + file)));
  CHECK(shell.run("test -s out/report.html").exit_code == 0);
  // The same folder twice, and what is there already, are taken once.
  CHECK(shell.run("stepcast study small.yaml --merge part0 part1 part0/. -o out").exit_code == 0);
  CHECK(shell.run("wc -l < out/rows.1-of-1.jsonl").out == "13\n");
}

TEST_CASE("a part that is missing is named with the command that answers it", "[commands]") {
  const Shell shell;
  shell.write("small.yaml", kStudy);
  REQUIRE(shell.run("for i in 1 3; do stepcast study small.yaml -o part --shard $i/3; done").exit_code == 0);
  const Outcome merged = shell.run("stepcast study small.yaml --merge part -o out");
  CHECK(merged.exit_code == 3);
  CHECK_THAT(merged.err, Catch::Contains("4 points of 12 are missing, such as '--bucket-cap=") &&
                             Catch::Contains("of --shard 2/3") &&
                             Catch::Contains("'stepcast study small.yaml -o out'"));
  CHECK(shell.run("test -e out/results.csv").exit_code == 1);
  CHECK(shell.run("stepcast study small.yaml -o out").exit_code == 0);
  CHECK(shell.run("wc -l < out/results.csv").out == "13\n");
}

TEST_CASE("answers of another study, and two that differ, are not joined", "[commands]") {
  const Shell shell;
  shell.write("small.yaml", kStudy);
  REQUIRE(shell.run("stepcast study small.yaml -o part").exit_code == 0);
  REQUIRE(shell
              .run("cp -r part other; sed -i 's/\"git_revision\":\"[^\"]*\"/\"git_revision\":\"old\"/' "
                   "other/rows.1-of-1.jsonl")
              .exit_code == 0);
  const Outcome other = shell.run("stepcast study small.yaml --merge part other -o out");
  CHECK(other.exit_code == 3);
  CHECK_THAT(other.err, Catch::Contains("other/rows.1-of-1.jsonl: holds answers of another") &&
                            Catch::Contains("git_revision is \"old\", expected \""));
  REQUIRE(shell.run("cp -r part wrong; sed -i 's/\"step_time_s\":/&1/' wrong/rows.1-of-1.jsonl").exit_code ==
          0);
  const Outcome wrong = shell.run("stepcast study small.yaml --merge part wrong -o out2");
  CHECK(wrong.exit_code == 3);
  CHECK_THAT(wrong.err, Catch::Contains("otherwise than part/rows.1-of-1.jsonl"));
  CHECK_THAT(shell.run("mkdir empty; stepcast study small.yaml --merge empty -o out3").err,
             Catch::Contains("empty: holds no answers"));
}

TEST_CASE("a job array is a script of bash that answers every shard, and none of studies that run",
          "[commands]") {
  const Shell shell;
  shell.write("a study.yaml", kStudy);
  const Outcome array = shell.run(
      "stepcast study 'a study.yaml' -o out --print-sbatch 3 --jobs 2 > array.sh; bash -n array.sh && cat "
      "array.sh");
  INFO(array.err);
  REQUIRE(array.exit_code == 0);
  CHECK_THAT(array.out, Catch::StartsWith("#!/bin/bash\n") && Catch::Contains("#SBATCH --array=1-3\n") &&
                            Catch::Contains("#SBATCH --cpus-per-task=2\n") &&
                            Catch::Contains("#SBATCH --time=0:11:00\n"));
  const Outcome twelve = shell.run("stepcast study 'a study.yaml' -o out --print-sbatch 12 --jobs 4");
  std::smatch times;  // each job answers one point, whatever its processes
  REQUIRE(
      std::regex_search(twelve.out, times, std::regex("about (.*) each, by .* that took (.*) each here")));
  CHECK(times[1] == times[2]);
  CHECK(shell.run("for i in 1 2 3; do SLURM_ARRAY_TASK_ID=$i bash array.sh || exit 1; done").exit_code == 0);
  // The command that the comment passes to sbatch, run by a shell.
  const Outcome joined = shell.run(
      "sbatch() { for one; do :; done; eval \"${one#--wrap=}\"; }; eval \"$(sed -n 's/^#   //p' array.sh)\"");
  INFO(joined.err);
  CHECK(joined.exit_code == 0);
  CHECK(shell.run("wc -l < out/results.csv").out == "13\n");
  CHECK_THAT(shell.run("stepcast study demo -o out --print-sbatch 3").err,
             Catch::Contains("which are measurements of one machine"));
  CHECK(shell.run("stepcast study 'a study.yaml' --print-sbatch 3").exit_code == 2);
}

}  // namespace stepcast::tests::study_merge_test

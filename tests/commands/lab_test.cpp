#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/statistics.hpp"
#include "records/result.hpp"
#include "tests/commands/shell.hpp"

/// The lab as users run it. Without the right to make network namespaces, these tests warn and check the
/// lab's error message alone.
namespace stepcast::tests::lab_test {
namespace {

using Catch::Contains;

const char* const kTraining =
    " -- run --strategy all_reduce --model simple-cnn --batch 2 --warmup 1 --timeout 20s ";

/// True if labs can be built here; else checks the error message.
bool lab_is_possible(const Shell& shell) {
  const Outcome outcome = shell.run("stepcast lab up --name probe --cluster lab-star:hosts=1");
  if (outcome.exit_code == 5) {
    CHECK_THAT(outcome.err, Contains("needs root") || Contains("iproute2"));
    WARN("no network namespaces here: " << outcome.err);
    return false;
  }
  CHECK(outcome.exit_code == 0);
  CHECK(shell.run("stepcast lab down --name probe").exit_code == 0);
  return true;
}

/// Network namespaces of this lab. Others may belong to other processes.
std::string spaces(const Shell& shell, const std::string& lab) {
  return shell.run("ip netns list | grep stepcast-" + lab + "-").out;
}

/// Starts a long run in a lab of two hosts in the background and waits until its ranks train. The shell's
/// variable `pid` is that of `lab run`.
std::string start_long_run(const std::string& lab) {
  return "set -m\n"  // else jobs in the background ignore SIGINT
         "stepcast lab run --name " +
         lab + " --cluster lab-star:hosts=2,rate=1Gb/s" + kTraining +
         "--steps 100000 > out.txt 2> err.txt & pid=$!\n"
         "for i in $(seq 1200); do grep -q 'step 0' err.txt && break; sleep 0.1; done\n"
         "grep 'step 0' err.txt\n";
}

}  // namespace

TEST_CASE("a lab is built, shown, used and removed without a trace", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  CHECK(shell.run("stepcast lab status --name ta").out == "lab 'ta': there is none\n");
  CHECK_THAT(shell.run("stepcast lab up --name ta --cluster lab-star:hosts=2,rate=1Gb/s").out,
             Contains("2 hosts, 1 switch, 2 links"));
  const std::string status = shell.run("stepcast lab status --name ta").out;
  CHECK_THAT(status, Contains("lab-star:hosts=2,rate=1Gb/s") && Contains("stepcast-ta-host1") &&
                         Contains("eth0 up, sends at most 118 MB/s"));
  CHECK(shell.run("ip netns exec stepcast-ta-host1 cat /proc/sys/net/ipv4/tcp_congestion_control").out ==
        "reno\n");
  const Outcome run = shell.run(std::string("stepcast lab run --name ta --ranks-per-host 2") + kTraining +
                                "--steps 3 -o run.json");
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(nlohmann::json::parse(shell.read("run.json"))["configuration"]["world_size"] == 4);
  for (const std::string& again : {std::string("run"), std::string("up")}) {
    const Outcome refused = shell.run("stepcast lab " + again + " --name ta --cluster lab-star:hosts=3" +
                                      (again == "run" ? std::string(kTraining) : ""));
    CHECK(refused.exit_code == 1);
    CHECK_THAT(refused.err,
               Contains("a lab named 'ta' exists; remove it with 'stepcast lab down --name ta'"));
  }
  CHECK_THAT(shell.run("stepcast lab down --name ta").out, Contains("removed 3 network namespaces"));
  CHECK(spaces(shell, "ta").empty());
  CHECK_THAT(shell.run("stepcast lab down --name ta").out, Contains("there was none"));
}

TEST_CASE("a lab writes through no link that somebody put into the folder of temporary files",
          "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const std::string up =
      "export TMPDIR=$PWD; ln -s victim stepcast-lab-$$.batch; exec stepcast lab up --name tl --cluster ";
  CHECK(shell.run("sh -c '" + up + "lab-star:hosts=1'").exit_code == 0);
  CHECK_FALSE(shell.files().contains("victim"));
  CHECK(shell.run("stepcast lab down --name tl").exit_code == 0);
}

TEST_CASE("a lab starts any program on its hosts, with torchrun's variables and over its links",
          "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  shell.write("rank.sh",
              "[[ $RANK != 0 ]] || ip -brief address > hosts.txt\n"
              "echo \"$RANK $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT\" > said.$RANK\n"
              "exit $((RANK == 3 ? ${1:-0} : 0))\n");
  const std::string lab =
      "stepcast lab run --name tg --cluster lab-star:hosts=2 --ranks-per-host 2 -- bash rank.sh ";
  const Outcome run = shell.run(lab);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  for (int rank = 0; rank < 4; ++rank)
    CHECK_THAT(shell.read("said." + std::to_string(rank)),
               Contains(std::to_string(rank) + " " + std::to_string(rank % 2) + " of 4 at 10."));
  CHECK_THAT(shell.read("hosts.txt"), Contains("eth0"));
  CHECK(shell.run(lab + "7").exit_code != 0);
  CHECK(spaces(shell, "tg").empty());
}

/// Median rate at which one rank's part of each collective crossed its link. \pre the lab is possible
std::vector<double> median_rates(const Shell& shell) {
  const Outcome outcome = shell.run(
      "stepcast lab run --name tb --cluster lab-star:hosts=2,rate=1Gb/s -- bench --collectives "
      "gather,scatter "
      "--min 4MiB --max 4MiB -o bench.json --force");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const auto bench = nlohmann::json::parse(shell.read("bench.json"));
  std::vector<double> rates;
  for (const auto& row : bench["rows"]) {
    const std::vector<double> times = row["time_s"];
    rates.push_back(row["message_bytes"].get<double>() / 2.0 / median(times));
  }
  return rates;
}

constexpr double kPayloadRate = 0.941 * 125e6;  ///< bytes per second that TCP carries over 1 Gbit/s

TEST_CASE("links of a lab never carry more than the cluster's bandwidth, both ways", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const std::vector<double> rates = median_rates(shell);
  REQUIRE(rates.size() == 2);
  for (const double rate : rates) CHECK(rate <= 1.02 * kPayloadRate);
  CHECK(spaces(shell, "tb").empty());
}

// Hidden, because busy cores carry less.
TEST_CASE("links of a lab carry the cluster's bandwidth within 10 %, both ways", "[lab][.machine]") {
  const Shell shell;
  for (const double rate : median_rates(shell)) CHECK(rate == Approx(kPayloadRate).epsilon(0.1));
}

TEST_CASE("a failing run, Ctrl-C and SIGTERM leave nothing of a lab", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const Outcome failing = shell.run(
      "stepcast lab run --name tc --cluster lab-star:hosts=2 -- run --strategy dpd --model simple-cnn");
  CHECK(failing.exit_code == 2);
  CHECK_THAT(failing.err, Contains("did you mean 'ddp'"));
  CHECK(spaces(shell, "tc").empty());
  for (const char* signal : {"INT", "TERM"}) {
    INFO(signal);
    const Outcome stopped =
        shell.run(start_long_run("tc") + "kill -" + signal + " $pid; wait $pid; echo exit $?");
    CHECK_THAT(stopped.out, Contains("step 0"));
    CHECK_THAT(stopped.out, Contains(std::string("exit ") + (signal[0] == 'I' ? "130" : "143")));
    CHECK(spaces(shell, "tc").empty());
  }
}

TEST_CASE("what a killed run leaves is shown and removed", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const Outcome killed =
      shell.run(start_long_run("td") + "kill -9 $pid; wait $pid\nstepcast lab status --name td");
  CHECK_THAT(killed.out, Contains("stepcast-td-host0") && Contains("stepcast-td-host1"));
  CHECK_FALSE(spaces(shell, "td").empty());
  CHECK_THAT(shell.run("stepcast lab down --name td").out, Contains("removed 3 network namespaces"));
  CHECK(spaces(shell, "td").empty());
  CHECK(shell.run("pgrep -f 'simple-cnn --batch 2 --warmup 1'").out.empty());
}

TEST_CASE("a link that goes down ends the run within its timeout, with the host named", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const Outcome cut = shell.run(start_long_run("te") +
                                "ip -n stepcast-te-host1 link set eth0 down; begin=$(date +%s)\n"
                                "wait $pid; echo exit $? after $(( $(date +%s) - begin )); cat err.txt");
  INFO(cut.out);
  CHECK_THAT(cut.out, Contains("exit 1 after"));
  CHECK_THAT(cut.out, Contains("on host host1"));
  const std::size_t after = cut.out.find("after ");
  REQUIRE(after != std::string::npos);
  // A timeout is an amount of time. The ranks' is 20 s; the run itself would take hours.
  CHECK(std::stoi(cut.out.substr(after + 6)) <= 120);
  CHECK(spaces(shell, "te").empty());
}

TEST_CASE("the lab's own mistakes are explained", "[commands][lab]") {
  const Shell shell;
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"lab", "the action is missing"},
           {"lab uo", "did you mean 'up'"},
           {"lab up", "--cluster is missing"},
           {"lab up --cluster lab-star --name a-b", "1 to 16 letters and digits, got 'a-b'"},
           {"lab run --cluster lab-star", "the command for the ranks is missing"},
           {"lab run --cluster lab-star -- measure --model simple-cnn", "unknown command 'measure'"},
           {"lab status more", "takes no further words, got 'more'"},
           {"lab down --ranks-per-host 7", "--ranks-per-host has no effect with lab down"},
           {"lab down --cluster x", "--cluster has no effect with lab down"}}) {
    const Outcome outcome = shell.run("stepcast " + line);
    INFO(line << ": " << outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Contains(message));
  }
  CHECK_THAT(shell.run("stepcast lab up --cluster h100x8-hgx").err, Contains("the lab cannot build cluster"));
}

TEST_CASE("the study of the lab predicts, runs, compares and draws the requested cases", "[commands][lab]") {
  const Shell shell;
  if (!lab_is_possible(shell)) return;
  const std::string validate =
      "stepcast study lab-quick --only simple.all_reduce --launches 2 --lab tf -o lab";
  const Outcome outcome = shell.run(validate);
  INFO(outcome.out << outcome.err);
  CHECK((outcome.exit_code == 0 || outcome.exit_code == 4));  // the study reports how close the forecasts are
  const nlohmann::json report = nlohmann::json::parse(shell.read("lab/compare.json"));
  // A point is run if its forecast is within the study's limit. Other work during calibration may exceed it.
  constexpr double kLongestStep = 1.0;  // s, of studies/lab.yaml
  std::size_t cases = 0;
  for (const std::string name :
       {"simple.all_reduce.lab-star-2-100Mbs", "simple.all_reduce.lab-star-4-1Gbs"}) {
    INFO(name);
    const Result forecast = load_result(shell.path("lab/predicted/" + name + ".json"));
    const bool runs = forecast.median_step_time_s() <= kLongestStep;
    cases += runs ? 1 : 0;
    for (const char* launch : {".1.json", ".2.json"}) {
      const std::string run = "lab/runs/" + name + launch;
      REQUIRE(std::filesystem::exists(shell.path(run)) == runs);
      if (runs) CHECK_THAT(shell.read(run), Contains("step_time_s"));
    }
  }
  REQUIRE(report["cases"].size() == cases);
  CHECK((outcome.out.find("not run: the predicted step is longer than 1 s") != std::string::npos) ==
        (cases < 2));
  for (const nlohmann::json& one : report["cases"]) CHECK(one["relative_error"].is_number());
  for (const char* figure : {"accuracy", "error"})
    CHECK((shell.read(std::string("lab/") + figure + ".svg").find("<svg") != std::string::npos) ==
          (cases > 0));
  const Outcome again = shell.run(validate);
  if (cases > 0) CHECK_THAT(again.out, Contains("nothing was measured again"));
  CHECK(nlohmann::json::parse(shell.read("lab/compare.json"))["cases"] == report["cases"]);
  CHECK_THAT(shell.run("stepcast study lab --only resnet5 -o other").err, Contains("no point has 'resnet5'"));
  CHECK(spaces(shell, "tf").empty());
}

// Hidden, because it measures this machine. Wider than the goals of the whole matrix (4 % and 20 %): it has
// one launch of every case.
TEST_CASE("the quick matrix of the lab is predicted from two hosts' messages", "[lab][.machine]") {
  const Shell shell;
  const Outcome outcome = shell.run("stepcast study lab-quick --launches 1 --lab tf -o lab");
  INFO(outcome.out << outcome.err);
  std::vector<double> errors;
  const nlohmann::json compared = nlohmann::json::parse(shell.read("lab/compare.json"));
  for (const nlohmann::json& one : compared["cases"])
    errors.push_back(std::abs(one["relative_error"].get<double>()));
  REQUIRE(errors.size() == 12);
  CHECK(median(errors) < 0.08);
  CHECK(*std::max_element(errors.begin(), errors.end()) < 0.25);
}

}  // namespace stepcast::tests::lab_test

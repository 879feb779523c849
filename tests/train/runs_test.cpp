#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "sim/train/expected.hpp"
#include "tests/worlds.hpp"

/// Trainings that others have reported, failure files and logs.
namespace stepcast::tests::train_runs_test {
using namespace worlds;
namespace {

using Catch::Matchers::Contains;

struct TemporaryFile {
  TemporaryFile(const std::string& text, const std::string& extension) : path(path_of(extension)) {
    std::ofstream(path) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  static std::string path_of(const std::string& extension) {
    return (std::filesystem::temp_directory_path() / ("stepcast_train_" + std::to_string(::getpid())))
               .string() +
           extension;
  }
  std::string path;
};

/// Facts without a forecast: hosts of eight devices with 1.2 GB/s to the storage each.
TrainingFacts facts_of(int ranks, double step_s, Bytes state) {
  TrainingFacts facts{.text = "it",
                      .step_s = step_s,
                      .ranks = ranks,
                      .samples_per_step = 1.0,
                      .tokens_per_sample = 1.0,
                      .state = state};
  facts.host.devices = 8;
  facts.host.at_switch = 2;
  facts.host.to_memory = BytesPerSecond(200e9);
  facts.host.to_network = BytesPerSecond(400e9);
  facts.host.memory = Bytes(2e12);
  facts.host.storage.host_rate = BytesPerSecond(1.2e9);
  facts.cluster = "here";
  return facts;
}

TrainingOutcome trained(const TrainingFacts& facts, const OptionTexts& options) {
  return train(facts, training_request(options));
}

double mttf_days(int ranks) {
  return 1.0 / trained(facts_of(ranks, 1.0, Bytes(1e9)), {{"failures", "meta-rsc"}, {"steps", "1000"}})
                   .failures_per_day();
}

std::string log_error(const std::string& rows, const std::string& settings = "") {
  const TemporaryFile log("start,end,cause,GPUs\n" + rows, ".csv");
  return error_of<Error>([&] { load_failures(log.path + settings); });
}

std::string file_error(const std::string& components) {
  const TemporaryFile file("name: own\ncomponents:\n  - " + components + "\n", ".yaml");
  return error_of<Error>([&] { load_failures(file.path); });
}

std::string train_error(const TrainingFacts& facts, OptionTexts options) {
  options.insert({{"failures", "meta-rsc"}, {"steps", "100k"}});
  return error_of<Error>([&] { trained(facts, options); });
}

}  // namespace

/// The rates are those of the run itself, and so are their sums. Independent of it are the step, the
/// checkpoint's size and costs (BLOOM's storage, torchtitan's stop and slow-down) and the default recovery.
TEST_CASE("Llama 3 405B on 16,384 H100: interruptions, their distance and effective training time",
          "[train]") {
  const double days = 54.0;
  const auto outcome = trained(facts_of(16384, 11.4, state_bytes("llama3-405b", "bf16")),
                               {{"failures", "llama3"}, {"steps", "400k"}});
  const double wall_days = outcome.mean_wall_s() / kDay;
  const auto in_run = [&](double TrainingRun::*count) { return outcome.mean(count) / wall_days * days; };
  CHECK(in_run(&TrainingRun::failures) == Approx(419.0).epsilon(0.05));
  CHECK(in_run(&TrainingRun::planned) == Approx(47.0).epsilon(0.15));  // none during recovery
  CHECK(24.0 / outcome.failures_per_day() == Approx(3.09).epsilon(0.005));
  CHECK(outcome.effective() > 0.90 - 0.03);  // published: above 0.90
  CHECK(outcome.effective() < 0.96);
}

/// From RSC-1's rate of hosts and the job of 1,024 GPUs. The job of 8 GPUs and the projections are not.
TEST_CASE("Meta's research clusters: mean time to failure by number of GPUs within 20 %", "[train]") {
  CHECK(mttf_days(8) == Approx(47.7).epsilon(0.2));
  CHECK(mttf_days(1024) == Approx(7.9 / 24.0).epsilon(0.02));
  CHECK(mttf_days(16384) == Approx(1.8 / 24.0).epsilon(0.2));
  CHECK(mttf_days(131072) == Approx(0.23 / 24.0).epsilon(0.2));
}

/// Failures from the run: about one of a GPU per week, a crash that lost 7.3 h, three deadlocks of 18, 6 and
/// 11 h. Published: step, checkpoint and its interval; 366 billion tokens in batches of 2,048 x 2,048.
TEST_CASE("BLOOM-176B on 384 A100: 117 days within 10 %, checkpoints as published", "[train]") {
  const TemporaryFile file(
      "name: bloom\ncomponents:\n  - {name: GPU, rate: 1 per run-week}\n"
      "  - {name: deadlock, rate: 3/117 per run-day, detection: 11.67h}\n"
      "  - {name: crash, rate: 1/117 per run-day, detection: 7.3h}\n",
      ".yaml");
  auto facts = facts_of(384, 105.0, Bytes(2.3e12));
  facts.tokens_per_sample = 2048.0;
  facts.samples_per_step = 2048.0;
  const auto outcome = trained(
      facts, {{"failures", file.path}, {"tokens", "366B"}, {"checkpoints", "blocking"}, {"interval", "100"}});
  CHECK(outcome.wall_s(0.5) / kDay == Approx(117.0).epsilon(0.1));
  CHECK(outcome.plan.training.checkpoint.stall_s == Approx(40.0).epsilon(0.01));
  CHECK(outcome.part_s(TrainingPart::kCheckpoints) / outcome.wall_s(0.5) == Approx(0.0037).epsilon(0.05));
}

TEST_CASE("checkpoints are as large as published", "[train]") {
  CHECK(state_bytes("llama3-70b", "bf16").count() / kGibi == Approx(920.0).epsilon(0.005));
  CHECK(state_bytes("llama3-8b:tensor=4", "bf16").count() / kGibi == Approx(105.0).epsilon(0.005));
  CHECK(state_bytes("llama3-8b", "fp32") == state_bytes("llama3-8b:sequence=2048", "fp32"));
}

TEST_CASE("shipped failures: more devices give less effective time, none gives all of it", "[train]") {
  for (const std::string& name : resource_names("reliability", ".yaml")) {
    INFO(name);
    const FailureSet failures = load_failures(name);
    CHECK(failures.name == name);
    CHECK_FALSE(failures.source.empty());
    CHECK_FALSE(failures.assumes.empty());
    double before = 1.0 + 1e-9;
    for (const int ranks : {64, 1024, 16384}) {
      const double now =
          trained(facts_of(ranks, 5.0, Bytes(1e12)),
                  {{"failures", name}, {"steps", "100k"}, {"interval", "100"}, {"storage-rate", "100GB/s"}})
              .effective();
      CHECK(now < before);
      before = name == "none" ? before : now;
    }
  }
  const auto ideal = trained(facts_of(64, 5.0, Bytes(1e12)),
                             {{"failures", "none"}, {"steps", "1000"}, {"checkpoints", "none"}});
  CHECK(ideal.wall_s(0.5) == Approx(5000.0).epsilon(1e-12));
}

TEST_CASE("a log is fitted by causes, with intervals and outages", "[train]") {
  const TemporaryFile log(
      "start,end,cause,GPUs\n24h,25h,GPU,100\n49h,49.5h,link,100\n73.5h,74.5h,GPU,100\n98.5h,99.5h,planned,"
      "100\n",
      ".csv");
  const FailureSet failures = load_failures(log.path);
  REQUIRE(failures.components.size() == 3);
  const FailureComponent& gpu = failures.components[0];
  CHECK(gpu.name == "GPU");
  CHECK(gpu.count == 2.0);
  CHECK(gpu.per_s == Approx(2.0 / (96.0 * kHour * 100.0)));  // four times 24 h of 100 GPUs
  CHECK(gpu.outage.count() == Approx(kHour));
  CHECK(failures.components[2].effect == FailureEffect::kPlanned);
  const auto [low, high] = count_interval(1.0);  // tables of Garwood's limits
  CHECK(low == Approx(0.0513).epsilon(0.002));
  CHECK(high == Approx(4.744).epsilon(0.001));
  const TemporaryFile dates(
      "start,end,cause,GPUs\n2026-03-01T12:00:00,2026-03-01T13:00:00,GPU,8\n"
      "2026-03-02T13:00:00,2026-03-02T14:00:00,GPU,8\n",
      ".csv");
  CHECK(load_failures(dates.path).components[0].count == 1.0);
  CHECK(load_failures(dates.path + ":begin=2026-02-01T00:00:00").components[0].count == 2.0);
}

TEST_CASE("a log's interruptions are counted as its rates count them; whole outages need no recovery",
          "[train]") {
  const TemporaryFile log("start,end,cause,GPUs\n0h,25h,GPU,8\n80h,81h,GPU,8\n200h,201h,GPU,8\n", ".csv");
  CHECK_THAT(load_failures(log.path).source, Contains("2 interruptions in"));
  const auto assumed = [&](const std::string& failures, const std::string& recovery) {
    OptionTexts options{{"failures", failures}, {"steps", "1k"}};
    if (!recovery.empty()) options["recovery"] = recovery;
    std::string all;
    for (const std::string& line :
         plan_training(facts_of(8, 1.0, Bytes(1e9)), training_request(options)).assumed)
      all += line + "\n";
    return all;
  };
  CHECK_THAT(assumed("meta-rsc", ""), Contains("without a measurement behind them: detection"));
  CHECK_THAT(assumed("mtbf=3h", "detection=5min"),
             Contains("hosts restart") && Contains("behind them: diag"));
  CHECK_THAT(assumed("mtbf=5000h/device", ""), Contains("takes its host with it"));
  CHECK_THAT(assumed(log.path, ""), !Contains("without a measurement behind them: detection"));
  CHECK_THAT(assumed(log.path, "detection=5min"), Contains("outages are those of the failures"));
  const TemporaryFile file(
      "name: own\ncomponents:\n  - {name: crash, rate: 1 per run-day}\n"
      "  - {name: deadlock, rate: 3 per run-day, detection: 2h}\n",
      ".yaml");
  CHECK_THAT(assumed(file.path, "detection=5min"), Contains("has no effect on 'deadlock'"));
  CHECK_THAT(assumed(file.path, "diagnosis=5min"), !Contains("has no effect"));
}

/// 128 hosts fail 0.832 times a day, and anything 3.037 times, each with 357 s of recovery. The mean wait of
/// all is 236,700 s of the 28,449 s between failures, of which 98.3 % are useful. A training that is shorter
/// than repairs has lost few hosts when it ends: with five spares 87 % are useful (1,500 trainings in another
/// simulation).
TEST_CASE("a training without spares waits for every repair", "[train]") {
  const auto with = [](const char* spares) {
    return trained(facts_of(1024, 5.0, Bytes(1e12)),
                   {{"failures", "meta-rsc"}, {"steps", "100k"}, {"spares", spares}, {"repair", "10d"}});
  };
  const TrainingOutcome none = with("0");
  CHECK(none.renewal.useful_rate == Approx(0.983 * 28449.0 / (28449.0 + 240048.0)).epsilon(0.01));
  CHECK(none.effective() == Approx(none.renewal.useful_rate).epsilon(0.1));
  CHECK(with("5").effective() == Approx(0.87).margin(0.03));
}

/// Each of eight rails has a switch, of which 16 hosts are one pod and 33 two.
TEST_CASE("failures of switches count the switches of all rails", "[train]") {
  const TemporaryFile file("name: own\ncomponents:\n  - {name: leaf, rate: 1 per switch-day}\n", ".yaml");
  const auto per_day = [&](const std::string& cluster, int ranks) {
    TrainingFacts facts = facts_of(ranks, 1.0, Bytes(1e9));
    facts.host = host_facts(load_cluster(cluster));
    return trained(facts, {{"failures", file.path}, {"steps", "1k"}}).failures_per_day();
  };
  CHECK(per_day("h100-rails:nodes=128", 128) == Approx(8.0));
  CHECK(per_day("h100-rails:nodes=128", 264) == Approx(16.0));
  CHECK(per_day("grand-teton:nodes=32", 128) == Approx(8.0));  // two hosts at a rack's switch
}

TEST_CASE("the best kind of checkpoint is blocking where the interval is too short for a write", "[train]") {
  const OptionTexts options{
      {"failures", "meta-rsc"}, {"steps", "1k"}, {"checkpoints", "best"}, {"interval", "10"}};
  const TrainingFacts facts = facts_of(1024, 1.0, Bytes(1e13));  // 65 s at 1.2 GB/s of 128 hosts
  CHECK(plan_training(facts, training_request(options)).checkpoint.method == "blocking");
}

TEST_CASE("options of a training that others make useless are refused", "[train]") {
  const auto error = [](OptionTexts options) {
    options.insert({{"failures", "mtbf=3h"}, {"steps", "1k"}});
    return error_of<UsageError>([&] { trained(facts_of(8, 1.0, Bytes(1e9)), options); });
  };
  CHECK_THAT(error({{"epoch-samples", "1k"}}), Contains("--epoch-samples has no effect without --epochs"));
  CHECK_THAT(error({{"repair", "1h"}}), Contains("--repair has no effect without --spares"));
  CHECK_THAT(error({{"repair", "1h"}, {"spares", "2"}}), Contains("no failure of 'mtbf=3h' needs it"));
  CHECK_THAT(error({{"spares", "2"}}), Contains("--spares has no effect: no failure of 'mtbf=3h' needs it"));
  CHECK_THAT(error({{"elastic", "shrink"}}), Contains("--elastic has no effect as shrink without --spares"));
  for (const auto& [name, value] : OptionTexts{{"interval", "10"},
                                               {"checkpoint-size", "1GB"},
                                               {"storage-rate", "1GB/s"},
                                               {"checkpoint-stop", "1s"}})
    CHECK_THAT(error({{"checkpoints", "none"}, {name, value}}), Contains(name + " has no effect with"));
  CHECK_THAT(error({{"checkpoints", "blocking"}, {"checkpoint-stop", "1s"}}), Contains("blocking"));
  CHECK_THAT(error({{"checkpoints", "blocking"}, {"checkpoint-slowdown", "10%"}}),
             Contains("to the storage"));
  CHECK_THAT(error({{"interval", "100k"}}), Contains("'100k'") && Contains("100 or 30min"));
}

TEST_CASE("logs and failure files that make no sense are refused", "[train]") {
  CHECK_THAT(log_error("1h,2h,GPU,8\n1.5h,3h,GPU,8\n"), Contains(":3: overlaps with line 2"));
  CHECK_THAT(log_error("2h,1h,GPU,8\n"), Contains("end 1h is before start 2h"));
  CHECK_THAT(log_error("-2h,1h,GPU,8\n"), Contains(":2: start: '-2h' must be a finite number of at least 0"));
  CHECK_THAT(log_error("2,3,GPU,8\n"), Contains("'2' has no unit"));
  CHECK_THAT(log_error("1h,2h,GPU,-8\n"), Contains("GPUs: found '-8'"));
  CHECK_THAT(log_error("2026-13-01T00:00,2h,GPU,8\n"), Contains("mixes dates and times"));
  CHECK_THAT(log_error("2026-13-01T00:00,2026-13-01T01:00,GPU,8\n"),
             Contains("'2026-13-01T00:00' is not a time"));
  CHECK_THAT(log_error("2026-02-31T00:00:00,2026-03-04T01:00:00,GPU,8\n"),
             Contains("'2026-02-31T00:00:00' is not a time"));
  CHECK_THAT(log_error("2026-01-01T00:00:00,2026-01-01T01:00:00,GPU,8\n"),
             Contains("set begin and end") && Contains(":begin=2025-12-31T00:00:00"));
  CHECK(log_error("2026-01-01T00:00:00,2026-01-01T01:00:00,GPU,8\n", ":begin=2025-12-31T00:00:00").empty());
  CHECK_THAT(log_error("0h,1h,GPU,8\n"), Contains(":end=90000s"));
  CHECK_THAT(log_error("1h,2h,GPU,8\n", ":until=3h"), Contains("unknown setting 'until'"));
  CHECK_THAT(file_error("{name: GPU, rate: 0.01}"),
             Contains(":3: components[0].rate: rate '0.01' has no unit; write"));
  CHECK_THAT(file_error("{name: GPU, rate: 1 per host-fortnight}"), Contains("unknown time 'fortnight'"));
  CHECK_THAT(file_error("{name: GPU, rate: 1 per card-day}"), Contains("unknown unit 'card'"));
  CHECK_THAT(file_error("{name: GPU, rate: -1 per host-day}"), Contains("at least 0"));
  CHECK_THAT(file_error("{name: GPU, count: 3}"), Contains("needs the file's 'observed"));
  CHECK_THAT(file_error("{name: GPU, rate: 1 per host-day, effect: slow}"), Contains("requires 'slowdown'"));
  for (const auto& [keys, useless] :
       {std::pair("lasts: 5h", "lasts: has no effect with effect 'restart' of a run"),
        {"hosts: 4", "hosts: has no effect with effect 'restart' of a run"},
        {"effect: planned, detection: 1h", "detection: has no effect with effect 'planned'"},
        {"effect: planned, lasts: 1h, outage: 2h", "'planned' of a run with 'outage'; leave it out"},
        {"effect: slow, slowdown: 0.1, lasts: 1h, outage: 1h", "outage: has no effect with effect 'slow'"}})
    CHECK_THAT(file_error(std::string("{name: a, rate: 1 per run-day, ") + keys + "}"), Contains(useless));
  CHECK(file_error("{name: a, rate: 1 per rack-day, hosts: 4, outage: 2h}").empty());
  CHECK(file_error("{name: a, rate: 1 per run-day, effect: repair, hosts: 4, lasts: 2h, detection: 1h}")
            .empty());
  CHECK_THAT(error_of<Error>([] { load_failures("mtbf=3"); }), Contains("'3' has no unit"));
  CHECK_THAT(error_of<Error>([] { load_failures("mtbf=3h/rack"); }), Contains("need a failure file"));
  CHECK_THAT(error_of<Error>([] { load_failures("lama3"); }), Contains("did you mean 'llama3'?"));
}

TEST_CASE("a lost host takes all its replicas", "[train]") {
  TrainingFacts facts = facts_of(1024, 5.0, Bytes(1e12));
  facts.replicas = 1024;
  const OptionTexts shrinks{
      {"failures", "meta-rsc"}, {"steps", "1k"}, {"elastic", "shrink"}, {"spares", "0"}, {"repair", "1h"}};
  CHECK(trained(facts, shrinks).plan.training.replicas == 128);
  facts.replicas = facts.ranks = 8;
  CHECK_THAT(train_error(facts, shrinks), Contains("different hosts have no data-parallel"));
}

TEST_CASE("the forecast's warnings that its step does not fit are the training's", "[train]") {
  Result result;
  result.step_time_s = {{1.0}};
  result.notes = {{"memory", "rank 0 needs 2 B, it holds 1 B: the step does not fit"},
                  {"offload", "1 B to the host and 1 B back"}};
  const TrainingOutcome outcome =
      trained(training_facts(result), {{"failures", "none"}, {"steps", "1k"}, {"checkpoints", "none"}});
  CHECK_THAT(
      training_text(outcome),
      Contains("\nmemory: rank 0 needs 2 B, it holds 1 B: the step does not fit\n") && !Contains("offload"));
}

TEST_CASE("a model that only an imported profile describes has neither tokens nor state", "[train]") {
  Result result;
  result.step_time_s = {{1.0}};
  result.configuration.model = "my-profile";
  result.lineage = {{"trace", "mine.trace.json", "", {}}, {"model", "mine.trace.json", "", {}}};
  const TrainingFacts facts = training_facts(result);
  CHECK_THAT(train_error(facts, {}), Contains("set --checkpoint-size"));
  CHECK(facts.tokens_per_sample == 0.0);
  result.lineage.back().path = "my-profile.yaml";
  CHECK_THAT(error_of<Error>([&] { training_facts(result); }), Contains("unknown model 'my-profile'"));
}

TEST_CASE("without failures that lose memory, free writes to the storage are as rare as they can be",
          "[train]") {
  const TrainingCase training = trained(facts_of(1024, 10.0, Bytes(1e12)), {{"failures", "mtbf=3h"},
                                                                            {"steps", "50k"},
                                                                            {"checkpoint-to", "neighbour"},
                                                                            {"checkpoint-slowdown", "0%"}})
                                    .plan.training;
  CHECK(training.checkpoint.storage_every == std::ceil(training.steps / training.interval));
}

TEST_CASE("with checkpoints in memory, planned stops do not save what lost hosts lose", "[train]") {
  const TemporaryFile host("name: own\ncomponents:\n  - {name: host, rate: 1 per run-day, effect: repair}\n",
                           ".yaml");
  TrainingFacts facts = facts_of(1024, 10.0, Bytes(1e12));
  facts.host.storage.host_rate = BytesPerSecond(4e6);
  const auto lost_s = [&](const std::string& failures) {
    return trained(facts, {{"failures", failures}, {"steps", "50k"}, {"checkpoint-to", "host"}})
        .part_s(TrainingPart::kLost);
  };
  const double without = lost_s(host.path);
  std::ofstream(host.path, std::ios::app) << "  - {name: stop, rate: 24 per run-day, effect: planned}\n";
  CHECK(lost_s(host.path) > 0.9 * without);
}

TEST_CASE("plans are compared by what train answers for their steps", "[train]") {
  const TrainingFacts facts = facts_of(64, 25.0, Bytes(1e11));
  for (const auto& [failures, steps] : {std::pair("meta-rsc", "100k"), std::pair("llama3", "2861")}) {
    const TrainingRequest request = training_request({{"failures", failures}, {"steps", steps}});
    const TrainingCase training = plan_training(facts, request).training;
    ExpectedTraining expected(facts, request);
    CHECK(expected.wall_s(64, 25.0) == Approx(25.0 / renewal_of(training).useful_rate).epsilon(1e-4));
    const std::string text = expected.checkpoints(64, 25.0);  // not rounded to steps
    CHECK(std::stod(text.substr(text.find("every ") + 6)) ==
          Approx(training.interval * 25.0 / 60.0).margin(0.5 * 25.0 / 60.0));
  }
  const TrainingRequest unsaved =
      training_request({{"failures", "mtbf=72h"}, {"steps", "2k"}, {"checkpoints", "none"}});
  const TrainingCase whole = plan_training(facts_of(64, 109.0, Bytes(1e11)), unsaved).training;
  CHECK(ExpectedTraining(facts, unsaved).wall_s(64, 109.0) == Approx(109.0 / renewal_of(whole).useful_rate));
  ExpectedTraining stopped(facts, training_request({{"failures", "llama3"}, {"steps", "100"}}));
  CHECK_THAT(error_of<Error>([&] { stopped.wall_s(64, 25.0); }), Contains("planned stops divide the only"));
  CHECK(ExpectedTraining(facts, training_request({{"failures", "none"}, {"steps", "1k"}, {"spares", "2"}}))
            .devices(64) == 80);
  CHECK_THAT(error_of<Error>([&] {
               ExpectedTraining(
                   facts, training_request({{"failures", "none"}, {"steps", "1k"}, {"interval", "200"}}));
             }),
             Contains("--interval 200: steps of plans last differently; set a time"));
}

TEST_CASE("trainings without an answer are refused with the reason", "[train]") {
  const TrainingFacts facts = facts_of(1024, 5.0, Bytes(1e12));
  CHECK_THAT(train_error(facts, {{"tokens", "1T"}}), Contains("one of --tokens, --steps and --epochs"));
  TrainingFacts images = facts;
  images.tokens_per_sample = 0.0;
  CHECK_THAT(
      error_of<Error>([&] {
        trained(images, {{"failures", "none"}, {"tokens", "1T"}});
      }),
      Contains("the tokens of a step are unknown; set --steps of 'stepcast train', or --epochs and --epoch"));
  CHECK_THAT(train_error(facts, {{"spares", "1"}}), Contains("--spares: the repair of 'host' is unknown"));
  CHECK_THAT(train_error(facts_of(1024, 1.0, Bytes(1e12)), {{"interval", "1"}}),
             Contains("--interval 1: the write of a checkpoint takes 6.51 s"));
  CHECK_THAT(train_error(facts, {{"elastic", "shrink"}, {"spares", "0"}, {"repair", "1h"}}),
             Contains("different hosts have no data-parallel replicas"));
  TrainingFacts small = facts;
  small.host.storage.capacity = Bytes(1e9);
  CHECK_THAT(train_error(small, {}),
             Contains("a checkpoint of 931 GiB is larger than the storage of cluster 'here'"));
  small = facts;
  small.host.memory = Bytes(1e9);
  CHECK_THAT(train_error(small, {{"checkpoint-to", "host"}}), Contains("larger than its memory"));
  small = facts;
  small.host.storage = {};
  CHECK_THAT(train_error(small, {}), Contains("states no storage; set --storage-rate"));
  CHECK_THAT(train_error(small, {{"storage-rate", "0GB/s"}}), Contains("must be above 0"));
  CHECK_THAT(train_error(small, {{"checkpoint-size", "0B"}}), Contains("must be above 0"));
  small = facts;
  small.state = Bytes(0);
  CHECK_THAT(train_error(small, {}), Contains("--checkpoint-size"));
  CHECK_THAT(error_of<Error>([&] {
               trained(facts, {{"failures", "mtbf=1min"}, {"steps", "1k"}});
             }),
             Contains("makes no progress"));
  CHECK_THAT(error_of<Error>([&] {
               trained(facts, {{"failures", "mtbf=3h"}, {"steps", "1T"}});
             }),
             Contains(" failures, of which at most 1e7 are simulated"));
}

}  // namespace stepcast::tests::train_runs_test

#include "sim/study/experiment.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/file.hpp"
#include "core/table.hpp"
#include "records/trace.hpp"
#include "tests/temporary_folder.hpp"

/// What a study that runs measures, in which order, and what it makes of it.
namespace stepcast::experiment_test {
namespace {

StudyVocabulary words() {
  return {.options = {"strategy", "model", "world-size", "bucket-cap", "cluster", "batch", "compute", "split",
                      "schedule", "mesh", "micro-batches", "sharding", "steps", "trace", "calibration"},
          .switches = {},
          .matters = [](const std::string&, const Assignment&) { return true; }};
}

Study study_of(const std::string& path, unsigned seed = 1, const std::string& only = "") {
  return load_study(path, words(), seed, only);
}

Study shipped_study(const std::string& name, unsigned seed = 1) {
  return study_of(std::string(STEPCAST_SOURCE_DIR "/studies/") + name + ".yaml", seed);
}

const std::string& value(const StudyPoint& point, const std::string& name) {
  const std::string* found = point.assigned.find(name);
  REQUIRE(found != nullptr);
  return *found;
}

const std::string kTwo = R"(
study: two ways
name: "{strategy}"
calibrate: {nproc: 2}
measure: {steps: 5, rounds: 2}
predict: {model: tiny, batch: 8, world-size: 2, cluster: laptop}
run: {nproc: "{world-size}", launches: 3, warmup: 1, steps: {seconds: 2, at_most: 10},
      skip: [{when: {step_time_s: "> 3"}, because: too long}]}
points:
  - list: [{strategy: [ddp, slow, all_reduce]}, {strategy: pipeline, micro-batches: 4}]
first: {strategy: ddp}
)";

/// A Result of a point: `ddp` takes 1 s, `slow` 4 s, others 0.5 s.
Result result_of(const std::string& strategy, Origin origin, double factor) {
  Result result;
  result.origin = origin;
  result.configuration.model = "tiny";
  result.configuration.strategy = result.configuration.label = strategy;
  result.configuration.world_size = 2;
  result.configuration.batch = 8;
  result.configuration.steps = 1;
  const double step = factor * (strategy == "ddp" ? 1.0 : strategy == "slow" ? 4.0 : 0.5);
  result.step_time_s = {{step}, {step}};
  result.context = make_run_context(kResultSchema, {});
  return result;
}

/// Programs that record their arguments and write files like the real ones.
struct Bench {
  TemporaryFolder folder;
  std::vector<std::string> asked;
  std::string fails;  ///< strategy whose runs fail
  int too_large = 0;  ///< batch that cannot be measured

  std::map<std::string, StudyRow> run(const Study& study) {
    asked.clear();
    StudyExperiment experiment{study, folder.path()};
    ExperimentCalls calls;
    calls.program = [&](const std::vector<std::string>& all) {
      asked.push_back(joined(all, " "));
      const std::string& file = all.back();
      const auto strategy = std::find(all.begin(), all.end(), "--strategy");
      if (all.front() == "measure") {
        const std::string batches = "," + *(std::find(all.begin(), all.end(), "--batch") + 1) + ",";
        if (batches.find("," + std::to_string(too_large) + ",") != std::string::npos)
          return ProgramOutput{1, "", "out of memory\n"};
        Trace trace = load_trace(STEPCAST_SOURCE_DIR "/tests/golden/inputs/simple-cnn.trace.json");
        trace.entries.resize(1, trace.entries.front());
        const int round = std::filesystem::exists(file) ? 1 : 0;
        std::fill(trace.entries[0].launch.begin(), trace.entries[0].launch.end(), round);
        trace.entries.push_back(trace.entries.front());
        trace.entries[0].batch = 2;
        trace.entries[1].batch = 8;
        write_file(file, to_file_text(trace), true);
      } else if (all.front() == "run") {
        if (*(strategy + 1) == fails) return ProgramOutput{1, "", "no luck\n"};
        write_file(file, to_file_text(result_of(*(strategy + 1), Origin::kMeasured, 0.8)), true);
      } else {
        write_file(file, "{}", true);
      }
      return ProgramOutput{};
    };
    calls.predict = [&](const std::vector<StudyPoint>& points) {
      std::map<std::string, StudyRow> rows;
      for (const StudyPoint& point : points) {
        const Result result = result_of(*point.assigned.find("strategy"), Origin::kPredicted, 1.0);
        write_file(experiment.predicted_path(point), to_file_text(result), true);
        rows[point.key] = row_of(point, result, {});
        asked.push_back("predict " + point.name + " " + joined(experiment.measured_words(point), " "));
      }
      return rows;
    };
    calls.forecast_options = {"cluster", "world-size"};
    calls.on_progress = [done = 0](int total, const std::string&) mutable { CHECK(++done <= total); };
    calls.on_first = [&](const std::vector<const StudyPoint*>& points) {
      asked.push_back("first " + std::to_string(points.size()));
    };
    return run_experiment(experiment, "study", calls);
  }

  /// With `DIR` for the folder.
  [[nodiscard]] std::string story() const {
    std::string text;
    for (std::string line : asked) {
      for (std::size_t at = 0; (at = line.find(folder.path(), at)) != std::string::npos;)
        line.replace(at, folder.path().size(), "DIR");
      text += line + "\n";
    }
    return text;
  }
};

}  // namespace

TEST_CASE("the trainings of the lab's study are those of the reference, in its order", "[study]") {
  std::ostringstream all;
  const Study lab = shipped_study("lab"), quick = shipped_study("lab-quick");
  for (const Study* study : {&lab, &quick})
    for (const StudyPoint& one : study->points) {
      all << (study == &lab ? "lab " : "quick ") << one.name;
      for (const std::string key : {"cluster", "world-size", "model", "batch", "compute"})
        all << " --" << key << " " << value(one, key);
      for (const auto& [option, given] : one.options.values())
        if (!std::set<std::string>{"--cluster", "--world-size", "--model", "--batch", "--compute"}.contains(
                option))
          all << " " << option << " " << given;
      all << " # " << parse_bytes_per_second(value(one, "rate"), "rate").count() << " B/s, "
          << value(one, "distance") << "\n";
    }
  std::set<std::string> names;
  for (const StudyPoint& one : lab.points) names.insert(one.name);
  for (const Expectation& change : lab.expectations) {
    if (change.from.empty()) continue;
    all << change.text << ": " << change.from << " to " << change.to << "\n";
    CHECK((names.contains(change.from) && names.contains(change.to)));
  }
  CHECK(all.str() == read_file(STEPCAST_SOURCE_DIR "/tests/study/lab-matrix.txt"));
}

TEST_CASE("drawn points are the same for a seed, others for another, and within their ranges", "[study]") {
  const Study one = shipped_study("lab-blind", 5), same = shipped_study("lab-blind", 5),
              other = shipped_study("lab-blind", 6);
  REQUIRE(one.points.size() >= 10);
  std::size_t equal = 0;
  REQUIRE(one.points.size() == same.points.size());
  for (std::size_t i = 0; i < one.points.size(); ++i) {
    CHECK(one.points[i].key == same.points[i].key);
    equal += i < other.points.size() && one.points[i].key == other.points[i].key ? 1 : 0;
    const double rate = parse_bytes_per_second(value(one.points[i], "rate"), "rate").count();
    CHECK(rate >= 50e6 / 8);
    CHECK(rate <= 5e9 / 8);
  }
  CHECK(equal < 2);
  std::size_t all = one.points.size();
  std::set<std::string> names, seen;
  for (const StudyPoint& point : one.points) names.insert(point.name);
  for (const LeftOut& left : one.left_out) {
    all += left.points;
    CHECK(left.names.size() == left.points);
    for (const std::string& name : left.names) CHECK(names.count(name) == 0);
  }
  CHECK(all == 60);
  for (unsigned seed = 1; seed <= 20; ++seed)
    for (const StudyPoint& point : shipped_study("lab-blind", seed).points)
      for (const char* key : {"training", "batch", "way", "kind", "world-size", "queue"})
        seen.insert(key + ("=" + value(point, key)));
  CHECK(seen.size() == 4 + 3 + 12 + 4 + 7 + 2);  // every choice survives the rules
}

TEST_CASE("a study that runs measures, predicts, runs launch after launch, and compares", "[study]") {
  Bench bench;
  const Study study = study_of(bench.folder.write("two.yaml", kTwo));
  const auto rows = bench.run(study);
  const auto launch = [](int number) {
    const std::string end = "." + std::to_string(number);
    const auto run = [&](const std::string& strategy, const std::string& options, int steps) {
      return "run --strategy " + strategy + options +
             " --model tiny --batch 8 --nproc 2 --warmup 1 --steps " + std::to_string(steps) +
             " --reference-slowdown 1 -o DIR/runs/" + strategy + end + ".json\n";
    };
    return std::pair(
        "measure --model tiny --batch 8 --steps 5 --warmup 2 --budget 0s -o DIR/references/tiny" + end +
            ".trace.json\n" + run("ddp", "", 2),
        run("all_reduce", "", 4) + run("pipeline", " --micro-batches 4", 4));
  };
  const auto predict = [](const std::string& point) {
    return "predict " + point + " --trace DIR/traces/tiny.trace.json --calibration DIR/calibration.json\n";
  };
  const std::string measure =
      "measure --model tiny --batch 2,8 --steps 5 --accumulating --append -o DIR/traces/tiny.trace.json\n";
  std::string expected = "calibrate --nproc 2 -o DIR/calibration.json\n" + measure + measure +
                         predict("ddp") + launch(1).first + "first 1\n" + predict("slow") +
                         predict("all_reduce") + predict("pipeline") + launch(1).second;
  for (const int number : {2, 3}) expected += launch(number).first + launch(number).second;
  CHECK(bench.story() == expected);
  for (const StudyPoint& point : study.points) {
    const auto& values = rows.at(point.key).values;
    CHECK(values.contains("relative_error") == (point.name != "slow"));
    if (point.name == "slow") continue;
    CHECK(values.at("relative_error") == Approx(0.25));
    CHECK(values.at("reference_slowdown") == Approx(1.0));
  }
}

TEST_CASE("a batch that cannot be measured is its points' error, and precisions have traces of their own",
          "[study]") {
  Bench bench;
  bench.too_large = 8;
  StudyVocabulary vocabulary = words();
  vocabulary.options.emplace_back("precision");
  const Study study = load_study(bench.folder.write("two.yaml", R"(
study: one GPU
name: "{batch}.{precision}"
measure: {device: cuda, precision: "{precision}", steps: 5}
predict: {model: tiny, strategy: single}
run: {device: cuda, precision: "{precision}", launches: 1}
points: [{grid: {batch: [2, 8], precision: [fp32, bf16]}}]
)"),
                                 vocabulary, 1, "");
  const auto rows = bench.run(study);
  for (const StudyPoint& point : study.points)
    CHECK(rows.at(point.key).error == (value(point, "batch") == "8" ? "out of memory\\x0a" : ""));
  std::string expected;
  for (const auto& [precision, mark] : {std::pair("fp32", ""), {"bf16", ".bf16"}})
    for (const char* batches : {"2,8", "2", "8"})
      expected += std::string("measure --model tiny --batch ") + batches + " --device cuda --precision " +
                  precision + " --steps 5 --append -o DIR/traces/tiny" + mark + ".trace.json\n";
  CHECK(bench.story() == expected + R"(predict 2.fp32 --trace DIR/traces/tiny.trace.json
predict 2.bf16 --trace DIR/traces/tiny.bf16.trace.json
run --batch 2 --model tiny --strategy single --device cuda --precision fp32 -o DIR/runs/2.fp32.1.json
run --batch 2 --model tiny --strategy single --device cuda --precision bf16 -o DIR/runs/2.bf16.1.json
)");
}

TEST_CASE("what ranks share is measured as one of them has it, and points run on their ranks", "[study]") {
  Bench bench;
  StudyVocabulary vocabulary = words();
  vocabulary.model_of_rank = [](const Assignment& point) {
    return *point.find("model") + (point.find("mesh") == nullptr ? "" : ":" + *point.find("mesh"));
  };
  const Study study = load_study(bench.folder.write("shared.yaml", R"(
study: shared
name: "{way}"
measure: {steps: 5}
predict: {model: tiny, batch: 8}
run: {launches: 1}
values: {way: {whole: {strategy: ddp, world-size: 4}, shared: {strategy: fsdp, mesh: tensor=2}}}
points: [{grid: {way: [whole, shared]}}]
)"),
                                 vocabulary, 1, "");
  static_cast<void>(bench.run(study));
  CHECK_THAT(
      bench.story(),
      Catch::Contains("measure --model tiny --batch 8 --steps 5 --append -o DIR/traces/tiny.trace.json") &&
          Catch::Contains("measure --model tiny:tensor=2 --batch 8") &&
          Catch::Contains("predict shared --trace DIR/traces/tiny:tensor=2.trace.json") &&
          Catch::Contains("--batch 8 --nproc 4 ") &&
          Catch::Contains("--mesh tensor=2 --model tiny --batch 8"));
}

TEST_CASE("reference steps are taken with the threads of the trace", "[study]") {
  Bench bench;
  std::string text = kTwo;
  text.replace(text.find("rounds: 2}"), 10, "rounds: 2, threads: 1}");
  const auto rows = bench.run(study_of(bench.folder.write("two.yaml", text)));
  CHECK_THAT(bench.story(), Catch::Contains("--budget 0s --threads 1 -o DIR/references/tiny.1.trace.json"));
  for (const auto& [key, row] : rows) CHECK(row.error.empty());
}

TEST_CASE("runs of one question need one point, and files have names of their own", "[study]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& points) {
    try {
      static_cast<void>(study_of(folder.write(
          "two.yaml", "study: x\nname: '" + name +
                          "'\npredict: {model: tiny, batch: 8}\nrun: {engine: '{engine}'}\n" + points)));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string engines = "points: [{grid: {strategy: ddp, engine: [schedule, reference]}}]\n";
  const std::string sizes = "points: [{grid: {strategy: ddp, engine: schedule, world-size: [2, 4]}}]\n";
  CHECK(refusal("{strategy}.{world-size}", sizes).empty());
  CHECK_THAT(refusal("{strategy}", sizes), Catch::Contains("two points are called 'ddp'"));
  CHECK_THAT(refusal("{engine}", engines), Catch::Contains("has the options of another point"));
}

TEST_CASE("a study that runs goes on where it stopped, and a run that fails is its point's error",
          "[study]") {
  Bench bench;
  const Study study = study_of(bench.folder.write("two.yaml", kTwo));
  bench.fails = "all_reduce";
  const auto failed = bench.run(study);
  for (const StudyPoint& point : study.points)
    CHECK(failed.at(point.key).error == (point.name == "all_reduce" ? "no luck\\x0a" : ""));
  bench.fails = "";
  std::filesystem::remove(bench.folder.file("runs/ddp.2.json"));
  const auto rows = bench.run(study);
  std::erase_if(bench.asked,
                [](const std::string& line) { return !line.starts_with("run") && !line.starts_with("cal"); });
  CHECK(bench.asked.size() == 4);  // three of all_reduce, and the one that was lost
  for (const StudyPoint& point : study.points) CHECK(rows.at(point.key).error.empty());
}

}  // namespace stepcast::experiment_test

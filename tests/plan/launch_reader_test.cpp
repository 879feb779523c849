#include "sim/plan/launch_reader.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/file.hpp"
#include "core/table.hpp"
#include "sim/plan/launch.hpp"
#include "sim/plan/space.hpp"
#include "sim/replay/convention.hpp"
#include "sim/replay/prediction_options.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/worlds.hpp"

/// Launch files, and plans that are printed and read back.
namespace stepcast::launch_reader_test {
using namespace worlds;
namespace {

OptionTexts texts_of(const nlohmann::json& object) {
  OptionTexts texts;
  for (const auto& [key, value] : object.items()) texts[key] = value.get<std::string>();
  return texts;
}

std::string program_of(const std::string& file) {
  return file == "megatron.sh"       ? "Megatron-LM"
         : file == "torchtitan.toml" ? "torchtitan"
         : file == "ds_config.json"  ? "DeepSpeed"
         : file == "fsdp.yaml"       ? "Hugging Face accelerate"
                                     : "NeMo";
}

PlanProblem problem_of(const std::string& like, const std::string& family = "llama") {
  PlanProblem problem;
  problem.model = family + ":layers=4,hidden=512,vocabulary=8192,sequence=1024";
  problem.cluster = "h100x8-hgx";
  problem.device = "h100-sxm";
  problem.precision = Precision::parse(like.empty() ? "bf16,gradients=fp32" : "bf16");
  problem.ranks = 4;
  problem.samples = 8;
  problem.like = like;
  return problem;
}

}  // namespace

TEST_CASE("launch files may be compressed and begin with a byte-order mark", "[plan]") {
  const TemporaryFolder folder;
  const std::string text = R"({"train_batch_size": 8, "zero_optimization": {"stage": 1}})";
  const OptionTexts given{{"world-size", "8"}, {"model", "llama3-8b"}};
  const auto options = read_launch_file(folder.write("plain.json", text), given).options;
  CHECK(read_launch_file(folder.write("marked.json", "\xef\xbb\xbf" + text), given).options == options);
  const std::string path = folder.write("compressed.json", text);
  REQUIRE(std::system(("gzip -f '" + path + "'").c_str()) == 0);
  CHECK(read_launch_file(path + ".gz", given).options == options);
}

/// Launch files in the form of each program, with the options that follow or what the refusal contains.
/// `given`: options of the command line; `assumed`: a part of the notes on assumptions. Written from the
/// programs' documentation of their keys.
TEST_CASE("ten launch files of each program become options, others are refused by line and key", "[plan]") {
  const auto groups =
      nlohmann::json::parse(read_file(std::string(STEPCAST_SOURCE_DIR) + "/tests/plan/launch_files.json"));
  for (const nlohmann::json& group : groups) {
    const auto name = group["program"].get<std::string>();
    CHECK(std::ranges::count_if(group["files"], [](const auto& one) { return !one.contains("refused"); }) >=
          10);
    for (const nlohmann::json& one : group["files"]) {
      const std::string text = joined(one["lines"].get<std::vector<std::string>>(), "\n") + "\n";
      INFO(name << ":\n" << text);
      const OptionTexts given = texts_of(one["given"]);
      if (one.contains("refused")) {
        const std::string complaint = error_of([&] { return read_launch_text(text, name, "", given); });
        CHECK_THAT(complaint, Catch::StartsWith(name));
        for (const auto& part : one["refused"])
          CHECK_THAT(complaint, Catch::Contains(part.get<std::string>()));
        continue;
      }
      const LaunchReading reading = read_launch_text(text, name, "", given);
      CHECK(reading.program == program_of(name));
      for (const auto& [option, value] : texts_of(one["options"])) {
        INFO(option);
        if (option == "assumed" || option == "ignored") {
          CHECK_THAT(joined(option == "assumed" ? reading.assumed : reading.ignored), Catch::Contains(value));
          continue;
        }
        const auto found = reading.options.find(option);
        CHECK((found == reading.options.end() ? "" : found->second) == value);
      }
      CHECK(reading.options.contains("batch"));
    }
  }
}

TEST_CASE("a plan that a program can run is read back from its options as the same plan", "[plan]") {
  for (const std::string& like : {std::string(), std::string("megatron")}) {
    const PlanProblem problem = problem_of(like);
    PlanModels models(problem);
    std::vector<Plan> plans;
    std::size_t count = 0;
    enumerate_plans(models, [&](const Plan& plan) {
      plans.push_back(plan);
      if (count++ % 3 != 0) return;
      for (const auto& others : {smaller_plans(models, plan), variants_of(models, plan)})
        plans.insert(plans.end(), others.begin(), others.end());
    });
    for (const Launcher& launcher : launchers(models)) {
      int read = 0;
      for (const Plan& plan : plans) {
        const LaunchText launch = launcher.text(models, plan);
        if (!launch.obstacles.empty()) continue;
        INFO(launch.text());
        const OptionTexts wanted = predict_options(models.problem(), plan);
        OptionTexts found = read_launch_text(launch.text(), launch.file, "", {}).options;
        CHECK(launch.words.find("--micro-batches") == std::string::npos);
        CHECK(launch.words.find("--batch") == std::string::npos);
        CHECK(launch.words.find("--strategy") == std::string::npos);
        found.erase("world-size");
        OptionTexts without = wanted;
        without.erase("world-size");
        for (const char* option : {"bucket-cap", "precision", "model"}) {  // equal, maybe in other words
          CHECK(found.contains(option) == without.contains(option));
          found.erase(option), without.erase(option);
        }
        CHECK(found == without);
        ++read;
      }
      INFO(launcher.program() << " " << like);
      CHECK(read > (like.empty() ? 20 : 4));  // DeepSpeed runs few plans as Megatron does
    }
  }
}

TEST_CASE("the forecast of a plan that is read back is the same to the last digit", "[plan]") {
  for (const std::string& like : {std::string(), std::string("megatron")}) {
    const PlanProblem problem = problem_of(like);
    PlanModels models(problem);
    std::vector<Plan> plans;
    enumerate_plans(models, [&](const Plan& plan) { plans.push_back(plan); });
    for (const Launcher& launcher : launchers(models)) {
      int compared = 0;
      for (std::size_t i = 0; i < plans.size() && compared < 4; i += like.empty() ? 7 : 5) {
        const LaunchText launch = launcher.text(models, plans[i]);
        if (!launch.obstacles.empty()) continue;
        INFO(launch.text());
        const Result own = predict(request_of(models.problem(), plans[i]));
        const Result read =
            predict(prediction_request(read_launch_text(launch.text(), launch.file, "", {}).options));
        CHECK(read.step_time_s == own.step_time_s);
        CHECK(read.bytes_sent_per_rank == own.bytes_sent_per_rank);
        CHECK(read.memory.front().peak_bytes == own.memory.front().peak_bytes);
        ++compared;
      }
      INFO(launcher.program() << " " << like);
      CHECK(compared >= (like.empty() ? 2 : 1));
    }
  }
}

TEST_CASE("recipes of 8 and 4 bit are printed with the keys that switch them on", "[plan]") {
  const auto lines_of = [](const std::string& program, const std::string& precision) {
    PlanProblem problem = problem_of("");
    problem.precision = Precision::parse(precision);
    if (precision.starts_with("mx")) problem.device = "b200";
    PlanModels models(problem);
    std::vector<Plan> plans;
    enumerate_plans(models, [&](const Plan& plan) { plans.push_back(plan); });
    for (const Plan& plan : plans)
      if (plan.text("strategy") == "fsdp") return Launcher(program, models).text(models, plan).lines;
    return std::string();
  };
  CHECK_THAT(lines_of("torchtitan", "fp8"), Catch::Contains("converters = [\"quantize.linear.float8\"]"));
  CHECK_THAT(lines_of("torchtitan", "fp8-rowwise"), Catch::Contains("recipe_name = \"rowwise\"\n"));
  CHECK_THAT(lines_of("torchtitan", "fp8-rowwise-gw-hp"), Catch::Contains("\"rowwise_with_gw_hp\""));
  CHECK_THAT(lines_of("torchtitan", "mxfp8-torchao"), Catch::Contains("[\"quantize.linear.mx\"]"));
  CHECK_THAT(lines_of("torchtitan", "bf16"), !Catch::Contains("converters"));
  CHECK_THAT(lines_of("megatron", "fp8"), Catch::Contains("--fp8-recipe tensorwise"));
  CHECK_THAT(lines_of("megatron", "fp8-delayed"), Catch::Contains("--fp8-recipe delayed"));
  CHECK_THAT(lines_of("hf", "fp8"), Catch::Contains("\n  backend: AO"));
  CHECK_THAT(lines_of("torchtitan", "fp8"), Catch::Contains("filter_fqns = [\"output\"]"));
}

TEST_CASE("Megatron's main gradients are in fp32 with bf16 and every recipe of 8 and 4 bit", "[plan]") {
  for (const char* precision :
       {"bf16", "fp8-delayed", "fp8-delayed,gather=fp8", "fp8-current", "fp8-current,gather=fp8",
        "fp8-blockwise", "mxfp8", "mxfp8,gather=mxfp8", "nvfp4", "fp8", "fp8,gather=fp8"}) {
    INFO(precision);
    const OptionTexts options{{"strategy", "ddp"}, {"precision", precision}, {"world-size", "8"}};
    CHECK(Convention("megatron-defaults").added_to(options).options.at("precision") ==
          std::string(precision) + ",gradients=fp32");
  }
}

TEST_CASE("a plan of a mixture of experts is read back from the options of programs that share experts",
          "[plan]") {
  const PlanProblem problem = problem_of("", "moe");
  PlanModels models(problem);
  for (const Launcher& launcher : launchers(models)) {
    int shared = 0;
    enumerate_plans(models, [&](const Plan& plan) {
      if (plan.number("expert") < 2 || shared >= 6) return;
      const LaunchText launch = launcher.text(models, plan);
      if (!launch.obstacles.empty()) return;
      INFO(launch.text());
      const OptionTexts found = read_launch_text(launch.text(), launch.file, "", {}).options;
      CHECK(found.at("mesh") == predict_options(models.problem(), plan).at("mesh"));
      CHECK_THAT(launch.lines, Catch::Contains("expert") || Catch::Contains("ep_size"));
      if (shared++ % 3 == 0)
        CHECK(predict(prediction_request(found)).step_time_s ==
              predict(request_of(models.problem(), plan)).step_time_s);
    });
    INFO(launcher.program());
    CHECK((shared > 0) == (launcher.file() != "accelerate.yaml"));
  }
}

TEST_CASE("domains of a flexible dispatcher are those of the cluster, else of a node, and are reported",
          "[plan]") {
  const std::string text =
      "torchrun --nproc_per_node 4 --nnodes 16 pretrain_gpt.py --bf16 --micro-batch-size 1 "
      "--expert-model-parallel-size 8 --moe-token-dispatcher-type flex\n";
  const auto read = [&](OptionTexts given) {
    given["model"] = "mixtral-8x7b";
    return read_launch_text(text, "train.sh", "", given);
  };
  CHECK(read({}).options.at("dispatch") == "flex4");
  CHECK_THAT(joined(read({}).assumed), Catch::Contains("NVLink domains of 4, the GPUs of a node"));
  const LaunchReading racks = read({{"cluster", "gb200-nvl72:gpus=64"}});
  CHECK(racks.options.at("dispatch") == "flex64");
  CHECK_THAT(joined(racks.assumed), Catch::Contains("NVLink domains of 64, the GPUs of a host of --cluster"));
  CHECK(read({{"dispatch", "flex72"}}).options.at("dispatch") == "flex72");
}

TEST_CASE("with a trace, options of kernels are left out with a note", "[plan]") {
  const std::string text =
      "torchrun pretrain_gpt.py --micro-batch-size 2 --tensor-model-parallel-size 2 --tp-comm-overlap "
      "--sequence-parallel --clip-grad 0\n";
  OptionTexts given{{"model", "llama3-8b"}, {"world-size", "8"}};
  CHECK(read_launch_text(text, "train.sh", "", given).options.at("gradient-passes") == "nan");
  given["trace"] = "mine.trace.json";
  const LaunchReading reading = read_launch_text(text, "train.sh", "", given);
  CHECK_FALSE(reading.options.contains("gradient-passes"));
  CHECK_FALSE(reading.options.contains("tensor-overlap"));
  CHECK_THAT(joined(reading.ignored), Catch::Contains("--gradient-passes (--trace has it)"));
}

TEST_CASE("keys without effect are listed, and what stands in the file gives way to the command line",
          "[plan]") {
  const std::string text = "torchrun pretrain_gpt.py --bf16 --micro-batch-size 2 --lr 1e-4 --save out\n";
  const LaunchReading reading =
      read_launch_text(text, "train.sh", "", {{"model", "llama3-8b"}, {"world-size", "8"}, {"batch", "16"}});
  REQUIRE(reading.ignored.size() == 1);
  CHECK(reading.ignored[0] == "keys without effect: lr, save");
  CHECK(reading.options.at("batch") == "16");
  CHECK_THAT(joined(reading.assumed),
             Catch::Contains("megatron-defaults") &&
                 Catch::Contains("without dropout=10, a setting that the model lacks"));
  CHECK_FALSE(is_launch_text("hello\n"));
}

}  // namespace stepcast::launch_reader_test
